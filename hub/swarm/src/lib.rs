//! Which worker holds what, who is asked, and what counts as an answer. No I/O, no clock, no chance.
//!
//! Read in this order: what exists ([`BlockCatalog`]) and what of it is wanted most (`heat`), who should hold it (`ring`,
//! `placement`) and who does (`shelf`, `load_failures`); whom to trust with work (`health`, `latency`, `tier`, `worker`); what a layer asks
//! (`plan`), who is at it (`attempts`, `job`), whom it is asked of (`choosing`, `hedging`, `asking`) and what comes back
//! (`answering`, `afterlife`, `combine`); who lies (`trust`, `judging`); who comes and goes (`membership`, `limits`),
//! what it all adds up to ([`SwarmStatus`]), and what of it may be written down ([`trace`]).
//!
//! A driver (`net`, the simulator, the tests) calls in this order, with times that never go back:
//!
//! | it has | it calls |
//! |---|---|
//! | a connection | [`Swarm::connected`], [`Swarm::handle_message`], [`Swarm::handle_text`], [`Swarm::disconnected`] |
//! | a layer to compute | [`Swarm::start_layer`] |
//! | a result of the hub's own computing | [`Swarm::hub_computed`], [`Swarm::hub_failed`] |
//! | a deadline that has come | [`Swarm::handle_timeout`] |
//!
//! and after each call takes all of [`Swarm::poll_action`] (and of [`Swarm::poll_trace`], if it wants a trace), then arms
//! its timer by [`Swarm::poll_timeout`].

mod alone;
mod catalog;
mod heat;
mod status;
mod token;

mod load_failures;
mod placement;
mod ring;
mod shelf;

mod health;
mod latency;
mod tier;
mod worker;

mod afterlife;
mod answering;
mod asking;
mod attempts;
mod choosing;
mod combine;
mod hedging;
mod job;
mod judging;
mod plan;
mod trust;

mod limits;
mod membership;

pub mod trace;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use moex_protocol::{AttemptId, CompressionMode, Dispatch, Dtype, ModelSummary, WorkerId};
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;

pub use self::asking::MAX_JOBS;
pub use self::catalog::BlockCatalog;
pub use self::hedging::{DEFAULT_HEDGE_BUDGET, Hedge, MAX_HEDGE};
pub use self::job::{JobError, LayerJob};
pub use self::limits::MAX_CONNECTIONS_PER_ADDRESS;
pub use self::membership::{MAX_CONNECTIONS, close_code};
pub use self::plan::FormPolicy;
pub use self::status::{Coverage, HubShare, InFlight, Readiness, SwarmStatus, Totals, WorkerStatus};
pub use self::tier::Tier;
pub use self::token::JoinToken;
pub use self::trust::{Evidence, MAX_OFFENCES, Quarantined, TOLERANCE_NMSE};

use self::afterlife::Afterlife;
use self::attempts::AttemptTable;
use self::combine::Part;
use self::heat::Heat;
use self::hedging::HedgeBudget;
use self::job::Job;
use self::judging::Check;
use self::latency::{Latencies, Latency};
use self::limits::{Gate, Pace};
use self::membership::Connection;
use self::placement::Placement;
use self::ring::Ring;
use self::shelf::Holders;
use self::trace::Tape;
use self::trust::Register;

/// A connection, as its driver names it; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// A layer's work, as its driver names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// A computation of the hub's own, as the swarm names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComputeId(pub u64);

/// How the swarm works.
#[derive(Clone, Debug)]
pub struct SwarmConfig {
    /// Copies of each block, r.
    pub replicas: usize,
    /// How many workers are asked for each cell, and when.
    pub hedge: Hedge,
    /// How long to wait for an answer before asking another; more for a worker that is known to be slower.
    pub timeout: Duration,
    /// Timeouts in a row that take a worker out until it answers when it is tried beside others.
    pub strikes: u32,
    /// The number format of activations on the wire.
    pub wire: Dtype,
    /// How results come back.
    pub form: FormPolicy,
    /// When frames are compressed, both ways.
    pub compression: CompressionMode,
    /// Whether the hub computes what no worker can.
    pub hub_compute: bool,
    /// One answer in so many is checked against the hub's own, if the hub computes; 1 is each before it is used, 0 none.
    pub check_every: u32,
    /// What the choice of the answers to check is drawn from: not for workers to guess.
    pub seed: u64,
    /// How long a job waits for a holder when the hub does not compute.
    pub coverage_wait: Duration,
    /// How often workers are pinged.
    pub heartbeat_interval: Duration,
    /// What a worker must show to join.
    pub token: JoinToken,
    /// What is served.
    pub model: ModelSummary,
    /// Whether what becomes of each layer is written down, for [`Swarm::poll_trace`].
    pub is_traced: bool,
}

