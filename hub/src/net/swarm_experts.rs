//! Layers handed to the swarm, and fetched when it has computed them.

use std::sync::mpsc as std_mpsc;
use std::time::Duration;

use moex_protocol::LayerId;

use super::event::Event;
use super::failed::{failed, swarm_error};
use super::handle::SwarmHandle;
use super::verifier::VerifierSpace;
use moex_model::{Asked, Experts, ExpertsError, SwarmFailure, Ticket};
use moex_swarm::trace::{Record, micros};
use moex_swarm::{EncodedLayer, JobError, LayerEncoding, LayerResult};

/// Beyond the wait for a holder, how long a layer may take on whatever computes it. The swarm ends every layer long
/// before; this is for a hub that hangs.
const LAYER_DEADLINE: Duration = Duration::from_secs(300);
/// Layers that one engine may have away at once.
pub const MAX_IN_FLIGHT: usize = 8;

/// Computes an engine's layers on the swarm.
pub struct SwarmExperts {
    swarm: SwarmHandle,
    /// When the engine's present step began.
    step_begun: Duration,
    /// Oldest first, at most [`MAX_IN_FLIGHT`].
    away: Vec<Away>,
    n_asked: u64,
    space: VerifierSpace,
}

impl SwarmExperts {
    /// Computes layers on this swarm.
    pub fn new(swarm: SwarmHandle) -> Self {
        let (away, space) = (Vec::with_capacity(MAX_IN_FLIGHT), VerifierSpace::default());
        Self { swarm, step_begun: Duration::ZERO, away, n_asked: 0, space }
    }
}

impl SwarmExperts {
    /// Sees to it that nothing is summed that a worker answered and the hub has not checked, if that is wanted.
    fn verify(&mut self, layer: LayerId, result: &mut LayerResult) -> Result<(), ExpertsError> {
        let Some(verifier) = &self.swarm.shared.verifier else { return Ok(()) };
        let checked = verifier.verify(result, &mut self.space);
        let lies =
            checked.map_err(|error| swarm_error(SwarmFailure::Failed, format!("layer {layer}: {error}")))?;
        if !lies.is_empty() {
            // A driver that has ended has no worker left to be told about.
            let _ = self.swarm.events.blocking_send(Event::Caught(lies));
        }
        Ok(())
    }
}

/// A layer that the swarm computes.
struct Away {
    ticket: Ticket,
    layer: LayerId,
    result: std_mpsc::Receiver<Result<LayerResult, JobError>>,
}

/// Blocks its thread: not to be called from a task of an async runtime. The calling thread encodes the rows, checks the results
/// and sums them.
impl Experts for SwarmExperts {
    fn begin(&mut self, asked: Asked<'_>, _sum: &mut [f32]) -> Result<Option<Ticket>, ExpertsError> {
        let begun = self.swarm.shared.now();
        let no_such_layer = || swarm_error(SwarmFailure::Failed, "there is no such layer");
        let layer = LayerId(u16::try_from(asked.layer).map_err(|_| no_such_layer())?);
        let encoding = LayerEncoding::new(&self.swarm.shared.config);
        let encoded = EncodedLayer::encode(layer, asked.rows, asked.routing, encoding);
        let encoded = encoded.map_err(|error| failed(&error))?;
        let (reply, result) = std_mpsc::sync_channel(1);
        let is_down = |_| failed(&JobError::ShuttingDown);
        self.swarm.events.blocking_send(Event::Layer(encoded, begun, reply)).map_err(is_down)?;
        let ticket = Ticket(self.n_asked);
        self.n_asked += 1;
        // Layers that nobody came back for: their step failed.
        if self.away.len() >= MAX_IN_FLIGHT {
            self.away.remove(0);
        }
        self.away.push(Away { ticket, layer, result });
        Ok(Some(ticket))
    }

    fn finish(&mut self, ticket: Ticket, sum: &mut [f32]) -> Result<(), ExpertsError> {
        let Some(at) = self.away.iter().position(|away| away.ticket == ticket) else {
            return Err(swarm_error(SwarmFailure::Failed, "this layer was fetched before, or too late"));
        };
        let Away { layer, result, .. } = self.away.remove(at);
        let deadline = self.swarm.shared.config.coverage_wait + LAYER_DEADLINE;
        match result.recv_timeout(deadline) {
            Ok(result) => {
                let mut result = result.map_err(|error| failed(&error))?;
                self.verify(layer, &mut result)?;
                result.sum_into(sum);
            }
            Err(std_mpsc::RecvTimeoutError::Disconnected) => return Err(failed(&JobError::ShuttingDown)),
            Err(std_mpsc::RecvTimeoutError::Timeout) => {
                let message = format!("layer {layer} was not computed within {} s", deadline.as_secs());
                return Err(swarm_error(SwarmFailure::Failed, message));
            }
        }
        Ok(())
    }

    fn max_in_flight(&self) -> usize {
        MAX_IN_FLIGHT
    }

    fn step_begins(&mut self, _n_rows: usize) {
        self.step_begun = self.swarm.shared.now();
    }

    fn step_ends(&mut self, n_rows: usize, n_tokens: usize) {
        if let Some(tracer) = &self.swarm.shared.tracer {
            tracer.record(Record::Step {
                begun: micros(self.step_begun),
                ended: micros(self.swarm.shared.now()),
                rows: n_rows as u32,
                tokens: n_tokens as u32,
            });
        }
    }
}
