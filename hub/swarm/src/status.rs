//! The swarm's status as plain data, as `/api/swarm` shows it.

use moex_protocol::{ModelSummary, Visibility, WorkerId, WorkerKind};
use serde::{Deserialize, Serialize};

use super::auditor::Quarantined;
use super::dispatcher::Tier;

/// The swarm at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SwarmStatus {
    /// What is served.
    pub model: ModelSummary,
    /// How much of it workers hold.
    pub coverage: Coverage,
    /// The workers that have joined, by id.
    pub workers: Vec<WorkerStatus>,
    /// Workers that answered wrong too often, in the order of their quarantine. They are refused.
    pub quarantined: Vec<Quarantined>,
    /// What the hub computed itself.
    pub hub: HubShare,
    /// Counts since the start.
    pub totals: Totals,
    /// Bytes of weights that the hub sent over HTTP.
    pub weights_served_bytes: u64,
    /// The experts of each layer that has some. Thousands of numbers: not written out with the rest.
    #[serde(skip)]
    pub experts: Vec<LayerExperts>,
}

/// The experts of a layer, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerExperts {
    /// Of the model.
    pub layer: u16,
    /// How many workers can be asked for each.
    pub holders: Vec<u32>,
    /// How many rows the router sent to each lately; older ones count less.
    pub load: Vec<u32>,
}

/// How many blocks have a worker that can be asked now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// Blocks of the model.
    pub blocks: usize,
    /// Of these, held by at least one worker that can be asked.
    pub covered: usize,
    /// Copies of each block that are wanted.
    pub replicas: usize,
}

/// What `/health` says: small enough to be published often.
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
    /// What its owner calls it; empty if nothing.
    pub name: String,
    /// Browser or native.
    pub kind: WorkerKind,
    /// Its device, as it calls it.
    pub adapter: String,
    /// `webgpu`, `vulkan`, `metal`, `dx12`, `cpu`, `wasm-simd`.
    pub backend: String,
    /// Where it connects from.
    pub address: String,
    /// `syncing`, `serving`, `paused`, `draining` or `unhealthy`.
    pub state: String,
    /// What it is asked for.
    pub tier: Tier,
    /// Why it is not asked for everything, or for nothing; one sentence.
    pub reason: Option<String>,
    /// As the page last said.
    pub visibility: Visibility,
    /// Blocks the placement gives it.
    pub blocks_assigned: usize,
    /// Blocks it has reported resident.
    pub blocks_resident: usize,
    /// Bytes of these.
    pub bytes_resident: u64,
    /// Bytes of weights it says it downloaded, not those found in its cache.
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
    /// What one GPU sync costs it, as measured when it joined.
    pub sync_latency_micros: u64,
    /// How far its kernels were off in the self-test of its join, at worst: a normalised mean square error. Zero is exact.
    #[serde(default)]
    pub self_test_nmse: Option<f64>,
    /// Whether its answers with int8 activations are the hub's to the bit.
    pub is_exact: bool,
    /// Dispatches it had waiting at its last heartbeat.
    pub queue_depth: u32,
}

/// The hub as a replica of everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubShare {
    /// (row, expert) pairs computed.
    pub rows: u64,
    /// Computations, each as large as a message to a worker.
    pub dispatches: u64,
}

/// How much the swarm's tables hold at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Open, joined or not.
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
    /// Answers of workers that were used.
    pub answers: u64,
    /// Messages that ask again what another attempt was asked before.
    pub retries: u64,
    /// Messages that carry a second or later copy of something just asked.
    pub hedges: u64,
    /// Of these, those that were answered first.
    pub hedge_wins: u64,
    /// Second copies that did not leave because the budget was spent.
    pub hedges_denied: u64,
    /// Messages to workers that are passed over, to measure how fast they are now.
    pub probes: u64,
    /// Bytes of second copies and probes, there and back, if all are answered.
    pub duplicate_bytes: u64,
    /// Bytes of all messages to workers.
    pub bytes_sent: u64,
    /// Bytes of all messages from workers.
    pub bytes_received: u64,
    /// Parts of answers that were compared with another's or the hub's.
    pub compared: u64,
    /// Attempts that the hub checked, by chance or to settle a dispute.
    pub checks: u64,
    /// Answers that differed beyond the tolerance.
    pub mismatches: u64,
    /// Workers quarantined.
    pub quarantined: u64,
    /// Workers that were unhealthy, each time.
    pub unhealthy: u64,
    /// Connections and joins refused: a wrong token, a failed self-test, no memory, a quarantine.
    pub refused: u64,
    /// Connections refused or ended for passing a limit on connections, joins, messages or bytes.
    pub limited: u64,
    /// Sessions that ended, from either side.
    pub sessions_ended: u64,
    /// Answers to attempts that were settled or abandoned.
    pub late: u64,
    /// Attempts not answered in time.
    pub timeouts: u64,
    /// Attempts failed by workers, and answers that could not be used.
    pub errors: u64,
    /// Computations on the hub, each as large as a message to a worker.
    pub hub_computed: u64,
    /// Median time of a job.
    pub layer_p50_micros: u64,
    /// 95th percentile of the same.
    pub layer_p95_micros: u64,
    /// 99th percentile of the same.
    pub layer_p99_micros: u64,
}

impl Totals {
    /// What was counted after `before`; percentiles, which are of the last layers, as they are.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        self.with(before, |now, before| now - before)
    }

    /// The counts of both; percentiles as they are.
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
            quarantined: join(self.quarantined, other.quarantined),
            unhealthy: join(self.unhealthy, other.unhealthy),
            refused: join(self.refused, other.refused),
            limited: join(self.limited, other.limited),
            sessions_ended: join(self.sessions_ended, other.sessions_ended),
            late: join(self.late, other.late),
            timeouts: join(self.timeouts, other.timeouts),
            errors: join(self.errors, other.errors),
            hub_computed: join(self.hub_computed, other.hub_computed),
            layer_p50_micros: self.layer_p50_micros,
            layer_p95_micros: self.layer_p95_micros,
            layer_p99_micros: self.layer_p99_micros,
        }
    }
}
