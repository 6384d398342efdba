//! Layers handed to the swarm, and fetched when it has computed them.
//!
//! ```text
//! finish         wait, check, sum
//! finish_early   check what came before, wait, sum      the check of a layer takes the time in which the next one is away
//! confirm        check the last
//! ```
//! A sum that is not finite is checked before it is given: from it, nobody could compute the next layer.
//! After a lie the step begins again, and for some time no sum is given early: whoever lies under ever new names slows nothing.

use std::sync::{Mutex, PoisonError, atomic::Ordering, mpsc as std_mpsc};
use std::time::Duration;

use moex_protocol::{Dtype, LayerId};

use super::event::Event;
use super::failed::{failed, swarm_error};
use super::finite::is_finite;
use super::handle::SwarmHandle;
use super::verifier::{Verifier, VerifierSpace};
use moex_model::{Experts, ExpertsError, LayerRequest, SwarmFailure, Ticket};
use moex_swarm::trace::{Record, micros};
use moex_swarm::{EncodedLayer, JobError, LayerEncoding, LayerResult};

/// Beyond the wait for a holder, how long a layer may take on whatever computes it. The swarm ends every layer long
/// before; this is for a hub that hangs.
const LAYER_DEADLINE: Duration = Duration::from_secs(300);
/// Layers that one engine may have away at once.
pub const MAX_IN_FLIGHT: usize = 8;
/// Steps after a lie in which nothing is used before it is checked. Each lie costs a step at most: this makes it one of so many.
const WARY_STEPS: u32 = 256;

/// Rows that are summed on several threads: eight experts of one take some 10 us.
const ROWS_FOR_THREADS: usize = 8;

/// Computes an engine's layers on the swarm.
pub struct SwarmExperts {
    swarm: SwarmHandle,
    /// When the engine's present step began.
    step_begun: Duration,
    /// Whether a worker computed anything of it.
    has_worker_answered: bool,
    /// Oldest first, at most [`MAX_IN_FLIGHT`].
    away: Vec<Away>,
    n_asked: u64,
    space: VerifierSpace,
    /// The layer whose sum was given before its check.
    early: Option<(LayerId, LayerResult)>,
    /// See [`WARY_STEPS`].
    n_wary: u32,
}

impl SwarmExperts {
    /// Computes layers on this swarm.
    pub fn new(swarm: SwarmHandle) -> Self {
        let (away, space) = (Vec::with_capacity(MAX_IN_FLIGHT), VerifierSpace::default());
        let (step_begun, has_worker_answered) = (Duration::ZERO, false);
        Self { swarm, step_begun, has_worker_answered, away, n_asked: 0, space, early: None, n_wary: 0 }
    }

    /// Whether a worker has computed anything of the engine's present step.
    pub(super) fn has_worker_answered(&self) -> bool {
        self.has_worker_answered
    }

    /// Puts the hub's own results in place of what workers answered wrong, if answers are to be checked; whether any was.
    fn verify(&mut self, layer: LayerId, result: &mut LayerResult) -> Result<bool, ExpertsError> {
        let Some(verifier) = &self.swarm.shared.verifier else { return Ok(false) };
        let checked = verifier.verify(result, &mut self.space);
        let lies =
            checked.map_err(|error| swarm_error(SwarmFailure::Failed, format!("layer {layer}: {error}")))?;
        if lies.is_empty() {
            return Ok(false);
        }
        self.n_wary = WARY_STEPS;
        // A driver that has ended has no worker left to be told about.
        let _ = self.swarm.events.blocking_send(Event::Caught(lies));
        Ok(true)
    }

    /// The layer of a ticket.
    fn take(&mut self, ticket: Ticket) -> Result<Away, ExpertsError> {
        let at = self.away.iter().position(|away| away.ticket == ticket);
        let no_such = || swarm_error(SwarmFailure::Failed, "this layer was fetched before, or too late");
        Ok(self.away.remove(at.ok_or_else(no_such)?))
    }

    /// What the swarm's thread sends, looked for while busy polling lasts, so that it need not wake this one.
    fn receive(&self, result: &Results, deadline: Duration) -> Result<Computed, std_mpsc::RecvTimeoutError> {
        let mut busy_poll = self.swarm.shared.busy_poll;
        busy_poll.stir();
        while busy_poll.is_awake() {
            if let Ok(computed) = result.try_recv() {
                return Ok(computed);
            }
            std::thread::yield_now();
        }
        result.recv_timeout(deadline)
    }

