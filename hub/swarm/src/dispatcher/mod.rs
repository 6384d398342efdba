//! The dispatcher: jobs, the attempts at them, and hedges.
//!
//! ```text
//! start --> job: work items --cover--> attempts --Send--> workers --answered--> parts --> all settled --Finish--> sum
//!                     ^                    |                                     |
//!                     +---- failed, late, worker gone, audited as wrong <--------+          hub: --Compute-->
//! ```
//! Inputs: layers, workers' answers and failures, the hub's results, joins and leaves, and the auditor's findings.
//! Outputs: [`Order`]s, which the swarm carries out in order ([`Dispatcher::poll_order`]).
//!
//! The dispatcher reads the [`Fleet`] to choose workers and never changes it. The auditor decides whether an answer is
//! right.

mod agreement;
mod answers;
mod asked_workers;
mod attempts;
mod candidates;
mod covering;
mod endings;
mod error;
mod health;
mod hedging;
mod hub_replica;
mod job;
mod late_answers;
mod latency;
mod layer;
mod parts;
mod performance;
mod received;
mod replies;
mod tier;
mod trace_recorder;
mod unchecked;
mod workers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use moex_protocol::{AttemptId, Block, Dispatch, SendError, WorkerId};
use tracing::warn;

pub use self::covering::MAX_JOBS;
pub use self::error::JobError;
pub use self::hub_replica::HubResult;
pub use self::job::{LayerJob, LayerResult};
pub use self::layer::{EncodedLayer, LayerEncoding, max_pairs_a_message};
pub use self::tier::Tier;
pub use self::unchecked::{Lie, Unchecked};

pub(crate) use self::answers::{LateAnswer, NotFinite};
pub(crate) use self::job::{Source, Winner, WorkerAnswer};
pub(crate) use self::parts::Part;
pub(crate) use self::performance::Performance;
pub(crate) use self::received::Received;

use self::attempts::AttemptTable;
use self::candidates::Chooser;
use self::hedging::HedgeBudget;
use self::hub_replica::{HubCounts, HubReplica};
use self::job::Job;
use self::late_answers::LateAnswers;
use self::latency::Latency;
use self::trace_recorder::TraceRecorder;
use self::workers::Workers;
use super::fleet::{Fleet, Member};
use super::trace::Record;
use super::{ComputeId, ConnectionId, JobId, SwarmConfig};

/// Jobs, attempts and hedges. See the [module's description](self).
#[derive(Debug)]
pub(crate) struct Dispatcher {
    config: Arc<SwarmConfig>,
    jobs: BTreeMap<JobId, Job>,
    attempts: AttemptTable,
    late_answers: LateAnswers,
    workers: Workers,
    hub: HubReplica,
    budget: HedgeBudget,
    /// Jobs with work items that may need to be requested.
    to_cover: BTreeSet<JobId>,
    orders: VecDeque<Order>,
    is_shutting_down: bool,
    counts: DispatchCounts,
    layer_latency: Latency,
    recorder: Option<Box<TraceRecorder>>,
}

/// An instruction of the dispatcher to the swarm.
#[derive(Debug)]
pub(crate) enum Order {
    /// Send an attempt to a worker; answer with [`Dispatcher::sent`] or [`Dispatcher::not_sent`].
    Send { to: ConnectionId, attempt: AttemptId, dispatch: Dispatch },
    /// Tell a worker to cancel an attempt.
    Cancel { at: ConnectionId, attempt: AttemptId },
    /// A worker reported that it does not hold one of these blocks.
    NotResident { at: ConnectionId, blocks: Vec<Block> },
    /// So many work items that a worker answered are used, or the hub has confirmed them.
    Credit { worker: WorkerId, n_items: usize },
    /// Compute on the hub.
    Compute(ComputeId, Dispatch),
    /// A job is finished, with its result or error.
    Finish(JobId, Result<LayerResult, JobError>),
}

/// Counts since the start, explained in [`super::Totals`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DispatchCounts {
    pub layers: u64,
    pub dispatches: u64,
    pub answers: u64,
    pub retries: u64,
    pub hedges: u64,
    pub hedge_wins: u64,
    pub hedges_denied: u64,
    pub probes: u64,
    pub duplicate_bytes: u64,
    pub unhealthy: u64,
    pub late: u64,
    pub timeouts: u64,
    pub errors: u64,
    pub hub_computed: u64,
}

