//! Accepts connections and serves HTTP/1.1 on them, within limits for unknown peers. WebSocket needs HTTP/1.1.
//!
//! ```text
//! accepted --TLS: [`HANDSHAKE_TIMEOUT`]--> waiting --header: [`HEADER_TIMEOUT`]--> served --+--> upgraded, off to the swarm
//!                                            ^                 body: [`BODY_TIMEOUT`]       |
//!                                            +----------------------------------------------+
//! ```
//! An idle connection waits for its next header, so the header's timeout is the idle timeout too. The stream has a
//! timeout of its own for a peer that does not read.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{ConnectInfo, Request};
use axum::response::Response;
use axum::{BoxError, Router};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::connection_limit::{ConnectionLimit, ConnectionPermit, Phase};
use super::stream::Stream;

/// How long TLS's handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a request's header may take, and how long a connection may be idle before it.
const HEADER_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a request's body may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum bytes of a request's header, and of a body read ahead.
const MAX_HEADER_BYTES: usize = 64 << 10;
/// Maximum fields of a request's header.
const MAX_HEADER_FIELDS: usize = 100;
/// First wait after accepting a connection failed; each further wait is twice as long.
const FIRST_BACKOFF: Duration = Duration::from_millis(10);
/// The longest such wait.
const MAX_BACKOFF: Duration = Duration::from_secs(1);

/// Where to accept connections, and how to answer.
pub(crate) struct AcceptOn<A> {
    /// The listening socket.
    pub(crate) tcp: TcpListener,
    /// The TLS acceptor; none for plain HTTP.
    pub(crate) tls: Option<TlsAcceptor>,
    /// Answers every request, which carries the peer's address as [`ConnectInfo`].
    pub(crate) answer: A,
}

/// Accepts connections until `stopping` is true; then closes idle ones, and returns once every answer in progress has
/// ended.
pub(crate) async fn accept<A, F>(on: AcceptOn<A>, limit: ConnectionLimit, mut stopping: watch::Receiver<bool>)
where
    A: Fn(Request) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response> + Send + 'static,
{
    let mut connections = JoinSet::new();
    let mut backoff = FIRST_BACKOFF;
    loop {
        let accepted = tokio::select! {
            // An error means that the sender was dropped: stop.
            _ = stopping.wait_for(|stop| *stop) => break,
            Some(_) = connections.join_next() => continue,
            accepted = on.tcp.accept() => accepted,
        };
        match accepted {
            Ok((tcp, peer)) => {
                backoff = FIRST_BACKOFF;
                let mut permit = limit.take(peer.ip());
                if permit.is_none() {
                    // Connections told to make room may be about to end.
                    sleep(FIRST_BACKOFF).await;
                    permit = limit.take(peer.ip());
                }
                let Some(permit) = permit else {
                    tracing::warn!(%peer, "a connection was refused: the limit of connections is reached");
                    continue;
                };
                let (tls, answer, stopping) = (on.tls.clone(), on.answer.clone(), stopping.clone());
                connections.spawn(serve(tcp, peer, tls, permit, answer, stopping));
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "accepting a connection failed; retrying");
                // The system usually lacks file descriptors, and every connection uses one.
                limit.relieve();
                sleep(backoff).await;
                backoff = MAX_BACKOFF.min(2 * backoff);
            }
        }
    }
    drop(on.tcp);
    while connections.join_next().await.is_some() {}
}

/// Accepts plain HTTP on `listener` and answers with `router`, until the runtime ends.
pub(super) async fn serve_forever(listener: TcpListener, router: Router) {
    let (_stop, stopping) = watch::channel(false);
    accept(
        AcceptOn { tcp: listener, tls: None, answer: call(router) },
        ConnectionLimit::new(1 << 12),
        stopping,
    )
    .await;
}

/// Answers requests with a router.
pub(crate) fn call(router: Router) -> impl Fn(Request) -> Answering + Clone + Send + Sync + 'static {
    move |request| {
        let answering = Service::call(&TowerToHyperService::new(router.clone()), request);
        Box::pin(async move {
            let Ok(response) = answering.await;
            response
        })
    }
}

/// A future response.
pub(crate) type Answering = Pin<Box<dyn Future<Output = Response> + Send>>;

/// Whether the error concerns one peer only, which left before it was accepted.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Serves one connection until it ends, is upgraded, or has to make room.
async fn serve<A, F>(
    tcp: TcpStream,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
    permit: ConnectionPermit,
    answer: A,
    mut stopping: watch::Receiver<bool>,
) where
    A: Fn(Request) -> F + Send + Sync + 'static,
    F: Future<Output = Response> + Send + 'static,
{
    let opening = timeout(HANDSHAKE_TIMEOUT, Stream::open(tcp, tls.as_ref(), permit.clone()));
    let stream = tokio::select! {
        () = permit.taken_away() => return,
        opened = opening => match opened {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%peer, %error, "opening a connection failed"),
            Err(_) => return tracing::debug!(%peer, "a TLS handshake took too long"),
        },
    };
    let answer = Arc::new(answer);
    let served = permit.clone();
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let visit = RequestInProgress::begin(&served);
        let mut request = request.map(|body| Body::new(InTime { body, deadline: None }));
        request.extensions_mut().insert(ConnectInfo(peer));
        let answer = answer.clone();
        async move {
            let response = answer(request).await;
            Ok::<_, Infallible>(response.map(|body| Visited { body, _visit: visit }))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_header_size(MAX_HEADER_BYTES)
        .max_buf_size(MAX_HEADER_BYTES)
        .max_headers(MAX_HEADER_FIELDS)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = pin!(connection);
    let mut is_stopping = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%peer, %error, "a connection ended early");
                }
                return;
            }
            () = permit.taken_away() => return tracing::debug!(%peer, "closed an idle connection to make room"),
            _ = stopping.wait_for(|stop| *stop), if !is_stopping => {
                is_stopping = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// A request in progress, from its header to the last byte of its answer.
struct RequestInProgress(ConnectionPermit);

impl RequestInProgress {
    fn begin(permit: &ConnectionPermit) -> Self {
        permit.enter(Phase::Served);
        Self(permit.clone())
    }
}

impl Drop for RequestInProgress {
    fn drop(&mut self) {
        self.0.enter(Phase::Waiting);
    }
}

/// An answer's body; dropping it ends the visit.
struct Visited {
    body: Body,
    _visit: RequestInProgress,
}

impl HttpBody for Visited {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A request's body; fails if it is incomplete [`BODY_TIMEOUT`] after the first read.
struct InTime {
    body: Incoming,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl HttpBody for InTime {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(BODY_TIMEOUT)));
        match deadline.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Some(Err("the body took too long".into()))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
