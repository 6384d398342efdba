//! `/v1/models`, `/health` and `/api/swarm`: what is served, whether it is ready, and the workers.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};

use super::error::ApiError;
use super::state::Api;
use moex_swarm::{Readiness, SwarmStatus};

/// `GET /v1/models`
pub(super) async fn models(State(api): State<Arc<Api>>) -> Json<Value> {
    Json(json!({ "object": "list", "data": [entry(&api)] }))
}

/// `GET /v1/models/{name}`
pub(super) async fn model(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    api.check_model(Some(&name))?;
    Ok(Json(entry(&api)))
}

/// `GET /health`: 200 when a request would be answered, 503 when experts are missing and the hub may not compute them.
/// It answers from what the driver published last, a tenth of a second ago at most, and so never waits for a busy swarm.
pub(super) async fn health(State(api): State<Arc<Api>>) -> (StatusCode, Json<Value>) {
    let Readiness { workers, coverage } = api.readiness();
    let (status, word) = match api.is_ready(coverage) {
        true => (StatusCode::OK, "ok"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "waiting for workers"),
    };
    let body = json!({
        "status": word,
        "model": api.model(),
        "workers": workers,
        "coverage": coverage,
    });
    (status, Json(body))
}

/// `GET /api/swarm`: the status, and whether the hub computes what no worker holds.
pub(super) async fn swarm(State(api): State<Arc<Api>>) -> Json<impl Serialize> {
    #[derive(Serialize)]
    struct Shown {
        #[serde(flatten)]
        status: SwarmStatus,
        hub_compute: bool,
    }
    Json(Shown { status: api.swarm().await, hub_compute: api.hub_compute() })
}

/// The served model as OpenAI lists models; `context_length` is the hub's own addition.
fn entry(api: &Api) -> Value {
    json!({
        "id": api.model(),
        "object": "model",
        "created": api.started_unix_seconds(),
        "owned_by": "moex",
        "context_length": api.context_tokens(),
    })
}
