//! Restricts the swarm's status and the join token to the hub's own machine if the hub has no API key.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;

use super::error::ApiError;
use super::join::is_loopback_host;
use super::state::Api;

/// Allows requests with the API key, which was checked before, and requests from this machine.
pub(super) async fn check(
    State(api): State<Arc<Api>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if !api.has_key() && !is_from_own_machine(&request) {
        return Err(ApiError::forbidden(
            "Without an API key this hub shows swarm and join links to its own machine only: start it with --api-key.",
        ));
    }
    Ok(next.run(request).await)
}

/// Whether the request comes from this machine, under a name of this machine.
pub(crate) fn is_from_own_machine(request: &Request) -> bool {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0);
    let named = request.uri().authority().map(Authority::as_str);
    is_own_machine(peer, named, request.headers())
}

/// A proxy on this machine also connects from loopback, for anyone: its headers or the host name reveal it.
fn is_own_machine(peer: Option<SocketAddr>, named: Option<&str>, headers: &HeaderMap) -> bool {
    let is_forwarded =
        ["forwarded", "x-forwarded-for", "x-real-ip", "via"].iter().any(|name| headers.contains_key(*name));
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).or(named);
    let is_own_name = host
        .and_then(|host| host.parse::<Authority>().ok())
        .is_some_and(|authority| is_loopback_host(authority.host()));
    peer.is_some_and(|peer| peer.ip().to_canonical().is_loopback()) && is_own_name && !is_forwarded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(peer: &str, headers: &[(&'static str, &'static str)]) -> bool {
        let headers =
            headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        is_own_machine(Some(peer.parse().unwrap()), None, &headers)
    }

    #[test]
    fn only_this_machine_under_its_own_name_and_without_a_proxy_is_let_in() {
        for host in ["localhost:8080", "127.0.0.1", "127.0.0.1:8080", "[::1]:8080"] {
            assert!(own("127.0.0.1:5", &[("host", host)]), "{host}");
            assert!(
                own("[::1]:5", &[("host", host)]) && own("[::ffff:127.0.0.1]:5", &[("host", host)]),
                "{host}"
            );
            assert!(!own("10.0.0.7:5", &[("host", host)]), "a stranger that claims {host}");
            assert!(!own("127.0.0.1:5", &[("host", host), ("x-forwarded-for", "10.0.0.7")]), "by a proxy");
        }
        assert!(!own("127.0.0.1:5", &[("host", "hub.example")]), "a proxy that keeps the name");
        assert!(!own("127.0.0.1:5", &[]), "no name");
        let headers = [(header::HOST, "localhost".parse().unwrap())].into_iter().collect();
        assert!(!is_own_machine(None, None, &headers), "nobody knows who asks");
    }
}
