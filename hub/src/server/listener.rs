//! Listeners of a hub, and which part of the hub each serves.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, Uri, header};
use axum::response::{IntoResponse, Redirect, Response};
use tokio::net::TcpListener;

use super::guard;
use crate::access::addresses;
use crate::api::{self, ApiError};
use crate::net;

/// A bound socket.
pub struct Listener {
    /// Already listening.
    pub tcp: TcpListener,
    /// TLS configuration; none for plain HTTP. Only HTTP/1.1 is used, which WebSocket needs.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// What it serves.
    pub surface: Surface,
}

impl Listener {
    /// Plain HTTP, serving the whole hub.
    pub fn plain(tcp: TcpListener) -> Self {
        Self { tcp, tls: None, surface: Surface::Everything }
    }
}

/// The part of the hub that a listener serves.
pub enum Surface {
    /// The whole hub.
    Everything,
    /// Plain HTTP beside HTTPS: only what needs no secret.
    Plain(PlainPort),
}

/// The plain port of a hub that others reach by HTTPS: its own pages, and what a tab needs to join. It redirects
/// everything else to the HTTPS port, except requests from this machine itself.
pub struct PlainPort {
    pages: Router,
}

/// Paths that a tab or a native worker needs to join.
const JOINING: [&str; 6] = ["/join", "/bench", "/api/terms", "/ws", "/health", "/worker"];
/// Folders that they need.
const JOINING_FOLDERS: [&str; 5] = ["/join/", "/bench/", "/worker/", "/assets/", "/shards/"];
/// Paths for programs, not for browsers.
const FOR_PROGRAMS: [&str; 3] = ["/v1/", "/api/", "/metrics"];

impl PlainPort {
    /// A plain port with its own `pages`, including `/`, beside a hub with HTTPS on `https_port`.
    pub fn new(pages: Router, https_port: u16) -> Self {
        let elsewhere = move |method: Method, uri: Uri, headers: HeaderMap| async move {
            elsewhere(https_port, &method, &uri, &headers)
        };
        Self { pages: pages.fallback(elsewhere) }
    }

    /// Whether the hub itself answers this request.
    pub(super) fn lets_through(&self, request: &Request) -> bool {
        let path = request.uri().path();
        JOINING.contains(&path)
            || JOINING_FOLDERS.iter().any(|folder| path.starts_with(folder))
            || api::is_from_own_machine(request)
    }

    pub(super) async fn answer(&self, request: Request) -> Response {
        net::call(self.pages.clone())(request).await
    }
}

/// Origins by which other machines reach these listeners, TLS first; empty if they are bound to loopback.
pub(super) fn origins(listeners: &[Listener]) -> io::Result<Vec<String>> {
    let mut origins = Vec::new();
    for (is_tls, scheme) in [(true, "https"), (false, "http")] {
        for listener in listeners.iter().filter(|listener| listener.tls.is_some() == is_tls) {
            let bound = listener.tcp.local_addr()?;
            let origin = |ip| format!("{scheme}://{}", SocketAddr::new(ip, bound.port()));
            origins.extend(addresses::reachable(bound.ip()).into_iter().map(origin));
        }
    }
    Ok(origins)
}

fn elsewhere(https_port: u16, method: &Method, uri: &Uri, headers: &HeaderMap) -> Response {
    let Ok(host) = guard::host(headers).parse::<Authority>() else {
        return ApiError::forbidden(
            "This port is only for joining: everything else is on the hub's https address.",
        )
        .into_response();
    };
    let address = format!("https://{}:{https_port}", host.host());
    let is_for_programs = FOR_PROGRAMS
        .iter()
        .any(|path| uri.path().starts_with(path) || path.strip_suffix('/') == Some(uri.path()));
    if is_for_programs || !matches!(*method, Method::GET | Method::HEAD) {
        return ApiError::forbidden(format!(
            "This port is only for joining: use {address}{} instead.",
            uri.path()
        ))
        .into_response();
    }
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    // Not cached, since another hub may use this address later.
    let mut response = Redirect::temporary(&format!("{address}{path}")).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
    response
}
