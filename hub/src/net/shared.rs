//! State that the driver shares with the engine, the API and the shards' routes: settings, and what it publishes. The
//! swarm itself is not shared.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, header};
use moex_model::Routing;
use moex_protocol::LayerId;
use moex_swarm::{Admission, Readiness, StepTimes, Swarm, SwarmConfig, SwarmStatus};
use moex_worker::native::BusyPoll;
use tokio::sync::watch;

use super::faster::{Compared, Side};
use super::served_bytes::ServedBytes;
use super::trace::Tracer;
use super::verifier::Verifier;
use crate::access::revocations::Revocations;
use crate::shards::ShardStore;

/// Maximum layers computed without the swarm that wait to be counted; at this number the driver is notified.
const MAX_LOCAL_LAYERS: usize = 256;

/// The shared state.
pub(super) struct Shared {
    pub config: SwarmConfig,
    pub store: Arc<ShardStore>,
    /// None where answers are used unchecked.
    pub verifier: Option<Verifier>,
    pub served: ServedBytes,
    /// The invitations that admit nobody any more.
    pub revocations: Revocations,
    /// See [`moex_model::Experts::n_doubts`].
    pub n_doubts: AtomicU64,
    pub tracer: Option<Tracer>,
    pub busy_poll: BusyPoll,
    /// Origin of all times.
    pub started: Instant,
    /// The last published status.
    status: watch::Sender<Arc<SwarmStatus>>,
    /// The last published readiness.
    readiness: Mutex<Readiness>,
    /// Whether no worker is connected and the hub computes.
    is_alone: AtomicBool,
    /// The last comparison of the hub with its workers.
    compared: Mutex<Option<Compared>>,
    local_layers: Mutex<Vec<LocalLayer>>,
}

/// A layer that the hub computed without the swarm.
pub(super) struct LocalLayer {
    pub layer: LayerId,
    pub routing: Routing,
    pub took: Duration,
}

impl Shared {
    pub(super) fn new(
        config: SwarmConfig,
        swarm: &Swarm,
        store: Arc<ShardStore>,
        verifier: Option<Verifier>,
        revocations: Revocations,
        tracer: Option<Tracer>,
        busy_poll: BusyPoll,
    ) -> Self {
        Self {
            config,
            store,
            verifier,
            served: ServedBytes::default(),
            revocations,
            n_doubts: AtomicU64::new(0),
            tracer,
            busy_poll,
            started: Instant::now(),
            status: watch::Sender::new(Arc::new(swarm.status())),
            readiness: Mutex::new(swarm.readiness()),
            is_alone: AtomicBool::new(swarm.is_alone(Duration::ZERO)),
            compared: Mutex::default(),
            local_layers: Mutex::default(),
        }
    }

    /// Time since the start.
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Whether a request carries the join token, or an invitation.
    pub(super) fn is_admitted(&self, headers: &HeaderMap) -> bool {
        let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = value.and_then(|value| value.strip_prefix("Bearer "));
        match token.and_then(|token| self.config.token.admits(token)) {
            None => false,
            Some(Admission::Token) => true,
            Some(Admission::Invitation(name)) => !self.revocations.contains(&name),
        }
    }

    // What the driver publishes.

    pub(super) fn publish_status(&self, status: SwarmStatus) {
        self.status.send_replace(Arc::new(status));
    }

    /// A receiver that changes when a status is published.
    pub(super) fn status_published(&self) -> watch::Receiver<Arc<SwarmStatus>> {
        self.status.subscribe()
    }

    /// The last published status, with current counts of weight bytes and of checks.
    pub(super) fn last_status(&self) -> SwarmStatus {
        let mut status = SwarmStatus::clone(&self.status.borrow());
        self.served.fill_in(&mut status);
        if let Some(verifier) = &self.verifier {
            verifier.fill_in(&mut status);
        }
        status.hub.compared = lock(&self.compared).map(|compared| StepTimes {
            own_micros: compared.own.as_micros() as u64,
            workers_micros: compared.workers.map(|workers| workers.as_micros() as u64),
            is_hub_used: compared.side == Side::Own,
        });
        status
    }

    pub(super) fn publish_readiness(&self, readiness: Readiness) {
        *lock(&self.readiness) = readiness;
    }

    pub(super) fn readiness(&self) -> Readiness {
        *lock(&self.readiness)
    }

    pub(super) fn publish_is_alone(&self, is_alone: bool) {
        self.is_alone.store(is_alone, Ordering::Release);
    }

    pub(super) fn is_alone(&self) -> bool {
        self.is_alone.load(Ordering::Acquire)
    }

    pub(super) fn publish_compared(&self, compared: Option<Compared>) {
        *lock(&self.compared) = compared;
    }

    /// Whether the hub computes experts although it has workers.
    pub(super) fn is_hub_faster(&self) -> bool {
        lock(&self.compared).is_some_and(|compared| compared.side == Side::Own)
    }

    // Layers computed without the swarm.

    /// Records a layer for the driver to count. Returns true if the driver must be notified.
    pub(super) fn note_local(&self, layer: LocalLayer) -> bool {
        let mut layers = lock(&self.local_layers);
        layers.push(layer);
        layers.len() >= MAX_LOCAL_LAYERS
    }

    pub(super) fn take_local(&self) -> Vec<LocalLayer> {
        std::mem::take(&mut *lock(&self.local_layers))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
