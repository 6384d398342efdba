//! The swarm as the engine and the API see it.

use std::sync::{Arc, mpsc as std_mpsc};
use std::time::Duration;

use moex_protocol::LayerId;
use tokio::sync::mpsc;

use super::driver::{Event, Shared};
use moex_model::{Experts, ExpertsError, Routing};
use moex_swarm::trace::{Record, micros};
use moex_swarm::{JobError, LayerJob, Readiness, SwarmStatus};

/// Beyond the wait for a holder, how long a layer may take on whatever computes it. The swarm ends every layer long
/// before; this is for a hub that hangs.
const LAYER_DEADLINE: Duration = Duration::from_secs(300);

/// Computes layers on the swarm, and says how it is. Clones are equal.
#[derive(Clone)]
pub struct SwarmHandle {
    shared: Arc<Shared>,
    events: mpsc::Sender<Event>,
    /// When the engine's present step began.
    step_begun: Duration,
}

impl SwarmHandle {
    pub(super) fn new(shared: Arc<Shared>, events: mpsc::Sender<Event>) -> Self {
        Self { shared, events, step_begun: Duration::ZERO }
    }

    /// The swarm at this moment. Waits for nothing but a short lock.
    pub fn status(&self) -> SwarmStatus {
        self.shared.status()
    }

    /// What a worker shows to join.
    pub fn join_token(&self) -> &str {
        self.shared.config.token.reveal()
    }

    /// Who is there and what they hold, as it was a moment ago. Waits for nobody, however busy the swarm is.
    pub fn readiness(&self) -> Readiness {
        self.shared.readiness()
    }

    /// Whether there is nobody but the hub to compute.
    pub(super) fn is_alone(&self) -> bool {
        self.shared.swarm().is_alone()
    }

    /// Has `compute` write a layer's sum (T, D) here and now, and counts it as the hub's.
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
        if sum.iter().any(|value| !value.is_finite()) {
            return Err(ExpertsError::Swarm(JobError::NotFinite { layer }.to_string()));
        }
        self.shared.swarm().computed_locally(layer, routing, self.shared.now().saturating_sub(begun));
        Ok(())
    }

    /// Whether the hub computes what no worker can.
    pub fn computes_on_hub(&self) -> bool {
        self.shared.config.hub_compute
    }
}

/// Blocks its thread: not to be called from a task of an async runtime.
impl Experts for SwarmHandle {
    fn apply(&mut self, layer: usize, rows: &[f32], routing: &Routing) -> Result<Vec<f32>, ExpertsError> {
        let asked = self.shared.now();
        let failed = |message: &str| ExpertsError::Swarm(message.to_owned());
        let layer = LayerId(u16::try_from(layer).map_err(|_| failed("there is no such layer"))?);
        let job = LayerJob { layer, rows: rows.to_vec(), routing: routing.clone() };
        let (reply, result) = std_mpsc::sync_channel(1);
        let is_down = |_| failed("the hub is shutting down");
        self.events.blocking_send(Event::Layer(job, asked, reply)).map_err(|_| is_down(()))?;
        let deadline = self.shared.config.coverage_wait + LAYER_DEADLINE;
        match result.recv_timeout(deadline) {
            Ok(result) => result.map_err(|error| ExpertsError::Swarm(error.to_string())),
            Err(std_mpsc::RecvTimeoutError::Disconnected) => Err(is_down(())),
            Err(std_mpsc::RecvTimeoutError::Timeout) => Err(ExpertsError::Swarm(format!(
                "layer {layer} was not computed within {} s",
                deadline.as_secs()
            ))),
        }
    }

    fn step_begins(&mut self) {
        self.step_begun = self.shared.now();
    }

    fn step_ends(&mut self, n_rows: usize, n_tokens: usize) {
        if let Some(tracer) = &self.shared.tracer {
            tracer.record(Record::Step {
                begun: micros(self.step_begun),
                ended: micros(self.shared.now()),
                rows: n_rows as u32,
                tokens: n_tokens as u32,
            });
        }
    }
}
