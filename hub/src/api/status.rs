//! `/v1/models`, `/health`, `/api/swarm` and `/api/swarm/experts`: the model, the hub's readiness, and the workers.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};

use super::error::ApiError;
use super::prediction::Prediction;
use super::state::Api;
use moex_model::mapped;
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

/// `GET /health`: 200 if requests can be answered, 503 if experts are missing and the hub may not compute them, or a file of
/// the model was cut short. Reads
/// what the driver last published, at most a tenth of a second ago, so it never waits for a busy swarm.
pub(super) async fn health(State(api): State<Arc<Api>>) -> (StatusCode, Json<Value>) {
    let Readiness { workers, coverage } = api.readiness();
    let (status, word) = match (mapped::check(), api.is_ready(coverage)) {
        (Err(cut_short), _) => (StatusCode::SERVICE_UNAVAILABLE, cut_short.to_string()),
        (Ok(()), true) => (StatusCode::OK, "ok".to_owned()),
        (Ok(()), false) => (StatusCode::SERVICE_UNAVAILABLE, "waiting for workers".to_owned()),
    };
    let body = json!({
        "status": word,
        "model": api.model(),
        "workers": workers,
        "coverage": coverage,
    });
    (status, Json(body))
}

/// `GET /api/swarm`: the swarm's status, whether the hub computes missing experts, the engine's counters, and what the
/// latency model predicts. Two
/// responses give a rate: all counts are from the time `at_micros`, by the hub's clock.
pub(super) async fn swarm(State(api): State<Arc<Api>>) -> Json<impl Serialize> {
    #[derive(Serialize)]
    struct Shown {
        #[serde(flatten)]
        status: SwarmStatus,
        hub_compute: bool,
        engine: EngineStatus,
        prediction: Prediction,
        at_micros: u64,
    }
    #[derive(Serialize)]
    struct EngineStatus {
        rows: u64,
        tokens: u64,
        steps: u64,
        step_micros: u64,
        waited_micros: u64,
        requests_running: u64,
        requests_waiting: u64,
    }
    let status = api.swarm().await;
    let (counts, requests) = (api.engine.counts(), &api.counters);
    let engine = EngineStatus {
        rows: counts.rows(),
        tokens: counts.tokens(),
        steps: counts.steps(),
        step_micros: counts.stepped().as_micros() as u64,
        waited_micros: counts.waited().as_micros() as u64,
        requests_running: requests.running.load(Relaxed),
        requests_waiting: requests.waiting.load(Relaxed),
    };
    let prediction = api.predictor.predict(counts, &status);
    let at_micros = api.age().as_micros() as u64;
    Json(Shown { status, hub_compute: api.hub_compute(), engine, prediction, at_micros })
}

/// `GET /api/swarm/experts`: for each expert of each layer, the number of usable workers that hold it, and how often it
/// is used.
pub(super) async fn experts(State(api): State<Arc<Api>>) -> Json<Value> {
    let SwarmStatus { coverage, experts, .. } = api.swarm().await;
    Json(json!({ "replicas": coverage.replicas, "layers": experts }))
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
