//! The HTTP server: every route in one place, what each request passes, and how it all ends.
//!
//! What lives here: a hub put together from its parts ([`Hub`]), and [`run`], which owns its sockets. What does not:
//! what a route answers (`api`, `web`, `net`).

mod guard;
mod hub;

#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn_with_state;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

pub(crate) use hub::summary;
pub use hub::{Hub, HubConfig, OpenError};

use crate::{api, net, web};
use guard::Guard;

/// How long answers under way may still take once the hub is told to stop.
pub const DRAIN_DEADLINE: Duration = Duration::from_secs(10);

/// Serves `hub` on `listener` until `shutdown`; then answers under way may end, for [`DRAIN_DEADLINE`] at most.
///
/// # Errors
/// If the listener fails.
pub async fn run(
    listener: TcpListener,
    hub: Hub,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let Hub { api, swarm, .. } = hub;
    let bound = listener.local_addr()?;
    let guard = Arc::new(Guard::new(bound, api.has_key()));
    let api = api.reached_by(origins(bound));
    let app = Router::new()
        .merge(web::router())
        .merge(api::router(Arc::new(api)))
        .merge(swarm.router())
        .fallback(api::no_such_path)
        .method_not_allowed_fallback(api::wrong_method)
        .layer(from_fn_with_state(guard, guard::guard));
    let (stopping, stopped) = oneshot::channel();
    let shutdown = async move {
        shutdown.await;
        // The other end is gone only when serving has ended by itself.
        let _ = stopping.send(());
    };
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    let serving = axum::serve(net::listener(listener), service).with_graceful_shutdown(shutdown);
    let served = tokio::select! {
        served = serving => served,
        () = deadline(stopped) => Ok(()),
    };
    swarm.shut_down().await;
    served
}

/// By which origins other machines reach a socket; none if it is bound to loopback.
fn origins(bound: SocketAddr) -> Vec<String> {
    let addresses = match bound.ip() {
        ip if !ip.is_unspecified() => vec![ip],
        // Without a list there are no links but the visitor's own.
        _ => if_addrs::get_if_addrs().unwrap_or_default().iter().map(if_addrs::Interface::ip).collect(),
    };
    let reaches_others = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
        IpAddr::V6(ip) => bound.is_ipv6() && !ip.is_loopback() && !ip.is_unicast_link_local(),
    };
    let origin = |ip| format!("http://{}", SocketAddr::new(ip, bound.port()));
    addresses.into_iter().filter(reaches_others).map(origin).collect()
}

/// Ends [`DRAIN_DEADLINE`] after the hub was told to stop.
async fn deadline(stopped: oneshot::Receiver<()>) {
    match stopped.await {
        Ok(()) => tokio::time::sleep(DRAIN_DEADLINE).await,
        Err(_) => std::future::pending().await,
    }
}

/// Resolves when the process is asked to end: Ctrl-C, or SIGTERM where there are signals.
pub async fn stop_signal() {
    let interrupted = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    let terminated = async {
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(mut signal) => drop(signal.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminated = std::future::pending::<()>();
    tokio::select! {
        () = interrupted => {}
        () = terminated => {}
    }
}
