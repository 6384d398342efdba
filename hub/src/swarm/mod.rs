//! Which worker holds what, who is asked, and what counts as an answer. No I/O, no clock, no chance.
//!
//! Read in this order: what exists ([`BlockCatalog`]), who should hold it (`ring`, `placement`) and who does (`shelf`),
//! whom to trust with work (`health`, `latency`, `worker`), what a layer asks (`plan`), who is at it (`attempts`, `job`,
//! `dispatching`), who comes and goes (`membership`), and what it all adds up to (`combine`, [`SwarmStatus`]).
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
//! and after each call takes all of [`Swarm::poll_action`], then arms its timer by [`Swarm::poll_timeout`].

mod catalog;
mod status;
mod token;

mod placement;
mod ring;
mod shelf;

mod health;
mod latency;
mod worker;

mod attempts;
mod combine;
mod dispatching;
mod job;
mod membership;
mod plan;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use moex_protocol::{Compression, Dispatch, Dtype, ModelSummary, WorkerId};

pub use self::catalog::BlockCatalog;
pub use self::dispatching::MAX_JOBS;
pub use self::job::{JobError, LayerJob};
pub use self::membership::{MAX_CONNECTIONS, close_code};
pub use self::plan::FormPolicy;
pub use self::status::{Coverage, HubShare, SwarmStatus, Totals, WorkerStatus};
pub use self::token::JoinToken;

use self::attempts::AttemptTable;
use self::job::Job;
use self::latency::Latency;
use self::membership::Connection;
use self::placement::Placement;
use self::shelf::Holders;

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
    /// Workers asked for each cell at once, h: 1 to 4.
    pub hedge: usize,
    /// How long to wait for an answer before asking another; more for a worker that is known to be slower.
    pub timeout: Duration,
    /// Timeouts in a row that take a worker out until its next heartbeat that answers.
    pub strikes: u32,
    /// The number format of activations on the wire.
    pub wire: Dtype,
    /// How results come back.
    pub form: FormPolicy,
    /// Whether frames are compressed.
    pub compression: Compression,
    /// Whether the hub computes what no worker can.
    pub hub_compute: bool,
    /// How long a job waits for a holder when the hub does not compute.
    pub coverage_wait: Duration,
    /// How often workers are pinged.
    pub heartbeat_interval: Duration,
    /// What a worker must show to join.
    pub token: JoinToken,
    /// What is served.
    pub model: ModelSummary,
}

impl SwarmConfig {
    /// The paper's numbers where it has them: 500 ms, three strikes; two replicas, no hedging, hub as last replica.
    pub fn new(token: JoinToken, model: ModelSummary) -> Self {
        Self {
            replicas: 2,
            hedge: 1,
            timeout: Duration::from_millis(500),
            strikes: 3,
            wire: Dtype::F16,
            form: FormPolicy::PerExpert,
            compression: Compression::Off,
            hub_compute: true,
            coverage_wait: Duration::from_secs(30),
            heartbeat_interval: Duration::from_secs(2),
            token,
            model,
        }
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
    placement: Placement,
    holders: Holders,
    jobs: BTreeMap<JobId, Job>,
    attempts: AttemptTable,
    last_compute: ComputeId,
    actions: VecDeque<Action>,
    /// Work that `run` does before a call returns.
    to_pump: BTreeSet<ConnectionId>,
    to_cover: BTreeSet<JobId>,
    to_sync: BTreeSet<ConnectionId>,
    must_rebalance: bool,
    is_shutting_down: bool,
    totals: Totals,
    hub_share: HubShare,
    layer_latency: Latency,
}

impl Swarm {
    /// A swarm with no workers. `hedge` is brought into 1..=4 and `replicas` to at least 1.
    pub fn new(mut config: SwarmConfig, catalog: BlockCatalog) -> Self {
        config.hedge = config.hedge.clamp(1, 4);
        config.replicas = config.replicas.max(1);
        Self {
            holders: Holders::new(catalog.len()),
            config,
            catalog,
            connections: BTreeMap::new(),
            by_id: HashMap::new(),
            placement: Placement::default(),
            jobs: BTreeMap::new(),
            attempts: AttemptTable::default(),
            last_compute: ComputeId::default(),
            actions: VecDeque::new(),
            to_pump: BTreeSet::new(),
            to_cover: BTreeSet::new(),
            to_sync: BTreeSet::new(),
            must_rebalance: false,
            is_shutting_down: false,
            totals: Totals::default(),
            hub_share: HubShare::default(),
            layer_latency: Latency::default(),
        }
    }

    /// Deadlines that have come: of attempts, of jobs that wait for a holder, of sessions.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.expire_attempts(now);
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
        [self.attempts.next_deadline(), self.next_job_deadline(), sessions].into_iter().flatten().min()
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
        let is_covered =
            |index: &catalog::BlockIndex| self.holders.of(*index).iter().any(|w| self.is_usable(*w));
        let mut workers: Vec<WorkerStatus> = self
            .connections
            .values()
            .filter_map(|c| {
                let worker = c.worker.as_ref()?;
                Some(worker.status(&c.address, c.session.state(), self.catalog.block_bytes()))
            })
            .collect();
        workers.sort_by_key(|worker| worker.id);
        SwarmStatus {
            model: self.config.model.clone(),
            coverage: Coverage {
                blocks: self.catalog.len(),
                covered: self.catalog.indices().filter(is_covered).count(),
                replicas: self.config.replicas,
            },
            workers,
            hub: self.hub_share,
            totals: Totals {
                layer_p50_micros: self.layer_latency.quantile_micros(0.5),
                layer_p99_micros: self.layer_latency.quantile_micros(0.99),
                ..self.totals
            },
            weights_served_bytes: 0,
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
            } else if std::mem::take(&mut self.must_rebalance) {
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
