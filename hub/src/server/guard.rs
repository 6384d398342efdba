//! What every request passes before it is served, and what every response carries: the browser's side of security.
//!
//! A page of another site can send requests to this machine. It must not get answers by giving this hub's address its own
//! name (DNS rebinding: the Host check), nor start work by posting blindly (the Origin check).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::api::ApiError;

/// Which requests a listener serves.
#[derive(Debug, Clone)]
pub(super) struct Guard {
    bound: SocketAddr,
    /// With an API key another site's page has nothing to send that would be served.
    has_api_key: bool,
}

impl Guard {
    pub(super) fn new(bound: SocketAddr, has_api_key: bool) -> Self {
        Self { bound, has_api_key }
    }

    fn check(&self, method: &Method, headers: &HeaderMap) -> Result<(), ApiError> {
        let host = text(headers, &header::HOST).unwrap_or_default();
        if self.bound.ip().is_loopback() && !self.is_own_name(host) {
            return Err(ApiError::forbidden(
                "This hub serves its own machine: open it as localhost, 127.0.0.1 or [::1].",
            ));
        }
        let reads = matches!(*method, Method::GET | Method::HEAD);
        if !reads && !self.has_api_key && headers.contains_key(header::ORIGIN) {
            let origin = text(headers, &header::ORIGIN).and_then(|origin| origin.split_once("://"));
            if !origin.is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host)) {
                return Err(ApiError::forbidden(
                    "This hub takes requests from its own pages, not from other sites'.",
                ));
            }
        }
        Ok(())
    }

    /// Any port will do: a forwarded one differs from the bound one.
    fn is_own_name(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let bound = match self.bound.ip() {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        name.eq_ignore_ascii_case("localhost") || name == "127.0.0.1" || name == "[::1]" || name == bound
    }
}

/// The middleware.
pub(super) async fn guard(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let mut response = match guard.check(request.method(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    };
    let headers = response.headers_mut();
    for (name, value) in &SECURITY_HEADERS {
        headers.insert(name.clone(), value.clone());
    }
    response
}

/// Pages run their own scripts and nothing else (`ws:` since not every browser counts WebSockets as 'self'); isolation (COOP, COEP) gives the join page's worker precise clocks.
static SECURITY_HEADERS: [(HeaderName, HeaderValue); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self' ws: wss:; object-src 'none'; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        ),
    ),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-embedder-policy"), HeaderValue::from_static("require-corp")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
];

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(bound: &str, key: bool, method: Method, host: &str, origin: Option<&str>) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        Guard::new(bound.parse().unwrap(), key).check(&method, &headers).is_ok()
    }

    #[test]
    fn a_loopback_hub_answers_to_its_own_names_only() {
        for host in ["localhost", "LocalHost:9", "127.0.0.1:8080", "127.0.0.1", "[::1]:8080", "[::1]"] {
            assert!(allowed("127.0.0.1:8080", false, Method::GET, host, None), "{host}");
        }
        for host in
            ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil", "127.0.0.2", ""]
        {
            assert!(!allowed("127.0.0.1:8080", false, Method::GET, host, None), "{host}");
        }
        assert!(allowed("127.0.0.2:8080", false, Method::GET, "127.0.0.2:8080", None));
        assert!(allowed("0.0.0.0:8080", true, Method::GET, "hub.example", None));
    }

    #[test]
    fn other_sites_pages_cannot_post() {
        let post = |key, origin| allowed("127.0.0.1:80", key, Method::POST, "localhost:80", origin);
        assert!(post(false, None));
        assert!(post(false, Some("http://localhost:80")));
        assert!(!post(false, Some("http://evil.example")));
        assert!(!post(false, Some("null")));
        assert!(post(true, Some("http://evil.example")));
        assert!(allowed("127.0.0.1:80", false, Method::GET, "localhost:80", Some("http://evil.example")));
    }
}
