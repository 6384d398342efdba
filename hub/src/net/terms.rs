//! `GET /api/terms`: the model and the number of experts, for anyone with the join token. A worker asks before it tests
//! its device, the join page before the visitor decides.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;

use super::shared::Shared;

pub(super) fn router(shared: Arc<Shared>) -> Router {
    Router::new().route("/api/terms", get(terms)).with_state(shared)
}

/// The model as an accepted worker receives it, the number of experts to hold, and whether answers come with products.
async fn terms(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    if !shared.is_admitted(&headers) {
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
        return (StatusCode::UNAUTHORIZED, challenge, "the join token is wrong").into_response();
    }
    let config = &shared.config;
    let blocks = shared.store.catalog().len();
    let terms = json!({ "model": config.model, "blocks": blocks, "wants_products": config.wants_products() });
    Json(terms).into_response()
}
