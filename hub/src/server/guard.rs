//! Checks every request before it is served, and adds security headers to every response.
//!
//! A page of another site can send requests to this machine. The Host check stops it from reading answers by DNS
//! rebinding, and the Origin check from starting work by blind POSTs.

use std::net::SocketAddr;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::response::Response;

use super::Reach;
use crate::api::ApiError;

/// Which requests a listener serves. Ignores `X-Forwarded-*`, which anyone can set.
#[derive(Debug, Clone)]
pub(super) struct Guard {
    bound: SocketAddr,
    reach: Reach,
}

impl Guard {
    pub(super) fn new(bound: SocketAddr, reach: Reach) -> Self {
        Self { bound, reach }
    }

    pub(super) fn check(&self, request: &Request) -> Result<(), ApiError> {
        let host = host(request.headers());
        if self.bound.ip().is_loopback() && !self.is_own_name(host) {
            return Err(ApiError::forbidden(
                "This hub serves only its own machine: open it as localhost, 127.0.0.1 or [::1], or set its name \
                 behind a proxy with --public-url.",
            ));
        }
        let is_socket = request.uri().path() == "/ws";
        let reads = matches!(*request.method(), Method::GET | Method::HEAD) && !is_socket;
        // Browsers let every page open a WebSocket to any host; only the Origin identifies the page. With an API key,
        // no other cross-site request would be served.
        let may_be_foreign =
            reads || (self.reach.has_api_key && !is_socket) || self.reach.cors.allowed(request).is_some();
        if let Some(origin) = request.headers().get(header::ORIGIN)
            && !may_be_foreign
            && !origin.to_str().is_ok_and(|origin| self.is_own_origin(origin, host))
        {
            return Err(ApiError::forbidden(
                "This hub accepts requests from its own pages, not from other sites.",
            ));
        }
        Ok(())
    }

    /// The allowed origin of a cross-site request, if it is one.
    pub(super) fn allowed_origin(&self, request: &Request) -> Option<HeaderValue> {
        self.reach.cors.allowed(request)
    }

    /// The answer to a preflight request.
    pub(super) fn preflight(&self, request: &Request) -> Option<Response> {
        self.reach.cors.preflight(request)
    }

    /// Any port is accepted, since a forwarded one differs from the bound one.
    fn is_own_name(&self, host: &str) -> bool {
        is_loopback_name(host)
            || without_port(host) == without_port(&self.bound.to_string())
            || self.reach.public_url.as_ref().is_some_and(|url| url.is_host(host))
    }

    /// Whether browsers treat a page with this host name as secure even if this hub does not use TLS: the machine's own
    /// name, and that of a proxy with TLS.
    pub(super) fn is_trustworthy_name(&self, request: &Request) -> bool {
        let host = host(request.headers());
        is_loopback_name(host)
            || self.reach.public_url.as_ref().is_some_and(|url| url.is_https() && url.is_host(host))
    }

    fn is_own_origin(&self, origin: &str, host: &str) -> bool {
        let authority = origin.split_once("://").map(|(_, authority)| authority);
        authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host))
            || self.reach.public_url.as_ref().is_some_and(|url| url.is_origin(origin))
    }
}

/// The request's Host, or an empty string.
pub(super) fn host(headers: &HeaderMap) -> &str {
    headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default()
}

/// Whether a Host names the machine that the browser runs on.
pub(super) fn is_loopback_name(host: &str) -> bool {
    let name = without_port(host);
    name.eq_ignore_ascii_case("localhost") || name == "127.0.0.1" || name == "[::1]"
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Adds headers that every response has, unless it sets them itself.
pub(super) fn secure(headers: &mut HeaderMap) {
    for (name, value) in &SECURITY_HEADERS {
        headers.entry(name).or_insert_with(|| value.clone());
    }
}

/// Pages run their own scripts and nothing else (the hash is of the line in each that loads it again, after waits that double; `ws:` since not every browser counts WebSockets as 'self'); isolation (COOP, COEP) gives the join page's worker precise clocks.
static SECURITY_HEADERS: [(HeaderName, HeaderValue); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'self'; script-src 'self' 'wasm-unsafe-eval' 'sha256-LF4JLzp6/Wd6vMHFAM2StMdq0/0lQDpm0meCfGPNlzA='; \
             connect-src 'self' ws: wss:; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
        ),
    ),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-embedder-policy"), HeaderValue::from_static("require-corp")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(bound: &str, key: bool, method: Method, host: &str, origin: Option<&str>) -> bool {
        guarded(
            &Guard::new(bound.parse().unwrap(), Reach { has_api_key: key, ..Reach::default() }),
            method,
            "/",
            host,
            origin,
        )
    }

    fn guarded(guard: &Guard, method: Method, path: &str, host: &str, origin: Option<&str>) -> bool {
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, host);
        if let Some(origin) = origin {
            request = request.header(header::ORIGIN, origin);
        }
        guard.check(&request.body(axum::body::Body::empty()).unwrap()).is_ok()
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
    fn a_name_is_trustworthy_if_browsers_think_so() {
        let reach = Reach {
            public_url: Some("https://moex.example".parse().unwrap()),
            has_api_key: true,
            ..Reach::default()
        };
        let guard = Guard::new("0.0.0.0:8080".parse().unwrap(), reach);
        let trusted = |host| {
            let request = Request::builder().header(header::HOST, host).body(axum::body::Body::empty());
            guard.is_trustworthy_name(&request.unwrap())
        };
        assert!(trusted("localhost:8080") && trusted("127.0.0.1:8080") && trusted("moex.example"));
        assert!(!trusted("10.0.0.7:8080") && !trusted("moex.example:8080"));
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

    #[test]
    fn other_sites_pages_cannot_open_a_socket() {
        for key in [false, true] {
            let guard =
                Guard::new("127.0.0.1:80".parse().unwrap(), Reach { has_api_key: key, ..Reach::default() });
            let open = |origin| guarded(&guard, Method::GET, "/ws", "localhost:80", origin);
            assert!(open(None) && open(Some("http://localhost:80")) && open(Some("https://LOCALHOST:80")));
            assert!(!open(Some("http://evil.example")) && !open(Some("null")) && !open(Some("")));
        }
    }

    #[test]
    fn behind_a_proxy_a_hub_answers_to_its_public_name_too() {
        let reach = Reach { public_url: Some("https://moex.example".parse().unwrap()), ..Reach::default() };
        let guard = Guard::new("127.0.0.1:8080".parse().unwrap(), reach);
        let own = Some("https://moex.example");
        assert!(guarded(&guard, Method::POST, "/v1/chat/completions", "moex.example", own));
        assert!(guarded(&guard, Method::GET, "/ws", "moex.example", own));
        // A proxy that sends its own name on, and the browser's Origin.
        assert!(guarded(&guard, Method::POST, "/v1/chat/completions", "127.0.0.1:8080", own));
        assert!(!guarded(&guard, Method::GET, "/", "evil.example", None));
        assert!(!guarded(&guard, Method::GET, "/ws", "moex.example", Some("https://evil.example")));
    }
}
