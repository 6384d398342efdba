//! The swarm's settings, which a driver sets once.

use std::time::Duration;

use moex_protocol::{CompressionMode, Dtype, Join, ModelSummary, WorkerId, WorkerKey};

use super::policy::{Hedge, Probation, Verify};
use super::token::JoinToken;

/// Workers at different addresses whose answers must be the same, where they must be.
const AGREEMENT: usize = 2;

/// The swarm's settings.
#[derive(Clone, Debug)]
pub struct SwarmConfig {
    /// Number of workers that hold each block, r.
    pub replicas: usize,
    /// How many workers are asked for each work item, and when.
    pub hedge: Hedge,
    /// How long to wait for an answer before another worker is asked; longer for a worker known to be slower.
    pub timeout: Duration,
    /// Failures in a row after which a worker is unhealthy: then it only gets probes until it answers.
    pub max_failures: u32,
    /// The number format of activations on the wire.
    pub wire: Dtype,
    /// When frames are compressed, in both directions.
    pub compression: CompressionMode,
    /// Whether the hub computes items that no worker can.
    pub hub_compute: bool,
    /// What is known of an answer before it is used.
    pub verify: Verify,
    /// One answer in this many is checked against the hub's own, if the hub computes. 1 checks each answer before it is
    /// used, 0 checks none.
    pub check_every: u32,
    /// What workers may hold that have not proven themselves.
    pub probation: Probation,
    /// Seed for the choice of answers to check. Workers must not be able to guess it.
    pub seed: u64,
    /// How long a job waits for a holder if the hub does not compute.
    pub coverage_wait: Duration,
    /// How often workers are pinged.
    pub heartbeat_interval: Duration,
    /// Token that a worker must send to join.
    pub token: JoinToken,
    /// Who a worker with this key is. The simulator names workers as a trace does, which has no keys.
    pub id_of: fn(WorkerKey) -> WorkerId,
    /// The served model.
    pub model: ModelSummary,
    /// Whether a trace of each layer is recorded, for [`super::Swarm::poll_trace`].
    pub is_traced: bool,
}

impl SwarmConfig {
    /// The paper's numbers where it has them (500 ms, three failures), two replicas, adaptive hedging, the hub as last
    /// replica, each answer checked before it is used, and one in 256 computed by the hub as well. `seed` is 0: a
    /// driver sets it to a secret.
    pub fn new(token: JoinToken, model: ModelSummary) -> Self {
        Self {
            replicas: 2,
            hedge: Hedge::default(),
            timeout: Duration::from_millis(500),
            max_failures: 3,
            wire: Dtype::F16,
            compression: CompressionMode::Off,
            hub_compute: true,
            verify: Verify::default(),
            check_every: 256,
            probation: Probation::default(),
            seed: 0,
            coverage_wait: Duration::from_secs(30),
            heartbeat_interval: Duration::from_secs(2),
            token,
            id_of: WorkerKey::id,
            model,
            is_traced: false,
        }
    }

    /// Whether no answer is used before the hub has computed the same.
    pub(crate) fn checks_everything(&self) -> bool {
        self.hub_compute && self.check_every == 1
    }

    /// Whether the hub checks each answer that is used, before or soon after its use.
    pub(crate) fn checks_what_is_used(&self) -> bool {
        self.hub_compute && (self.wants_products() || self.checks_everything())
    }

    /// Whether workers are to return by what their answers can be checked.
    pub fn wants_products(&self) -> bool {
        self.verify != Verify::Audit
    }

    /// Whether no answer is used before a worker at another address has given the same bits, or the hub.
    pub(crate) fn wants_agreement(&self) -> bool {
        self.verify == Verify::Exact && self.hub_compute
    }

    /// Whether this worker may be asked for digests: where two have to agree, and honest workers give the same bits.
    pub(crate) fn asks_for_digests(&self, join: &Join) -> bool {
        // Where the hub computes all before it is used, nobody waits for a second worker.
        let is_wanted = self.wants_agreement() && !self.checks_everything() && self.is_exact();
        is_wanted && join.gives_digests && join.is_exact()
    }

    /// Answers that settle a work item.
    pub(crate) fn needed_answers(&self) -> usize {
        if self.wants_agreement() { AGREEMENT } else { 1 }
    }

    /// Whether honest workers give the hub's own bits. In f32 a GPU adds in another order.
    pub(crate) fn is_exact(&self) -> bool {
        self.model.activations == "int8"
    }

    /// Floating-point operations of one (row, expert) pair.
    pub(crate) fn flops_per_pair(&self) -> f64 {
        // Gate, up and down: three matrices of D x F, a multiplication and an addition each.
        6.0 * f64::from(self.model.hidden) * f64::from(self.model.inner)
    }
}