impl Dispatcher {
    /// A dispatcher with nothing to do.
    pub(crate) fn new(config: Arc<SwarmConfig>) -> Self {
        Self {
            jobs: BTreeMap::new(),
            attempts: AttemptTable::default(),
            late_answers: LateAnswers::default(),
            workers: Workers::default(),
            hub: HubReplica::default(),
            budget: HedgeBudget::new(config.hedge),
            to_cover: BTreeSet::new(),
            orders: VecDeque::new(),
            is_shutting_down: false,
            counts: DispatchCounts::default(),
            layer_latency: Latency::default(),
            recorder: TraceRecorder::new(&config),
            config,
        }
    }

    /// The next order. Carry out all orders after each call.
    pub(crate) fn poll_order(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    /// When [`Self::handle_timeout`] is due.
    pub(crate) fn poll_timeout(&self) -> Option<Duration> {
        let waiting = self.jobs.values().filter_map(|job| job.uncovered_since).min();
        let waiting = waiting.map(|since| since + self.config.coverage_wait);
        let deadlines = [self.attempts.next_deadline(), waiting, self.workers.next_deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Handles due deadlines: of attempts, of probes, and of late first copies. [`Self::expire_jobs`] must be called
    /// after everything that follows from these.
    pub(crate) fn handle_timeout(&mut self, now: Duration, fleet: &Fleet) {
        self.expire_attempts(now);
        self.expire_probes(now);
        self.hedge(now, fleet);
    }

    /// Ends every job and refuses new ones.
    pub(crate) fn shut_down(&mut self, now: Duration) {
        self.is_shutting_down = true;
        let jobs: Vec<_> = self.jobs.keys().copied().collect();
        for job in jobs {
            self.finish(job, now, Err(JobError::ShuttingDown));
        }
    }

    // Workers.

    /// A worker has joined from `host`.
    pub(crate) fn worker_joined(&mut self, now: Duration, id: ConnectionId, member: &Member, host: &str) {
        self.workers.joined(now, id, (member, host), self.config.max_failures);
        self.record(|recorder| recorder.joined(now, member.id, &member.join));
    }

    /// A connection ended. Its worker's items are requested from others at once.
    pub(crate) fn connection_gone(&mut self, now: Duration, id: ConnectionId) {
        if let Some(worker) = self.workers.left(id) {
            self.record(|recorder| recorder.left(now, worker.id()));
        }
        self.reassign(now, id);
        self.late_answers.forget(id);
    }

    /// A heartbeat arrived; `round_trip` is known if it answers one of the last pings.
    pub(crate) fn heartbeat(&mut self, now: Duration, id: ConnectionId, round_trip: Option<Duration>) {
        if let Some((worker, took)) = self.workers.get_mut(id).zip(round_trip) {
            worker.pinged(took);
            let worker = worker.id();
            self.record(|recorder| recorder.round_trip(now, worker, took));
        }
    }

    /// The measurements of a worker.
    pub(crate) fn worker(&self, id: ConnectionId) -> Option<&Performance> {
        self.workers.get(id)
    }

    /// As [`Self::worker`], mutable, for tests.
    #[cfg(test)]
    pub(crate) fn worker_mut(&mut self, id: ConnectionId) -> Option<&mut Performance> {
        self.workers.get_mut(id)
    }

    /// Whether a worker may get work now.
    pub(crate) fn is_usable(&self, fleet: &Fleet, id: ConnectionId) -> bool {
        self.workers.is_usable(fleet, id, self.config.hub_compute)
    }

    /// Whether any worker is healthy, or is to be tried now.
    pub(crate) fn may_ask_anyone(&self, now: Duration) -> bool {
        self.workers.iter().any(|worker| worker.health.is_healthy() || worker.health.is_to_be_tried(now))
    }

    /// Workers several times as slow as their peers, which only get items that the others do not hold; with the reason.
    pub(crate) fn passed_over(&self) -> BTreeMap<WorkerId, String> {
        let mut medians: Vec<(Duration, WorkerId)> =
            self.workers.iter().filter_map(|worker| Some((worker.decode_median()?, worker.id()))).collect();
        medians.sort_unstable();
        let Some((others, _)) = medians.get(medians.len().saturating_sub(1) / 2).copied() else {
            return BTreeMap::new();
        };
        medians.iter().filter_map(|(own, id)| Some((*id, tier::passed_over(*own, others)?))).collect()
    }

    // The hub's own computing.

    /// Whether layers are accepted and not traced.
    pub(crate) fn may_be_bypassed(&self) -> bool {
        self.recorder.is_none() && !self.is_shutting_down
    }

    /// Counts a layer of `n_pairs` that the hub computed without a job.
    pub(crate) fn computed_locally(&mut self, n_pairs: usize, took: Duration) {
        self.counts.layers += 1;
        self.counts.hub_computed += 1;
        self.hub.counts.dispatches += 1;
        self.hub.counts.rows += n_pairs as u64;
        self.hub.took(n_pairs, took);
        self.layer_latency.record(took);
    }

    /// Orders a computation outside of jobs: a check.
    pub(crate) fn compute_check(&mut self, dispatch: Dispatch) -> ComputeId {
        let id = self.hub.begin();
        self.orders.push_back(Order::Compute(id, dispatch));
        id
    }

    /// A computation of the hub ended, successful or not.
    pub(crate) fn hub_ended(&mut self) {
        self.hub.end();
    }

    /// A check of `n_pairs` took the hub this long.
    pub(crate) fn check_took(&mut self, n_pairs: usize, latency: Duration) {
        self.hub.took(n_pairs, latency);
    }

    // What others read.

    pub(crate) fn n_jobs(&self) -> usize {
        self.jobs.len()
    }

    pub(crate) fn n_attempts(&self) -> usize {
        self.attempts.iter().count()
    }

    pub(crate) fn counts(&self) -> DispatchCounts {
        self.counts
    }

    /// The hub's computations for layers.
    pub(crate) fn hub_counts(&self) -> HubCounts {
        self.hub.counts
    }

    /// Latency of recent layers.
    pub(crate) fn layer_latency(&self) -> &Latency {
        &self.layer_latency
    }

    /// The layer of a job in flight or just finished.
    pub(crate) fn layer_of(&self, job: JobId) -> Option<&Arc<EncodedLayer>> {
        let in_flight = self.jobs.get(&job).map(|job| &job.layer);
        in_flight.or_else(|| self.late_answers.finished(job).map(|finished| &finished.layer))
    }

    /// The accepted answers of a job in flight or just finished.
    pub(crate) fn winners_of(&self, job: JobId) -> Option<(&EncodedLayer, &[Winner])> {
        let in_flight = self.jobs.get(&job).map(|job| (&*job.layer, job.winners()));
        in_flight.or_else(|| {
            self.late_answers.finished(job).map(|finished| (&*finished.layer, finished.winners.as_slice()))
        })
    }

    /// The next trace record, if tracing is on.
    pub(crate) fn poll_trace(&mut self) -> Option<Record> {
        self.recorder.as_mut()?.poll()
    }

    /// Trace records dropped because nobody polled them.
    pub(crate) fn trace_dropped(&self) -> u64 {
        self.recorder.as_ref().map_or(0, |recorder| recorder.n_dropped())
    }

    /// Makes new attempts get ids after this one.
    #[cfg(test)]
    pub(crate) fn start_attempts_after(&mut self, last: AttemptId) {
        self.attempts = AttemptTable::after(last);
    }

    // Between its files.

    fn chooser<'a>(&'a self, fleet: &'a Fleet) -> Chooser<'a> {
        Chooser {
            config: &self.config,
            fleet,
            workers: &self.workers,
            attempts: &self.attempts,
            hub: &self.hub,
        }
    }

    /// Records something if tracing is on.
    fn record(&mut self, note: impl FnOnce(&mut TraceRecorder)) {
        if let Some(recorder) = &mut self.recorder {
            note(recorder);
        }
    }

    /// Something improved: marks every waiting job to be covered again.
    pub(crate) fn cover_waiting(&mut self) {
        self.to_cover.extend(self.jobs.iter().filter(|(_, job)| job.is_waiting).map(|(id, _)| *id));
    }

    /// An attempt could not be sent: its items are requested from others.
    pub(crate) fn not_sent(&mut self, now: Duration, id: AttemptId, error: &SendError) {
        let worker = self.attempts.get(id).and_then(|attempt| self.workers.id(attempt.worker));
        warn!(worker = worker.map(WorkerId::short), %error, "a dispatch could not be sent");
        self.attempt_failed(now, id, true);
    }
}
