//! JSON over HTTP: the OpenAI-compatible API, the hub's health, and the swarm's status as JSON and as Prometheus text.
//!
//! This module parses requests and formats answers, errors and event streams. Sockets and common response headers are
//! in `server`, the pages in `web`, generation in `engine`.
//!
//! A request names the model by its served name, as `default`, or not at all. Any other name is an error, so that a
//! client configured for another server notices.

mod anthropic;
mod auth;
mod blocks;
mod chat;
mod completions;
mod counters;
mod engine_metrics;
mod error;
mod fields;
#[doc(hidden)]
pub mod fuzzing;
mod generate;
mod grammar;
mod headers;
mod invitations;
mod join;
mod logprobs;
mod metrics;
mod openapi;
mod output;
mod own_machine;
mod parameters;
mod prediction;
mod prompts;
mod props;
mod queue;
mod render;
mod reply;
mod request;
mod responses;
mod state;
mod status;
mod tokens;
mod work;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{Method, Uri};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

pub use auth::ApiKey;
pub use error::ApiError;
pub use grammar::check_grammar;
pub(crate) use own_machine::is_from_own_machine;
pub use state::{Api, ApiParts};

/// Maximum size of a request body.
pub const MAX_BODY_BYTES: usize = 4 << 20;

/// Routes of the API. All but `/health` need the API key, if there is one; without one, the swarm's status and join
/// links are for programs on the hub's own machine alone.
pub fn router(api: Arc<Api>) -> Router {
    let private = Router::new()
        .route("/api/join", get(join::join))
        .route("/api/join/revoked", get(invitations::revoked).post(invitations::revoke))
        .route("/api/swarm", get(status::swarm))
        .route("/api/swarm/experts", get(status::experts))
        .route("/metrics", get(metrics::metrics))
        .route_layer(from_fn_with_state(api.clone(), own_machine::check));
    let guarded = private
        .route("/v1/chat/completions", post(chat::complete))
        .route("/openapi.json", get(openapi::openapi))
        .route("/v1/responses", post(responses::respond))
        .route("/v1/messages", post(anthropic::create))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .route("/v1/completions", post(completions::complete))
        .route("/v1/embeddings", post(props::embeddings))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/apply-template", post(tokens::apply_template))
        .route("/props", get(props::props))
        .route("/slots", get(props::slots))
        .route("/v1/models", get(status::models))
        .route("/v1/models/{*name}", get(status::model))
        .route_layer(from_fn_with_state(api.clone(), check_key))
        // The handler refuses larger bodies, with a better message.
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES));
    Router::new()
        .route("/health", get(status::health))
        .merge(guarded)
        .layer(from_fn(headers::name_request))
        .with_state(api)
}

/// Handles paths without a route.
pub async fn no_such_path(uri: Uri) -> ApiError {
    ApiError::no_such_path(uri.path())
}

/// Handles paths whose route has other methods.
pub async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    ApiError::wrong_method(method.as_str(), uri.path())
}

async fn check_key(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    match api.check_key(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refused) if request.uri().path().starts_with("/v1/messages") => {
            anthropic::Refusal::from(refused).into_response()
        }
        Err(refused) => refused.into_response(),
    }
}
