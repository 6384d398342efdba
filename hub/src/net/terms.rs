//! `GET /api/terms`: the model and the number of experts, for anyone with the join token. A worker asks before it tests
//! its device, the join page before the visitor decides.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use moex_protocol::ProductShape;
use serde_json::json;

use super::shared::Shared;

pub(super) fn router(shared: Arc<Shared>) -> Router {
    Router::new().route("/api/terms", get(terms)).with_state(shared)
}

/// The model as an accepted worker receives it, the number of experts to hold, and the bytes of the products that come with each of an
/// expert's rows.
async fn terms(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    if !shared.is_admitted(&headers) {
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
        return (StatusCode::UNAUTHORIZED, challenge, "the join token is wrong").into_response();
    }
    let config = &shared.config;
    let blocks = shared.store.catalog().len();
    let products = config.model.product_shape().filter(|_| config.wants_products());
    let product_bytes = products.map_or(0, ProductShape::row_bytes);
    let terms = json!({ "model": config.model, "blocks": blocks, "product_bytes": product_bytes });
    Json(terms).into_response()
}
