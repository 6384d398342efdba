//! The swarm as the engine and the API use it: computes layers, and gives the published status.

use std::sync::{Arc, mpsc as std_mpsc};
use std::time::Duration;

use moex_protocol::LayerId;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::event::Event;
use super::shared::{LocalLayer, Shared};
use moex_model::{Experts, ExpertsError, Routing, SwarmFailure};
use moex_swarm::trace::{Record, micros};
use moex_swarm::{EncodedLayer, JobError, LayerEncoding, LayerResult, Readiness, SwarmStatus};

/// Beyond the wait for a holder, how long a layer may take on whatever computes it. The swarm ends every layer long
/// before; this is for a hub that hangs.
const LAYER_DEADLINE: Duration = Duration::from_secs(300);
/// How long [`SwarmHandle::status`] waits for the driver before it returns the last status.
const STATUS_WAIT: Duration = Duration::from_secs(2);

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

    /// The swarm at this moment: asks the driver to publish it. If the driver is busy for long, or has ended, the last
    /// status that it published.
    pub async fn status(&self) -> SwarmStatus {
        let mut published = self.shared.status_published();
        if self.events.send(Event::Publish).await.is_ok() {
            // Too late or never: then the last one has to do.
            let _ = timeout(STATUS_WAIT, published.changed()).await;
        }
        self.shared.last_status()
    }

    /// What a worker shows to join.
    pub fn join_token(&self) -> &str {
        self.shared.config.token.reveal()
    }

    /// Who is there and what they hold, as published a tenth of a second ago at most. Waits for nothing.
    pub fn readiness(&self) -> Readiness {
        self.shared.readiness()
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
        if sum.iter().any(|value| !value.is_finite()) {
            return Err(failed(&JobError::NotFinite { layer }));
        }
        let took = self.shared.now().saturating_sub(begun);
        if self.shared.note_local(LocalLayer { layer, routing: routing.clone(), took }) {
            // A driver that has ended counts nothing any more.
            let _ = self.events.blocking_send(Event::LocalLayers);
        }
        Ok(())
    }

    /// Whether the hub computes what no worker can.
    pub fn computes_on_hub(&self) -> bool {
        self.shared.config.hub_compute
    }
}

impl SwarmHandle {
    /// Encodes a layer on this thread, and waits until the swarm has computed it.
    fn compute(
        &mut self,
        layer: usize,
        rows: &[f32],
        routing: &Routing,
    ) -> Result<LayerResult, ExpertsError> {
        let asked = self.shared.now();
        let no_such_layer = || swarm_error(SwarmFailure::Failed, "there is no such layer");
        let layer = LayerId(u16::try_from(layer).map_err(|_| no_such_layer())?);
        let encoding = LayerEncoding::new(&self.shared.config);
        let encoded = EncodedLayer::encode(layer, rows, routing, encoding).map_err(|error| failed(&error))?;
        let (reply, result) = std_mpsc::sync_channel(1);
        let is_down = || failed(&JobError::ShuttingDown);
        self.events.blocking_send(Event::Layer(encoded, asked, reply)).map_err(|_| is_down())?;
        let deadline = self.shared.config.coverage_wait + LAYER_DEADLINE;
        match result.recv_timeout(deadline) {
            Ok(result) => result.map_err(|error| failed(&error)),
            Err(std_mpsc::RecvTimeoutError::Disconnected) => Err(is_down()),
            Err(std_mpsc::RecvTimeoutError::Timeout) => {
                let message = format!("layer {layer} was not computed within {} s", deadline.as_secs());
                Err(swarm_error(SwarmFailure::Failed, message))
            }
        }
    }
}

/// Blocks its thread: not to be called from a task of an async runtime. The calling thread encodes the rows and sums the
/// results.
impl Experts for SwarmHandle {
    fn apply_into(
        &mut self,
        layer: usize,
        rows: &[f32],
        routing: &Routing,
        sum: &mut [f32],
    ) -> Result<(), ExpertsError> {
        self.compute(layer, rows, routing)?.sum_into(sum);
        Ok(())
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

/// Why the swarm has no result, in the engine's terms.
fn failed(error: &JobError) -> ExpertsError {
    let failure = match error {
        JobError::Busy { .. } => SwarmFailure::Busy,
        JobError::Uncovered { .. } => SwarmFailure::Uncovered,
        JobError::ShuttingDown => SwarmFailure::Stopping,
        JobError::Shape { .. }
        | JobError::TooManyRows { .. }
        | JobError::NoSuchBlock { .. }
        | JobError::NotFinite { .. }
        | JobError::Hub { .. } => SwarmFailure::Failed,
    };
    swarm_error(failure, error.to_string())
}

fn swarm_error(failure: SwarmFailure, message: impl Into<String>) -> ExpertsError {
    ExpertsError::Swarm { failure, message: message.into() }
}
