//! The swarm's status as plain data, as `/api/swarm` shows it.

use moex_protocol::{ModelSummary, Visibility, WorkerId, WorkerKind};
use serde::{Deserialize, Serialize};

use super::auditor::Quarantined;
use super::dispatcher::Tier;
use super::policy::Verify;

/// The swarm's status at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SwarmStatus {
    /// The served model.
    pub model: ModelSummary,
    /// How much of it workers hold.
    pub coverage: Coverage,
    /// The workers that have joined, by id.
    pub workers: Vec<WorkerStatus>,
    /// Workers quarantined for wrong answers, in order. They are refused.
    pub quarantined: Vec<Quarantined>,
    /// What the hub computed itself.
    pub hub: HubShare,
    /// What the hub found out about answers before it used them.
    #[serde(default)]
    pub verification: Verification,
    /// Counts since the start.
    pub totals: Totals,
    /// Bytes of weights that the hub sent over HTTP.
    pub weights_served_bytes: u64,
    /// The experts of each MoE layer. Thousands of numbers, so they are not serialised with the rest.
    #[serde(skip)]
    pub experts: Vec<LayerExperts>,
}

/// The experts of a layer, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerExperts {
    /// Index of the layer.
    pub layer: u16,
    /// Number of usable workers for each expert.
    pub holders: Vec<u32>,
    /// Recent rows that the router sent to each expert; older ones count less.
    pub load: Vec<u32>,
}

/// How many blocks have a usable worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// Blocks of the model.
    pub blocks: usize,
    /// Those held by at least one usable worker.
    pub covered: usize,
    /// Wanted copies of each block.
    pub replicas: usize,
}

/// The data of `/health`: small enough to be published often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// Workers that have joined.
    pub workers: usize,
    /// How much of the model they hold.
    pub coverage: Coverage,
}

/// One worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Stable id.
    pub id: WorkerId,
    /// Name given by its owner; empty if none.
    pub name: String,
    /// The invitation that admitted it, if it was not the hub's token.
    #[serde(default)]
    pub invitation: Option<String>,
    /// Browser or native.
    pub kind: WorkerKind,
    /// Its device, by the device's own name.
    pub adapter: String,
    /// `webgpu`, `vulkan`, `metal`, `dx12`, `cpu`, `wasm-simd`.
    pub backend: String,
    /// Address that it connects from.
    pub address: String,
    /// `syncing`, `serving`, `paused`, `draining` or `unhealthy`.
    pub state: String,
    /// Its tier.
    pub tier: Tier,
    /// Why it gets no work, or not all kinds; one sentence.
    pub reason: Option<String>,
    /// As the page last reported.
    pub visibility: Visibility,
    /// Whether its key has not proven itself yet, so that it holds a bounded share while others have free memory.
    #[serde(default)]
    pub is_on_probation: bool,
    /// Blocks the placement gives it.
    pub blocks_assigned: usize,
    /// Blocks it has reported resident.
    pub blocks_resident: usize,
    /// Bytes of these.
    pub bytes_resident: u64,
    /// Bytes of weights that it reports as downloaded, without those found in its cache.
    pub bytes_downloaded: u64,
    /// Bytes of weights that the hub sent it over HTTP.
    pub weights_served_bytes: u64,
    /// Messages sent to it.
    pub dispatches: u64,
    /// Answers used.
    pub answers: u64,
    /// (row, expert) pairs in these answers.
    pub rows: u64,
    /// Attempts it did not answer in time.
    pub timeouts: u64,
    /// Attempts it failed, and answers that could not be used.
    pub errors: u64,
    /// Median time from dispatch to answer.
    pub latency_p50_micros: u64,
    /// 99th percentile of the same.
    pub latency_p99_micros: u64,
    /// The fastest of its last pings; none before one was answered.
    #[serde(default)]
    pub round_trip_micros: Option<u64>,
    /// Latencies that stand for those of its last answers, ascending: at most 32, of equal weight.
    #[serde(skip)]
    pub answers_micros: Vec<u64>,
    /// Time of one GPU sync, measured at its join.
    pub sync_latency_micros: u64,
    /// Worst error of its kernels in the self-test at its join, as normalised mean squared error; zero is exact.
    #[serde(default)]
    pub self_test_nmse: Option<f64>,
    /// Whether its answers with int8 activations are the hub's to the bit.
    pub is_exact: bool,
    /// Dispatches it had waiting at its last heartbeat.
    pub queue_depth: u32,
}

/// See [`WorkerStatus::answers_micros`].
pub(crate) const ANSWERS_SHOWN: usize = 32;

/// The hub as a replica of every block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubShare {
    /// (row, expert) pairs computed.
    pub rows: u64,
    /// Computations, each as large as a message to a worker.
    pub dispatches: u64,
    /// Which of the two is faster, once both are measured and the faster is to compute.
    #[serde(default)]
    pub compared: Option<StepTimes>,
}

/// How long an engine's step takes with the hub's own experts and with those of its workers, for steps of about as many rows as the
/// last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepTimes {
    /// With the hub's own, in microseconds.
    pub own_micros: u64,
    /// With its workers', in microseconds; none if their last step failed, or if none of them answered anything in it.
    pub workers_micros: Option<u64>,
    /// Whether the hub computes, since it is faster.
    pub is_hub_used: bool,
}

