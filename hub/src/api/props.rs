//! `/props` and `/slots` in the format of llama.cpp's server, and the refusal of `/v1/embeddings`.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::error::ApiError;
use super::request::SamplingFields;
use super::state::Api;

/// `GET /props`: the model, its template, and its default sampling parameters.
pub(super) async fn props(State(api): State<Arc<Api>>) -> Json<Value> {
    let sampling = api.sampling(&SamplingFields::default(), 0);
    Json(json!({
        "default_generation_settings": {
            "n_ctx": api.context_tokens(),
            "params": {
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
                "min_p": sampling.min_p,
                "repeat_penalty": sampling.repetition_penalty,
                "presence_penalty": sampling.presence_penalty,
                "frequency_penalty": sampling.frequency_penalty,
            },
        },
        "total_slots": api.n_slots(),
        "model_alias": api.model(),
        "modalities": { "vision": false, "audio": false },
        "chat_template": api.template(),
        "build_info": concat!("moex ", env!("CARGO_PKG_VERSION")),
    }))
}

/// `GET /slots`: the slots for concurrent sequences, and which are in use.
pub(super) async fn slots(State(api): State<Arc<Api>>) -> Json<Value> {
    let running = api.counters.running.load(Relaxed);
    let slot = |id: u64| json!({ "id": id, "n_ctx": api.context_tokens(), "speculative": false, "is_processing": id < running });
    Json((0..api.n_slots() as u64).map(slot).collect())
}

/// `POST /v1/embeddings`
pub(super) async fn embeddings() -> ApiError {
    ApiError::not_done(
        "This server writes text and makes no embeddings: ask a server that serves an embedding model.",
    )
}
