//! Lets pages of other sites use the API (CORS), as `--cors-origin` allows.
//!
//! The hub's own pages, the swarm's status and the join links are never available to other sites.

use std::str::FromStr;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// Paths that pages of other sites may use.
const PATHS: [&str; 7] =
    ["/tokenize", "/detokenize", "/apply-template", "/props", "/slots", "/health", "/openapi.json"];
/// How long a browser caches the permission, in seconds.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

/// The allowed origins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CorsOrigins(pub Vec<CorsOrigin>);

/// `http://host:port`, or `*` for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorsOrigin(String);

impl FromStr for CorsOrigin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
        let is_origin = host.is_some_and(|host| {
            !host.is_empty() && host.bytes().all(|b| b.is_ascii_graphic() && !b"/?#@,".contains(&b))
        });
        match text == "*" || is_origin {
            true => Ok(Self(text.to_ascii_lowercase())),
            false => Err("must be an origin such as https://chat.example:8443, or *".to_owned()),
        }
    }
}

impl CorsOrigins {
    /// The allowed origin of a cross-site request, if it is one.
    pub(super) fn allowed(&self, request: &Request) -> Option<HeaderValue> {
        let path = request.uri().path();
        if !path.starts_with("/v1/") && !PATHS.contains(&path) {
            return None;
        }
        let origin = request.headers().get(header::ORIGIN)?;
        let text = origin.to_str().ok()?;
        let allows = |allowed: &CorsOrigin| allowed.0 == "*" || allowed.0.eq_ignore_ascii_case(text);
        self.0.iter().any(allows).then(|| origin.clone())
    }

    /// The answer to a preflight request.
    pub(super) fn preflight(&self, request: &Request) -> Option<Response> {
        let asks = request.method() == Method::OPTIONS
            && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        self.allowed(request).filter(|_| asks)?;
        let mut response = StatusCode::NO_CONTENT.into_response();
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, OPTIONS"));
        // Allows the requested headers: client libraries send a dozen of their own.
        if let Some(asked) = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
        }
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
        Some(response)
    }
}

/// Adds the headers that let the browser pass the answer to the page.
pub(super) fn tell(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(
        header::ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static("x-request-id, x-moex-ignored, retry-after"),
    );
    headers.append(header::VARY, HeaderValue::from_static("Origin"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_a_scheme_and_a_host() {
        for good in ["*", "http://localhost:3000", "https://chat.example"] {
            assert!(good.parse::<CorsOrigin>().is_ok(), "{good}");
        }
        for bad in
            ["", "chat.example", "https://", "https://a/b", "ftp://a", "https://a b", "https://a,https://b"]
        {
            assert!(bad.parse::<CorsOrigin>().is_err(), "{bad}");
        }
    }
}
