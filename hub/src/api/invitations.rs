//! Invitations: join tokens for one worker each, by name. `GET /api/join?name=NAME` gives the links of one; they are made from the
//! hub's own token and the name, so asking again gives the same.
//!
//! `GET /api/join/revoked` lists those that admit nobody any more; `POST` with `{"name": NAME}` adds one, and its worker is let go.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use moex_swarm::MAX_INVITATION_NAME_BYTES;
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::ApiError;
use super::state::Api;

#[derive(Deserialize)]
struct Named {
    name: String,
}

/// The token of the invitation of this name.
pub(super) fn token(api: &Api, name: &str) -> Result<String, ApiError> {
    let token = api.invitations().invitation(name).ok_or_else(no_name)?;
    if api.invitations().revoked().iter().any(|revoked| revoked == name) {
        let message = format!("The invitation {name} was revoked: choose another name.");
        return Err(ApiError::invalid("name", message));
    }
    Ok(token)
}

/// Handler: the names of all revoked invitations.
pub(super) async fn revoked(State(api): State<Arc<Api>>) -> Json<Value> {
    Json(json!({ "revoked": api.invitations().revoked() }))
}

/// Handler: revokes an invitation, whether or not anyone has used it.
pub(super) async fn revoke(State(api): State<Arc<Api>>, body: Bytes) -> Result<Json<Value>, ApiError> {
    let named: Named = serde_json::from_slice(&body).map_err(|error| {
        ApiError::invalid("name", format!("The body must be {{\"name\": NAME}}: {error}."))
    })?;
    if api.invitations().invitation(&named.name).is_none() {
        return Err(no_name());
    }
    let revoked = api.invitations().revoke(&named.name).await;
    revoked.map_err(|error| ApiError::unavailable("not_revoked", format!("It was not revoked: {error}.")))?;
    Ok(Json(json!({ "revoked": api.invitations().revoked() })))
}

fn no_name() -> ApiError {
    let message =
        format!("An invitation's name has 1 to {MAX_INVITATION_NAME_BYTES} letters, digits, - or _.");
    ApiError::invalid("name", message)
}
