//! Drives the swarm over sockets: the clock, the WebSockets, the hub's own computing, and shards over HTTP.
//!
//! ```text
//! socket task (one a connection) --events, bounded--> driver task --actions--> outbox, bounded --> socket task
//! engine thread ([`SwarmHandle`]) --events----------->  [`Swarm`]  --actions--> compute thread --events--> driver
//! ```
//! Driver and socket tasks share one thread (`thread`); pages, API and shards are served on the runtime that called, which
//! hands each worker's socket over after the handshake. The driver never waits for a peer: a worker whose outbox is full
//! is closed. What anything means is `swarm`'s matter.

mod accept;
mod alone;
mod compute;
mod driver;
mod files;
mod handle;
mod local;
mod seats;
mod shards;
mod socket;
mod stream;
mod terms;
mod thread;
mod trace;
mod worker_processes;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Router;
use moex_worker::native::BusyPoll;
use tokio::sync::{mpsc, oneshot};

pub(crate) use self::accept::{AcceptOn, accept, call};
pub use self::alone::HubExperts;
pub use self::handle::SwarmHandle;
pub use self::local::{LocalSwarm, LocalSwarmConfig, LocalSwarmError};
pub use self::seats::Seats;
pub use self::trace::Tracer;
pub use self::worker_processes::{WorkerEnded, WorkerProcesses};

use self::driver::{Event, Shared};
use self::thread::Opened;
use crate::shards::ShardStore;
use moex_swarm::{Swarm, SwarmConfig};

/// Events that wait for the driver. Senders wait beyond it: a socket stops reading, and TCP slows its peer down.
const MAX_WAITING_EVENTS: usize = 64;

/// A running swarm and the routes by which workers reach it.
#[derive(Clone)]
pub struct Hub {
    shared: Arc<Shared>,
    events: mpsc::Sender<Event>,
    sockets: mpsc::Sender<Opened>,
}

impl Hub {
    /// Starts the swarm's thread and the compute thread. They end when all clones of this are dropped, or with
    /// [`Self::shut_down`].
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(config: SwarmConfig, store: Arc<ShardStore>) -> std::io::Result<Self> {
        Self::start_with(config, store, None, BusyPoll::default())
    }

    /// The same, with what becomes of each layer written down if there is a tracer, which [`Self::shut_down`] finishes, and
    /// threads that look for messages for a while before they sleep.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start_with(
        config: SwarmConfig,
        store: Arc<ShardStore>,
        tracer: Option<Tracer>,
        busy_poll: BusyPoll,
    ) -> std::io::Result<Self> {
        let (events, received) = mpsc::channel(MAX_WAITING_EVENTS);
        let compute = compute::start(store.clone(), events.clone())?;
        let config = SwarmConfig { is_traced: tracer.is_some(), ..config };
        let swarm = Swarm::new(config.clone(), store.catalog());
        let shared = Arc::new(Shared::new(config, swarm, store, tracer, busy_poll));
        let sockets = thread::start(driver::drive(shared.clone(), received, compute), events.downgrade())?;
        Ok(Self { shared, events, sockets })
    }

    /// `/ws` for workers, `/shards/{file}` for their weights and `/api/terms` for what joining means. To be served by
    /// `accept`: the swarm takes over sockets that came in by it.
    pub fn router(&self) -> Router {
        socket::router(self)
            .merge(shards::router(self.shared.clone()))
            .merge(terms::router(self.shared.clone()))
    }

    /// What the engine computes layers with, and what the status comes from.
    pub fn handle(&self) -> SwarmHandle {
        SwarmHandle::new(self.shared.clone(), self.events.clone())
    }

    /// Ends every layer and lets every worker go; returns when they have been told.
    pub async fn shut_down(&self) {
        let (done, told) = oneshot::channel();
        if self.events.send(Event::ShutDown(done)).await.is_ok() {
            // The driver may end by another call's hand: then there is nobody left to tell.
            let _ = told.await;
        }
        if let Some(tracer) = self.shared.tracer.clone() {
            // Its thread is our own: it does not panic.
            let _ = tokio::task::spawn_blocking(move || tracer.finish()).await;
        }
    }
}

/// Accepts plain HTTP on `listener` and answers with `router`, until the runtime ends.
async fn serve_forever(listener: tokio::net::TcpListener, router: Router) {
    let (_stop, stopping) = tokio::sync::watch::channel(false);
    accept(AcceptOn { tcp: listener, tls: None, answer: call(router) }, Seats::new(1 << 12), stopping).await;
}