impl SwarmConfig {
    /// The paper's numbers where it has them: 500 ms, three strikes; two replicas, adaptive hedging, hub as last replica,
    /// one answer in 256 checked. `seed` is 0: a driver puts a secret there.
    pub fn new(token: JoinToken, model: ModelSummary) -> Self {
        Self {
            replicas: 2,
            hedge: Hedge::default(),
            timeout: Duration::from_millis(500),
            strikes: 3,
            wire: Dtype::F16,
            form: FormPolicy::PerExpert,
            compression: CompressionMode::Off,
            hub_compute: true,
            check_every: 256,
            seed: 0,
            coverage_wait: Duration::from_secs(30),
            heartbeat_interval: Duration::from_secs(2),
            token,
            model,
            is_traced: false,
        }
    }

    /// Whether no answer is used before the hub agrees.
    fn checks_everything(&self) -> bool {
        self.hub_compute && self.check_every == 1
    }
}

/// What the driver is to do.
#[derive(Debug)]
pub enum Action {
    /// Send a message. A connection that cannot take it now is to be closed, and reported as disconnected.
    Transmit(ConnectionId, Bytes),
    /// Close a connection with this code, after what was to be sent; it is forgotten already.
    Close(ConnectionId, u16),
    /// Compute on the hub, rounding like a worker. At most one at a time for each job.
    HubCompute(ComputeId, Dispatch),
    /// (T, D): a job's gated sum over its experts, or why there is none.
    Finished(JobId, Result<Vec<f32>, JobError>),
}

/// The swarm.
#[derive(Debug)]
pub struct Swarm {
    config: SwarmConfig,
    catalog: BlockCatalog,
    connections: BTreeMap<ConnectionId, Connection>,
    /// The connection of each joined worker.
    by_id: HashMap<WorkerId, ConnectionId>,
    ring: Ring,
    placement: Placement,
    holders: Holders,
    jobs: BTreeMap<JobId, Job>,
    attempts: AttemptTable,
    afterlife: Afterlife,
    budget: HedgeBudget,
    /// When a worker that is passed over may be probed again.
    next_probe: Duration,
    /// By when they are to be answered: at most one a worker.
    probes: BTreeSet<(Duration, AttemptId, ConnectionId)>,
    hub_latencies: Latencies,
    /// Of all workers' answers.
    worker_latencies: Latencies,
    /// Computations that the hub was asked for and has not done.
    n_computing: usize,
    heat: Heat,
    last_compute: ComputeId,
    /// By the computation that decides them.
    checks: BTreeMap<ComputeId, Check>,
    register: Register,
    random: Xoshiro256PlusPlus,
    gate: Gate,
    actions: VecDeque<Action>,
    /// Work that `run` does before a call returns.
    to_pump: BTreeSet<ConnectionId>,
    to_cover: BTreeSet<JobId>,
    to_sync: BTreeSet<ConnectionId>,
    /// What came second of a job, and from whom.
    to_confront: Vec<(JobId, WorkerId, Vec<Part>)>,
    must_rebalance: bool,
    rebalances: Pace,
    is_shutting_down: bool,
    totals: Totals,
    hub_share: HubShare,
    layer_latency: Latency,
    tape: Option<Box<Tape>>,
}

impl Swarm {
    /// A swarm with no workers. `replicas` is brought to at least 1.
    pub fn new(mut config: SwarmConfig, catalog: BlockCatalog) -> Self {
        config.replicas = config.replicas.max(1);
        Self {
            holders: Holders::new(catalog.len()),
            heat: Heat::new(catalog.len()),
            budget: HedgeBudget::new(config.hedge),
            random: Xoshiro256PlusPlus::seed_from_u64(config.seed),
            tape: Tape::new(&config),
            config,
            catalog,
            connections: BTreeMap::new(),
            by_id: HashMap::new(),
            ring: Ring::default(),
            placement: Placement::default(),
            jobs: BTreeMap::new(),
            attempts: AttemptTable::default(),
            afterlife: Afterlife::default(),
            next_probe: Duration::ZERO,
            probes: BTreeSet::new(),
            hub_latencies: Latencies::default(),
            worker_latencies: Latencies::default(),
            n_computing: 0,
            checks: BTreeMap::new(),
            register: Register::default(),
            gate: Gate::default(),
            last_compute: ComputeId::default(),
            actions: VecDeque::new(),
            to_pump: BTreeSet::new(),
            to_cover: BTreeSet::new(),
            to_sync: BTreeSet::new(),
            to_confront: Vec::new(),
            must_rebalance: false,
            rebalances: Pace::default(),
            is_shutting_down: false,
            totals: Totals::default(),
            hub_share: HubShare::default(),
            layer_latency: Latency::default(),
        }
    }

