//! A handle to the swarm for the API and the engine: its published status, and computing layers.

use std::sync::Arc;
use std::time::Duration;

use moex_protocol::LayerId;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::event::Event;
use super::failed::failed;
use super::finite::is_finite;
use super::shared::{LocalLayer, Shared};
use crate::access::revocations::RevokeError;
use moex_model::{ExpertsError, Routing};
use moex_swarm::{JobError, Readiness, SwarmStatus};

/// How long [`SwarmHandle::status`] waits for the driver before it returns the last status.
const STATUS_WAIT: Duration = Duration::from_secs(2);

/// A handle to the swarm. Clones share it.
#[derive(Clone)]
pub struct SwarmHandle {
    pub(super) shared: Arc<Shared>,
    pub(super) events: mpsc::Sender<Event>,
}

impl SwarmHandle {
    pub(super) fn new(shared: Arc<Shared>, events: mpsc::Sender<Event>) -> Self {
        Self { shared, events }
    }

    /// Asks the driver for the current status. If the driver is busy or has ended, returns the last published status.
    pub async fn status(&self) -> SwarmStatus {
        let mut published = self.shared.status_published();
        if self.events.send(Event::Publish).await.is_ok() {
            // On timeout, the last published status is returned.
            let _ = timeout(STATUS_WAIT, published.changed()).await;
        }
        self.shared.last_status()
    }

    /// The token that workers join with.
    pub fn join_token(&self) -> &str {
        self.shared.config.token.reveal()
    }

    /// The token of the invitation of this name; none if it is no name.
    pub fn invitation(&self, name: &str) -> Option<String> {
        self.shared.config.token.invitation(name)
    }

    /// The names of revoked invitations, ascending.
    pub fn revoked(&self) -> Vec<String> {
        self.shared.revocations.all()
    }

    /// Lets the invitation of this name admit nobody any more, and lets its worker go.
    ///
    /// # Errors
    /// If there are too many, or it cannot be kept; then it is not revoked.
    pub async fn revoke(&self, name: &str) -> Result<(), RevokeError> {
        self.shared.revocations.add(name)?;
        // A driver that has ended has no workers.
        let _ = self.events.send(Event::Revoked(name.to_owned())).await;
        Ok(())
    }

    /// Connected workers and coverage, as published at most a tenth of a second ago. Does not wait.
    pub fn readiness(&self) -> Readiness {
        self.shared.readiness()
    }

    /// Whether a trace is written.
    pub(super) fn is_traced(&self) -> bool {
        self.shared.tracer.is_some()
    }

    /// Whether no worker is connected.
    pub(super) fn is_alone(&self) -> bool {
        self.shared.is_alone()
    }

    /// Calls `compute`, which writes a layer's sum (T, D), and counts the layer as computed by the hub.
    pub(super) fn timed_alone(
        &self,
        layer: usize,
        routing: &Routing,
        sum: &mut [f32],
        compute: impl FnOnce(&mut [f32]) -> Result<(), ExpertsError>,
    ) -> Result<(), ExpertsError> {
        let begun = self.shared.now();
        compute(sum)?;
        let layer = LayerId(layer as u16);
        if !is_finite(sum) {
            return Err(failed(&JobError::NotFinite { layer }));
        }
        let took = self.shared.now().saturating_sub(begun);
        if self.shared.note_local(LocalLayer { layer, routing: routing.clone(), took }) {
            // A driver that has ended counts nothing.
            let _ = self.events.blocking_send(Event::LocalLayers);
        }
        Ok(())
    }

    /// Whether the hub computes experts that no worker can compute.
    pub fn computes_on_hub(&self) -> bool {
        self.shared.config.hub_compute
    }
}
