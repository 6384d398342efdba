//! The HTTP server: collects all routes, applies the checks common to all requests, and shuts down.
//!
//! It assembles a hub from its parts ([`Hub`]) and owns its sockets ([`Server`]). The routes' answers are in `api`,
//! `web` and `net`; accepting and limiting connections is in `net`.

mod cors;
mod guard;
mod hub;
mod listener;
mod loading;
mod public_url;

#[cfg(test)]
mod tests;

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

pub use cors::{CorsOrigin, CorsOrigins};
pub(crate) use hub::summary;
pub use hub::{Hub, HubConfig, OpenError, Reach};
pub use listener::{Listener, PlainPort, Surface};
pub use loading::Loading;
pub use public_url::PublicUrl;

use crate::{api, net, web};
use guard::Guard;

/// How long answers under way may still take once the hub is told to stop.
pub const DRAIN_DEADLINE: Duration = Duration::from_secs(10);

/// Listeners that are answered. Dropping it closes them.
pub struct Server {
    stop: watch::Sender<bool>,
    accepting: JoinSet<()>,
    app: Arc<OnceLock<Router>>,
    loading: Loading,
    /// By which origins others reach the hub, the best first.
    origins: Vec<String>,
}

/// Listeners that are answered by a hub. Dropping it closes them.
pub struct Serving {
    stop: watch::Sender<bool>,
    accepting: JoinSet<()>,
    swarm: net::SwarmServer,
}

/// What one listener answers with.
struct Site {
    guard: Guard,
    is_tls: bool,
    surface: Surface,
    /// The hub's routes, once it is ready.
    app: Arc<OnceLock<Router>>,
    /// What is answered until then.
    loading: Router,
}

impl Server {
    /// Accepts on the listeners from now on, for the hub that is reached so. Until [`Self::ready`] has it, everybody is
    /// told how far [`Self::loading`] is.
    ///
    /// # Errors
    /// If a listener has no address.
    pub fn start(listeners: Vec<Listener>, reach: &Reach) -> io::Result<Self> {
        let (stop, stopping) = watch::channel(false);
        let limit = net::ConnectionLimit::for_this_process();
        let (app, loading) = (Arc::new(OnceLock::new()), Loading::default());
        let mut accepting = JoinSet::new();
        let mut origins = listener::origins(&listeners)?;
        if let Some(url) = &reach.public_url {
            origins = vec![url.to_string()];
        }
        for Listener { tcp, tls, surface } in listeners {
            let guard = Guard::new(tcp.local_addr()?, reach.clone());
            let until_then = loading.clone();
            let until_then = web::files().fallback(async move |request: Request| until_then.answer(&request));
            let is_tls = tls.is_some();
            let site = Arc::new(Site { guard, is_tls, surface, app: app.clone(), loading: until_then });
            let answer = move |request| {
                let site = site.clone();
                async move { site.answer(request).await }
            };
            let on = net::AcceptOn { tcp, tls: tls.map(|tls| http_1(&tls)), answer };
            accepting.spawn(net::accept(on, limit.clone(), stopping.clone()));
        }
        Ok(Self { stop, accepting, app, loading, origins })
    }

    /// Where whoever loads the hub says how far it is.
    pub fn loading(&self) -> Loading {
        self.loading.clone()
    }

    /// Answers with `hub` from now on.
    pub fn ready(self, hub: Hub) -> Serving {
        let Self { stop, accepting, app, origins, .. } = self;
        let Hub { api, swarm, .. } = hub;
        let routes = Router::new()
            .merge(web::router())
            .merge(api::router(Arc::new(api.reached_by(origins))))
            .merge(swarm.router())
            .fallback(api::no_such_path)
            .method_not_allowed_fallback(api::wrong_method);
        app.get_or_init(|| routes);
        Serving { stop, accepting, swarm }
    }
}

impl Serving {
    /// Serves until `shutdown`; then answers under way may end, for [`DRAIN_DEADLINE`] at most.
    ///
    /// # Errors
    /// If accepting ends by itself.
    pub async fn until(mut self, shutdown: impl Future<Output = ()>) -> io::Result<()> {
        let served = tokio::select! {
            () = shutdown => Ok(()),
            Some(ended) = self.accepting.join_next() => Err(ended.err().map_or_else(
                || io::Error::other("connections are accepted no longer"),
                io::Error::other,
            )),
        };
        self.stop.send_replace(true);
        // Those that take longer are cut off with the set.
        let _ = timeout(DRAIN_DEADLINE, async { while self.accepting.join_next().await.is_some() {} }).await;
        self.swarm.shut_down().await;
        served
    }
}

/// Serves `hub` on `listeners` until `shutdown`: [`Server::start`] and [`Serving::until`] for a hub that is ready.
///
/// # Errors
/// If a listener fails.
pub async fn run(listeners: Vec<Listener>, hub: Hub, shutdown: impl Future<Output = ()>) -> io::Result<()> {
    Server::start(listeners, hub.reach())?.ready(hub).until(shutdown).await
}

impl Site {
    async fn answer(&self, request: Request) -> Response {
        let is_trustworthy = self.is_tls || self.guard.is_trustworthy_name(&request);
        let foreign = self.guard.allowed_origin(&request);
        let mut response = match self.guard.check(&request) {
            Ok(()) => match self.guard.preflight(&request) {
                Some(allowed) => allowed,
                None => self.route(request).await,
            },
            Err(refused) => refused.into_response(),
        };
        if let Some(origin) = foreign {
            cors::tell(response.headers_mut(), origin);
        }
        guard::secure(response.headers_mut());
        if !is_trustworthy {
            // Browsers take no isolation from plain http, and complain of it in the page's console.
            response.headers_mut().remove("cross-origin-opener-policy");
        }
        response
    }

    async fn route(&self, request: Request) -> Response {
        match (&self.surface, self.app.get()) {
            (Surface::Plain(plain), _) if !plain.lets_through(&request) => plain.answer(request).await,
            (_, Some(app)) => net::call(app.clone())(request).await,
            (_, None) => net::call(self.loading.clone())(request).await,
        }
    }
}

/// The same certificates, and no HTTP/2: WebSockets are upgrades of HTTP/1.1.
fn http_1(tls: &rustls::ServerConfig) -> tokio_rustls::TlsAcceptor {
    let mut tls = tls.clone();
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(tls).into()
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