    /// Deadlines that have come: of attempts and their second copies, of jobs that wait for a holder, of sessions.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.expire_attempts(now);
        self.expire_probes(now);
        self.hedge(now);
        self.expire_sessions(now);
        self.run(now);
        self.expire_jobs(now);
        self.run(now);
    }

    /// The next thing to do. Take all of them after each call.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Swarm::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let sessions = self.connections.values().filter_map(|c| c.session.poll_timeout()).min();
        let rebalance = self.must_rebalance.then(|| self.rebalances.next());
        let probe = self.probes.first().map(|(deadline, ..)| *deadline);
        let deadlines = [self.attempts.next_deadline(), self.next_job_deadline(), sessions, rebalance, probe];
        deadlines.into_iter().flatten().min()
    }

    /// Ends every job and lets every worker go.
    pub fn shut_down(&mut self, now: Duration) {
        self.is_shutting_down = true;
        let jobs: Vec<_> = self.jobs.keys().copied().collect();
        for job in jobs {
            self.finish(job, now, Err(JobError::ShuttingDown));
        }
        self.drain_all(now);
        self.run(now);
    }

    /// How the swarm is. `weights_served_bytes` is the HTTP side's to fill in.
    pub fn status(&self) -> SwarmStatus {
        let mut workers: Vec<WorkerStatus> = self
            .connections
            .values()
            .filter_map(|c| {
                let worker = c.worker.as_ref()?;
                Some(worker.status(&c.address, c.session.state(), self.catalog.block_bytes()))
            })
            .collect();
        workers.sort_by_key(|worker| worker.id);
        self.say_who_is_passed_over(&mut workers);
        SwarmStatus {
            model: self.config.model.clone(),
            coverage: self.coverage(),
            workers,
            quarantined: self.register.quarantined().cloned().collect(),
            hub: self.hub_share,
            totals: Totals {
                layer_p50_micros: self.layer_latency.quantile_micros(0.5),
                layer_p95_micros: self.layer_latency.quantile_micros(0.95),
                layer_p99_micros: self.layer_latency.quantile_micros(0.99),
                ..self.totals
            },
            weights_served_bytes: 0,
        }
    }

    /// Who is there and how much of the model they hold.
    pub fn readiness(&self) -> Readiness {
        let workers = self.connections.values().filter(|connection| connection.worker.is_some()).count();
        Readiness { workers, coverage: self.coverage() }
    }

    fn coverage(&self) -> Coverage {
        let is_covered =
            |index: &catalog::BlockIndex| self.holders.of(*index).iter().any(|w| self.is_usable(*w));
        Coverage {
            blocks: self.catalog.len(),
            covered: self.catalog.indices().filter(is_covered).count(),
            replicas: self.config.replicas,
        }
    }

    /// How much there is in its tables.
    pub fn in_flight(&self) -> InFlight {
        InFlight {
            connections: self.connections.len(),
            jobs: self.jobs.len(),
            attempts: self.attempts.iter().count(),
        }
    }

    /// A worker that takes several times as long as its peers is asked for what they do not hold: as good as standing by.
    fn say_who_is_passed_over(&self, workers: &mut [WorkerStatus]) {
        let joined = self.connections.values().filter_map(|c| c.worker.as_ref());
        let mut medians: Vec<(Duration, WorkerId)> =
            joined.filter_map(|worker| Some((worker.decode_median()?, worker.id()))).collect();
        medians.sort_unstable();
        let Some((others, _)) = medians.get(medians.len().saturating_sub(1) / 2).copied() else { return };
        for worker in
            workers.iter_mut().filter(|worker| worker.tier == Tier::Decode && worker.reason.is_none())
        {
            let own = medians.iter().find(|(_, id)| *id == worker.id).map(|(median, _)| *median);
            if let Some(reason) = own.and_then(|own| tier::passed_over(own, others)) {
                (worker.tier, worker.reason) = (Tier::Standby, Some(reason));
            }
        }
    }

    /// What is served.
    pub fn model(&self) -> &ModelSummary {
        &self.config.model
    }

    /// Brings everything that the last call touched to rest. Ends: sessions give finitely many events, and asking for a
    /// cell uses up one of finitely many ways to get it.
    fn run(&mut self, now: Duration) {
        loop {
            if let Some(connection) = self.to_pump.pop_first() {
                self.pump(now, connection);
            } else if self.must_rebalance && self.rebalances.take(now) {
                self.must_rebalance = false;
                self.rebalance();
            } else if let Some(connection) = self.to_sync.pop_first() {
                self.sync(now, connection);
            } else if let Some(job) = self.to_cover.pop_first() {
                self.cover(now, job);
            } else {
                return;
            }
        }
    }
}