/// Counts of answers checked before they were used, in experts' parts of answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verification {
    /// What is promised.
    pub mode: Verify,
    /// Parts that were checked.
    pub checked: u64,
    /// Of these, parts that the hub computed itself, since it had not prepared a check of their expert yet.
    pub recomputed: u64,
    /// Of these, parts that failed, and that the hub computed itself.
    pub refuted: u64,
    /// Parts that differed from the hub's own results: lies.
    pub lies: u64,
    /// Bytes that the checks keep in memory.
    pub bytes: u64,
}

/// Sizes of the swarm's tables at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Open connections, joined or not.
    pub connections: usize,
    /// Layers that have not finished.
    pub jobs: usize,
    /// Messages to workers that may still be answered.
    pub attempts: usize,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Jobs finished.
    pub layers: u64,
    /// Messages to workers.
    pub dispatches: u64,
    /// Answers from workers that were used.
    pub answers: u64,
    /// Messages that repeat a request of an earlier attempt.
    pub retries: u64,
    /// Messages with a second or later copy of a recent request.
    pub hedges: u64,
    /// Hedges that were answered first.
    pub hedge_wins: u64,
    /// Second copies not sent because the budget was spent.
    pub hedges_denied: u64,
    /// Messages to workers that otherwise get no work, to measure their current speed.
    pub probes: u64,
    /// Bytes of second copies and probes, both ways, if all are answered.
    pub duplicate_bytes: u64,
    /// Bytes of all messages to workers.
    pub bytes_sent: u64,
    /// Bytes of all messages from workers.
    pub bytes_received: u64,
    /// Parts of answers that were compared with another's or the hub's.
    pub compared: u64,
    /// Attempts that the hub checked, at random or to settle a dispute.
    pub checks: u64,
    /// Answers that differed beyond the tolerance.
    pub mismatches: u64,
    /// Wrong answers of workers whose other answers were used unchecked (`--verify audit`): what was computed with workers until
    /// then is in doubt, and texts of that time began again or failed.
    #[serde(default)]
    pub doubts: u64,
    /// Workers quarantined.
    pub quarantined: u64,
    /// Times that a worker became unhealthy.
    pub unhealthy: u64,
    /// Connections and joins refused: a wrong token, a failed self-test, no memory, a quarantine.
    pub refused: u64,
    /// Connections refused or closed for exceeding a limit on connections, joins, messages or bytes.
    pub limited: u64,
    /// Sessions that ended, from either side.
    pub sessions_ended: u64,
    /// Answers to attempts that were already settled or abandoned.
    pub late: u64,
    /// Attempts not answered in time.
    pub timeouts: u64,
    /// Attempts that failed on a worker or gave an unusable answer.
    pub errors: u64,
    /// Computations on the hub, each as large as a message to a worker.
    pub hub_computed: u64,
    /// Mean time of the last jobs.
    #[serde(default)]
    pub layer_mean_micros: u64,
    /// Median time of a job.
    pub layer_p50_micros: u64,
    /// 95th percentile of the same.
    pub layer_p95_micros: u64,
    /// 99th percentile of the same.
    pub layer_p99_micros: u64,
}

impl Totals {
    /// Counts since `before`; percentiles, which cover the last layers, unchanged.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        self.with(before, |now, before| now - before)
    }

    /// Sums of the counts; percentiles unchanged.
    #[must_use]
    pub fn plus(&self, more: &Self) -> Self {
        self.with(more, |one, other| one + other)
    }

    fn with(&self, other: &Self, join: fn(u64, u64) -> u64) -> Self {
        Self {
            layers: join(self.layers, other.layers),
            dispatches: join(self.dispatches, other.dispatches),
            answers: join(self.answers, other.answers),
            retries: join(self.retries, other.retries),
            hedges: join(self.hedges, other.hedges),
            hedge_wins: join(self.hedge_wins, other.hedge_wins),
            hedges_denied: join(self.hedges_denied, other.hedges_denied),
            probes: join(self.probes, other.probes),
            duplicate_bytes: join(self.duplicate_bytes, other.duplicate_bytes),
            bytes_sent: join(self.bytes_sent, other.bytes_sent),
            bytes_received: join(self.bytes_received, other.bytes_received),
            compared: join(self.compared, other.compared),
            checks: join(self.checks, other.checks),
            mismatches: join(self.mismatches, other.mismatches),
            doubts: join(self.doubts, other.doubts),
            quarantined: join(self.quarantined, other.quarantined),
            unhealthy: join(self.unhealthy, other.unhealthy),
            refused: join(self.refused, other.refused),
            limited: join(self.limited, other.limited),
            sessions_ended: join(self.sessions_ended, other.sessions_ended),
            late: join(self.late, other.late),
            timeouts: join(self.timeouts, other.timeouts),
            errors: join(self.errors, other.errors),
            hub_computed: join(self.hub_computed, other.hub_computed),
            layer_mean_micros: self.layer_mean_micros,
            layer_p50_micros: self.layer_p50_micros,
            layer_p95_micros: self.layer_p95_micros,
            layer_p99_micros: self.layer_p99_micros,
        }
    }
}
