//! A running swarm: its thread, the compute thread, and the routes by which workers reach it.

use std::sync::Arc;

use axum::Router;
use moex_kernels::engine::ActivationFormat;
use moex_swarm::{Swarm, SwarmConfig, Verify};
use moex_worker::native::BusyPoll;
use tokio::sync::{mpsc, oneshot};

use super::event::Event;
use super::handle::SwarmHandle;
use super::shared::Shared;
use super::stream::Opened;
use super::trace::Tracer;
use super::verifier::Verifier;
use super::{compute, driver, shards, socket, terms, thread};
use crate::access::revocations::Revocations;
use crate::shards::ShardStore;

/// Maximum queued events for the driver. Beyond it senders wait: a socket stops reading, and TCP slows its peer down.
const MAX_WAITING_EVENTS: usize = 64;

/// A running swarm and the routes by which workers reach it. Clones share it.
#[derive(Clone)]
pub struct SwarmServer {
    shared: Arc<Shared>,
    events: mpsc::Sender<Event>,
    sockets: mpsc::Sender<Opened>,
}

impl SwarmServer {
    /// Starts the swarm's thread and the compute thread. They end when all clones are dropped, or on
    /// [`Self::shut_down`].
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn start(config: SwarmConfig, store: Arc<ShardStore>) -> std::io::Result<Self> {
        Self::start_with(config, store, None, BusyPoll::default(), Revocations::default())
    }

    /// As [`Self::start`], with an optional tracer, which [`Self::shut_down`] finishes, with threads that may poll for messages
    /// before they sleep, and without those whose invitations were revoked.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn start_with(
        config: SwarmConfig,
        store: Arc<ShardStore>,
        tracer: Option<Tracer>,
        busy_poll: BusyPoll,
        revocations: Revocations,
    ) -> std::io::Result<Self> {
        let (events, received) = mpsc::channel(MAX_WAITING_EVENTS);
        let compute = compute::start(store.clone(), events.clone())?;
        let config = SwarmConfig { is_traced: tracer.is_some(), ..config };
        let swarm = Swarm::new(config.clone(), store.catalog());
        let verifier = match config.verify {
            Verify::Audit => None,
            Verify::Blocking | Verify::Exact => {
                let activations = match config.model.activations.as_str() {
                    "" => ActivationFormat::F32,
                    name => name.parse().map_err(std::io::Error::other)?,
                };
                Verifier::start(store.clone(), activations)?
            }
        };
        let shared = Arc::new(Shared::new(config, &swarm, store, verifier, revocations, tracer, busy_poll));
        let drive = driver::drive(shared.clone(), swarm, received, compute);
        let sockets = thread::start(drive, events.downgrade())?;
        Ok(Self { shared, events, sockets })
    }

    /// `/ws` for workers, `/shards/{file}` for weights and `/api/terms` for the terms of joining. Serve it with
    /// `accept`, since the swarm takes over sockets accepted there.
    pub fn router(&self) -> Router {
        socket::router(self.sockets.clone())
            .merge(shards::router(self.shared.clone()))
            .merge(terms::router(self.shared.clone()))
    }

    /// Handle for computing layers and reading the status.
    pub fn handle(&self) -> SwarmHandle {
        SwarmHandle::new(self.shared.clone(), self.events.clone())
    }

    /// Ends every layer and closes every worker; returns once they have been told.
    pub async fn shut_down(&self) {
        let (done, told) = oneshot::channel();
        if self.events.send(Event::ShutDown(done)).await.is_ok() {
            // If another call has ended the driver, it drops the sender.
            let _ = told.await;
        }
        if let Some(tracer) = self.shared.tracer.clone() {
            // Fails only if the tracer has panicked; then there is nothing left to write.
            let _ = tokio::task::spawn_blocking(move || tracer.finish()).await;
        }
    }
}

#[cfg(test)]
impl SwarmServer {
    /// Blocks the driver until the returned sender is dropped.
    pub(super) async fn hold_driver(&self) -> std::sync::mpsc::SyncSender<()> {
        let (hold, held) = std::sync::mpsc::sync_channel(0);
        self.events.send(Event::Hold(held)).await.expect("the driver runs");
        hold
    }
}
