//! Errors of the API: one sentence each, in OpenAI's format.
//!
//! A handler returns an [`ApiError`]; no other code maps failures to HTTP statuses. Failures of the swarm:
//! | the swarm | status | `code` | the client |
//! |---|---|---|---|
//! | has as many layers in flight as it allows | 503, `Retry-After: 1` | `swarm_busy` | retries |
//! | has no worker for an expert, and the hub does not compute | 503, `Retry-After: 5` | `experts_missing` | retries when workers have joined |
//! | is stopping | 503, `Retry-After: 5` | `stopping` | retries |
//! | failed: a result is not finite, or the hub could not compute | 500 | `swarm_failed` | does not retry |

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// A failed request: its HTTP status and the fields of OpenAI's `error` object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    message: String,
    param: Option<&'static str>,
    code: Option<&'static str>,
    retry_after_seconds: Option<u32>,
}

impl ApiError {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None, retry_after_seconds: None }
    }

    /// 400: a field is invalid; `param` names it.
    pub fn invalid(param: &'static str, message: impl Into<String>) -> Self {
        Self {
            param: Some(param),
            code: Some("invalid_value"),
            ..Self::new(StatusCode::BAD_REQUEST, message)
        }
    }

    /// 400: a field of OpenAI's API that this server does not support; ignoring it would mislead.
    pub fn unsupported(param: &'static str, message: impl Into<String>) -> Self {
        Self { code: Some("unsupported_parameter"), ..Self::invalid(param, message) }
    }

    /// The same error for another field.
    #[must_use]
    pub fn about(self, param: &'static str) -> Self {
        Self { param: Some(param), ..self }
    }

    /// 504: the answer exceeded the hub's time limit.
    pub fn timed_out() -> Self {
        Self {
            code: Some("request_timeout"),
            ..Self::new(
                StatusCode::GATEWAY_TIMEOUT,
                "The answer took longer than this hub allows (--request-timeout): ask for fewer tokens.",
            )
        }
    }

    /// 501: a feature that this server does not have.
    pub fn not_done(message: impl Into<String>) -> Self {
        Self { code: Some("not_supported"), ..Self::new(StatusCode::NOT_IMPLEMENTED, message) }
    }

    /// 400: the body is not JSON.
    pub fn malformed(message: impl Into<String>) -> Self {
        Self { code: Some("invalid_json"), ..Self::new(StatusCode::BAD_REQUEST, message) }
    }

    /// 400: prompt and answer do not fit the context, counted in tokens.
    pub fn too_long(prompt_tokens: usize, context_tokens: usize) -> Self {
        Self {
            code: Some("context_length_exceeded"),
            ..Self::invalid(
                "messages",
                format!(
                    "The prompt has {prompt_tokens} tokens; this model's context holds {context_tokens}, \
                     of which one at least is the answer's."
                ),
            )
        }
    }

    /// 400: the prompt is too long even to tokenise.
    pub fn too_long_to_count(prompt_bytes: usize, context_tokens: usize) -> Self {
        Self {
            code: Some("context_length_exceeded"),
            ..Self::invalid(
                "messages",
                format!(
                    "The prompt has {prompt_bytes} bytes, which is more than this model's context of {context_tokens} \
                     tokens can hold."
                ),
            )
        }
    }

    /// 401: the API key is missing or wrong.
    pub fn unauthorized() -> Self {
        Self {
            code: Some("invalid_api_key"),
            ..Self::new(
                StatusCode::UNAUTHORIZED,
                "This hub needs an API key: send it as \"Authorization: Bearer KEY\".",
            )
        }
    }

    /// 403: a browser's request that did not come from this hub's own pages.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self { code: Some("forbidden"), ..Self::new(StatusCode::FORBIDDEN, message) }
    }

    /// 404: a path that is not served.
    pub fn no_such_path(path: &str) -> Self {
        Self {
            code: Some("unknown_url"),
            ..Self::new(StatusCode::NOT_FOUND, format!("Nothing is served at {path}."))
        }
    }

    /// 404: a model that is not served.
    pub fn no_such_model(asked: &str, served: &str) -> Self {
        Self {
            param: Some("model"),
            code: Some("model_not_found"),
            ..Self::new(
                StatusCode::NOT_FOUND,
                format!("The model {asked:?} is not served here; ask for {served:?} or \"default\"."),
            )
        }
    }

    /// 405: a path asked with a method it does not have.
    pub fn wrong_method(method: &str, path: &str) -> Self {
        Self {
            code: Some("method_not_allowed"),
            ..Self::new(StatusCode::METHOD_NOT_ALLOWED, format!("{path} does not take {method}."))
        }
    }

    /// 413: the body is larger than the limit.
    pub fn body_too_large(limit_bytes: usize) -> Self {
        Self {
            code: Some("body_too_large"),
            ..Self::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("The request body is larger than the limit of {limit_bytes} bytes."),
            )
        }
    }

    /// 429: the queue of waiting requests is full.
    pub fn queue_full() -> Self {
        Self {
            code: Some("queue_full"),
            retry_after_seconds: Some(1),
            ..Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                "The hub's queue of requests is full; try again shortly.",
            )
        }
    }

    /// 503: the swarm has as many layers in flight as it allows.
    pub fn swarm_busy(message: impl Into<String>) -> Self {
        Self { retry_after_seconds: Some(1), ..Self::unavailable("swarm_busy", message) }
    }

    /// 503: no worker holds an expert, and the hub does not compute.
    pub fn uncovered(message: impl Into<String>) -> Self {
        Self::unavailable("experts_missing", message)
    }

    /// 500: the swarm could not compute a layer; a retry would not help.
    pub fn swarm_failed(message: impl Into<String>) -> Self {
        Self { code: Some("swarm_failed"), ..Self::internal(message) }
    }

    /// 503: the hub is stopping, or out of a resource.
    pub fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code: Some(code),
            retry_after_seconds: Some(5),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
        }
    }

    /// 500: an internal failure of the hub.
    pub fn internal(message: impl Into<String>) -> Self {
        Self { code: Some("internal_error"), ..Self::new(StatusCode::INTERNAL_SERVER_ERROR, message) }
    }

    /// The error's sentence.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The body: `{"error": {"message", "type", "param", "code"}}`.
    pub fn body(&self) -> Value {
        json!({ "error": {
            "message": self.message, "type": self.kind(), "param": self.param, "code": self.code,
        }})
    }

    /// OpenAI's `type`, which follows from the status.
    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_has_openais_shape() {
        let error = ApiError::invalid("top_p", "top_p must be a number from 0 to 1.");
        assert_eq!(
            error.body(),
            json!({"error": {
                "message": "top_p must be a number from 0 to 1.",
                "type": "invalid_request_error", "param": "top_p", "code": "invalid_value",
            }})
        );
    }

    #[test]
    fn what_the_swarm_cannot_do_has_a_status_each() {
        let said = |error: ApiError| {
            let code = error.body()["error"]["code"].as_str().map(str::to_owned);
            (error.status().as_u16(), code, error.retry_after_seconds)
        };
        let code = |code: &str| Some(code.to_owned());
        assert_eq!(said(ApiError::swarm_busy("")), (503, code("swarm_busy"), Some(1)));
        assert_eq!(said(ApiError::uncovered("")), (503, code("experts_missing"), Some(5)));
        assert_eq!(said(ApiError::swarm_failed("")), (500, code("swarm_failed"), None));
    }

    #[test]
    fn a_full_queue_says_when_to_come_back() {
        let response = ApiError::queue_full().into_response();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
    }
}