    /// The sum (T, D) of a layer; of many rows on all threads.
    fn sum(&self, result: &LayerResult, sum: &mut [f32]) {
        let n_rows = result.n_rows();
        let processor = self.swarm.shared.store.processor().filter(|_| n_rows >= ROWS_FOR_THREADS);
        let Some(pool) = processor.map(|processor| processor.pool()) else { return result.sum_into(sum) };
        let of_part = n_rows.div_ceil(pool.n_threads());
        let width = sum.len() / n_rows;
        // Each thread takes the parts that it locks.
        let parts: Vec<Mutex<&mut [f32]>> = sum.chunks_mut(of_part * width).map(Mutex::new).collect();
        pool.run(parts.len(), &|index| {
            let mut rows = parts[index].lock().unwrap_or_else(PoisonError::into_inner);
            result.sum_rows(index * of_part, &mut rows);
        });
    }

    /// Waits for a layer.
    fn wait(&mut self, away: &Away) -> Result<LayerResult, ExpertsError> {
        let deadline = self.swarm.shared.config.coverage_wait + LAYER_DEADLINE;
        match self.receive(&away.result, deadline) {
            Ok(result) => {
                let result = result.map_err(|error| failed(&error))?;
                self.has_worker_answered |= result.unchecked().next().is_some();
                Ok(result)
            }
            Err(std_mpsc::RecvTimeoutError::Disconnected) => Err(failed(&JobError::ShuttingDown)),
            Err(std_mpsc::RecvTimeoutError::Timeout) => {
                let message =
                    format!("layer {} was not computed within {} s", away.layer, deadline.as_secs());
                Err(swarm_error(SwarmFailure::Failed, message))
            }
        }
    }
}

/// How a layer ended.
type Computed = Result<LayerResult, JobError>;
/// Where it comes from, once.
type Results = std_mpsc::Receiver<Computed>;

/// A layer that the swarm computes.
struct Away {
    ticket: Ticket,
    layer: LayerId,
    result: Results,
}

/// Blocks its thread: not to be called from a task of an async runtime. The calling thread encodes the rows, checks the results
/// and sums them.
impl Experts for SwarmExperts {
    fn begin(&mut self, asked: LayerRequest<'_>, _sum: &mut [f32]) -> Result<Option<Ticket>, ExpertsError> {
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
        let away = self.take(ticket)?;
        let mut result = self.wait(&away)?;
        self.verify(away.layer, &mut result)?;
        self.sum(&result, sum);
        Ok(())
    }

    fn finish_early(&mut self, ticket: Ticket, sum: &mut [f32]) -> Result<(), ExpertsError> {
        let shared = &self.swarm.shared;
        let is_exact = shared.verifier.as_ref().is_some_and(Verifier::is_exact);
        // The largest f16 is small enough for whatever follows to be finite: honest workers are asked for nothing impossible.
        if !is_exact || shared.config.wire != Dtype::F16 || self.n_wary > 0 {
            return self.finish(ticket, sum);
        }
        let away = self.take(ticket)?;
        if self.early.is_some() {
            // The swarm's thread may wait for this processor, and the workers for what it sends.
            std::thread::yield_now();
        }
        self.confirm()?;
        let mut result = self.wait(&away)?;
        self.sum(&result, sum);
        if is_finite(sum) {
            self.early = Some((away.layer, result));
            return Ok(());
        }
        self.verify(away.layer, &mut result)?;
        self.sum(&result, sum);
        Ok(())
    }

    fn confirm(&mut self) -> Result<(), ExpertsError> {
        let Some((layer, mut result)) = self.early.take() else { return Ok(()) };
        if !self.verify(layer, &mut result)? {
            return Ok(());
        }
        // What is under way was computed from it.
        self.away.clear();
        Err(ExpertsError::FalseAnswer)
    }

    fn n_doubts(&self) -> u64 {
        self.swarm.shared.n_doubts.load(Ordering::Relaxed)
    }

    fn max_in_flight(&self) -> usize {
        MAX_IN_FLIGHT
    }

    fn step_begins(&mut self, _n_rows: usize) {
        self.step_begun = self.swarm.shared.now();
        self.has_worker_answered = false;
        self.n_wary = self.n_wary.saturating_sub(1);
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
