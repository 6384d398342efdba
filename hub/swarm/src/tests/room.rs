//! A swarm and its workers in one place: virtual time, messages delivered at once, and scripts that decide when a worker
//! answers, and what.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use moex_protocol::{
    Answer, AnswerPart, AttemptId, Beat, Block, BlockReport, BlockSource, Dispatch, ErrorCode, ExpertId,
    Join, LayerId, ModelSummary, ProductFormat, ProductShape, Products, Reply, SelfTest, Visibility,
    WeightSync, WorkerConfig, WorkerEvent, WorkerId, WorkerKey, WorkerKind, WorkerSession, tensor,
};

use crate::*;
use moex_protocol::Routing;

pub(super) const TOKEN: &str = "let me in";
pub(super) const HIDDEN: usize = 4;
pub(super) const INNER: usize = 2;
pub(super) const N_LAYERS: u16 = 2;
pub(super) const N_EXPERTS: u16 = 8;
pub(super) const BLOCK_BYTES: u64 = 100;

/// Everything in one struct; `step` delivers, `advance` lets time pass.
pub(super) struct Room {
    pub now: Duration,
    pub swarm: Swarm,
    pub workers: BTreeMap<ConnectionId, Scripted>,
    pub finished: BTreeMap<JobId, Result<Vec<f32>, JobError>>,
    /// Of those that finished well, what was summed.
    pub results: BTreeMap<JobId, LayerResult>,
    pub computes: Vec<(ComputeId, Dispatch)>,
    pub closed: Vec<(ConnectionId, u16)>,
    /// From where workers join.
    pub address: String,
    jobs: u64,
    connections: u64,
}

/// A worker that loads what it is told to, and else does what the test says.
pub(super) struct Scripted {
    pub session: WorkerSession,
    /// What arrives is kept back until it thaws.
    pub is_frozen: bool,
    /// Whether it reports blocks as soon as it is told to hold them.
    pub loads: bool,
    /// Whether it reports instead that it could not load them.
    pub fails_loads: bool,
    pub syncs: Vec<WeightSync>,
    pub rejected: Option<ErrorCode>,
    kept_back: Vec<Bytes>,
}

pub(super) fn config() -> SwarmConfig {
    let model = ModelSummary {
        name: "test".to_owned(),
        hidden: HIDDEN as u32,
        inner: INNER as u32,
        n_layers: u32::from(N_LAYERS),
        n_experts: u32::from(N_EXPERTS),
        n_experts_per_token: 2,
        format: "f16".to_owned(),
        layer_formats: Vec::new(),
        activations: "f32".to_owned(),
        block_bytes: BLOCK_BYTES,
        max_rows: 16,
        max_pairs: 32,
    };
    let (coverage_wait, verify) = (Duration::from_secs(5), Verify::Audit);
    // Workers are told apart by small numbers.
    let id_of = |key: WorkerKey| WorkerId(key.0);
    SwarmConfig { coverage_wait, verify, id_of, ..SwarmConfig::new(JoinToken::new(TOKEN), model) }
}

pub(super) fn catalog(n_layers: u16, n_experts: u16) -> BlockCatalog {
    let blocks = (0..n_layers).flat_map(|layer| (0..n_experts).map(move |expert| block(layer, expert)));
    let source =
        |block| BlockSource { block, url: "/shards/x".to_owned(), start: 0, end: 1, blake3: String::new() };
    BlockCatalog::new(blocks.map(source).collect(), BLOCK_BYTES)
}

pub(super) fn block(layer: u16, expert: u16) -> Block {
    Block { layer: LayerId(layer), expert: ExpertId(expert) }
}

/// Three rows, two experts each; expert 3 gets two of them.
pub(super) fn job() -> LayerJob {
    let rows = (0..3 * HIDDEN).map(|i| 0.37 * i as f32 - 1.3).collect();
    let routing =
        Routing { k: 2, experts: vec![3, 0, 5, 3, 7, 1], gates: vec![0.7, 0.3, 0.6, 0.4, 0.55, 0.45] };
    LayerJob { layer: LayerId(1), rows, routing }
}

/// What an honest worker, or the hub, answers: an expert is a factor here, rounded as the wire rounds.
pub(super) fn answer(dispatch: &Dispatch) -> Answer {
    let hidden = usize::from(dispatch.hidden);
    let rows = tensor::decode_rows(dispatch.dtype, &dispatch.rows, hidden).unwrap();
    let mut parts = Vec::new();
    for call in &dispatch.calls {
        let mut out = Vec::new();
        for pair in &call.pairs {
            let at = usize::from(pair.row) * hidden;
            let factor = pair.gate.to_f32() * (1.1 + f32::from(call.expert.0) / 7.0);
            out.extend(rows[at..at + hidden].iter().map(|value| value * factor));
        }
        parts.push(part(dispatch, call.expert, &out));
    }
    let Dispatch { layer, hidden, dtype, .. } = *dispatch;
    let products = (dispatch.reply == Reply::RowsAndProducts).then(|| products(dispatch, PRODUCTS));
    Answer { layer, hidden, dtype, parts, products }
}

/// Of the room's model.
pub(crate) const PRODUCTS: ProductShape = ProductShape { inner: INNER as u16, format: ProductFormat::F32 };

/// Products of this shape for all pairs of a dispatch, all of them 1.
pub(crate) fn products(dispatch: &Dispatch, shape: ProductShape) -> Products {
    let values = vec![1.0; dispatch.n_pairs() * 2 * usize::from(shape.inner)];
    Products::new(shape, &values).expect("a width within the limits")
}

fn part(dispatch: &Dispatch, expert: ExpertId, rows: &[f32]) -> AnswerPart {
    let mut payload = Vec::new();
    tensor::encode_rows(dispatch.dtype, rows, HIDDEN, &mut payload);
    AnswerPart { expert, rows: (rows.len() / HIDDEN) as u32, payload: payload.into() }
}

/// The sum that the hub gives by itself.
pub(super) fn alone(job: &LayerJob) -> Vec<f32> {
    let mut room = Room::new(config());
    let id = room.start(job.clone());
    room.compute_on_hub();
    room.finished.remove(&id).unwrap().unwrap()
}

impl Room {
    pub(super) fn new(config: SwarmConfig) -> Self {
        Self::of(config, catalog(N_LAYERS, N_EXPERTS))
    }

    pub(super) fn of(config: SwarmConfig, catalog: BlockCatalog) -> Self {
        Self {
            now: Duration::from_secs(1),
            swarm: Swarm::new(config, catalog),
            workers: BTreeMap::new(),
            finished: BTreeMap::new(),
            results: BTreeMap::new(),
            computes: Vec::new(),
            closed: Vec::new(),
            address: "here".to_owned(),
            jobs: 0,
            connections: 0,
        }
    }

    /// A worker with room for everything joins and loads all it is told to. The swarm knows it: it has answered before.
    pub(super) fn join(&mut self, id: u128) -> ConnectionId {
        self.join_with(id, |_| {}, true)
    }

    /// The same with what it says of itself edited.
    pub(super) fn join_with(&mut self, id: u128, edit: impl FnOnce(&mut Join), loads: bool) -> ConnectionId {
        let connection = self.join_new(id, edit, loads);
        if let Some(worker) = self.swarm.dispatcher().worker_mut(connection) {
            // Prompts' chunks, so that what the test measures of single steps stands alone.
            (0..8).for_each(|_| worker.took(300, Duration::from_millis(500)));
        }
        connection
    }

    /// A worker of which nobody knows how fast it answers joins.
    pub(super) fn join_new(&mut self, id: u128, edit: impl FnOnce(&mut Join), loads: bool) -> ConnectionId {
        let mut join = Join {
            token: TOKEN.to_owned(),
            key: WorkerKey(id),
            name: String::new(),
            kind: WorkerKind::Native,
            build: "test".to_owned(),
            adapter: "scripted".to_owned(),
            backend: "cpu".to_owned(),
            features: Vec::new(),
            limits: BTreeMap::new(),
            memory_budget_bytes: 1_000 * BLOCK_BYTES,
            self_test: SelfTest { passed: true, worst_nmse: 0.0, detail: String::new() },
            sync_latency_micros: 10,
            gigabytes_per_second: 1.0,
            teraflops: 1.0,
            input_slots: 4,
            gives_products: true,
            gives_digests: true,
        };
        edit(&mut join);
        self.connections += 1;
        let connection = ConnectionId(self.connections);
        self.swarm.connected(self.now, connection, self.address.clone());
        let session = WorkerSession::new(WorkerConfig { join }, self.now);
        let worker = Scripted {
            session,
            is_frozen: false,
            loads,
            fails_loads: false,
            syncs: Vec::new(),
            rejected: None,
            kept_back: Vec::new(),
        };
        self.workers.insert(connection, worker);
        self.step();
        connection
    }

    /// The connection goes away.
    pub(super) fn close(&mut self, worker: ConnectionId) {
        self.workers.remove(&worker);
        self.swarm.disconnected(self.now, worker);
        self.step();
    }

    pub(super) fn thaw(&mut self, worker: ConnectionId) {
        self.worker(worker).is_frozen = false;
        self.step();
    }

    pub(super) fn start(&mut self, job: LayerJob) -> JobId {
        self.jobs += 1;
        let id = JobId(self.jobs);
        match job.encode(self.swarm.layer_encoding()) {
            Ok(layer) => self.swarm.start_layer(self.now, id, layer),
            Err(error) => assert!(self.finished.insert(id, Err(error)).is_none()),
        }
        self.step();
        id
    }

    pub(super) fn worker(&mut self, worker: ConnectionId) -> &mut Scripted {
        self.workers.get_mut(&worker).unwrap()
    }

    /// The worker starts on its oldest dispatch.
    pub(super) fn take(&mut self, worker: ConnectionId) -> Option<(AttemptId, Dispatch)> {
        let now = self.now;
        self.worker(worker).session.next_work(now)
    }

    /// The worker answers all it has been asked.
    pub(super) fn answer(&mut self, worker: ConnectionId) {
        while let Some((attempt, dispatch)) = self.take(worker) {
            self.complete(worker, attempt, answer(&dispatch));
        }
    }

    pub(super) fn complete(&mut self, worker: ConnectionId, attempt: AttemptId, answer: Answer) {
        let now = self.now;
        self.worker(worker).session.complete(now, attempt, answer).unwrap();
        self.step();
    }

    /// The worker answers its oldest dispatch with an error.
    pub(super) fn fail(&mut self, worker: ConnectionId, code: ErrorCode) {
        let (attempt, _) = self.take(worker).unwrap();
        let now = self.now;
        self.worker(worker).session.fail(now, attempt, code, "scripted");
        self.step();
    }

    pub(super) fn show(&mut self, worker: ConnectionId, visibility: Visibility) {
        let now = self.now;
        self.worker(worker).session.report_beat(now, Beat { visibility, ..Beat::default() });
        self.step();
    }

    /// The hub does all the computing it has been asked for.
    pub(super) fn compute_on_hub(&mut self) {
        for (id, dispatch) in std::mem::take(&mut self.computes) {
            self.swarm.hub_computed(self.now, id, HubResult::new(answer(&dispatch)));
        }
        self.step();
    }

    /// Reports blocks as loaded.
    pub(super) fn report(&mut self, worker: ConnectionId, resident: Vec<Block>) {
        let now = self.now;
        self.worker(worker).session.report_blocks(now, BlockReport { resident, ..BlockReport::default() });
        self.step();
    }

    /// Lets time pass, and every deadline in it come at its time.
    pub(super) fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        loop {
            let deadlines =
                self.workers.values().filter(|w| !w.is_frozen).filter_map(|w| w.session.poll_timeout());
            let next = deadlines.chain(self.swarm.poll_timeout()).min().unwrap_or(end);
            self.now = next.clamp(self.now, end);
            if next > end {
                return;
            }
            self.swarm.handle_timeout(self.now);
            for worker in self.workers.values_mut().filter(|w| !w.is_frozen) {
                worker.session.handle_timeout(self.now);
            }
            self.step();
            if self.now == end {
                return;
            }
        }
    }

    pub(super) fn advance_millis(&mut self, millis: u64) {
        self.advance(Duration::from_millis(millis));
    }

    /// Delivers until nothing moves and nothing is due.
    pub(super) fn step(&mut self) {
        let mut moved = true;
        while moved {
            moved = false;
            while let Some(action) = self.swarm.poll_action() {
                moved = true;
                match action {
                    Action::Transmit(to, message) => {
                        if let Some(worker) = self.workers.get_mut(&to) {
                            worker.kept_back.push(message);
                        }
                    }
                    Action::Close(connection, code) => self.closed.push((connection, code)),
                    Action::HubCompute(id, dispatch) => self.computes.push((id, dispatch)),
                    Action::Finished(id, result) => {
                        let result = result.map(|result| {
                            let sum = result.sum();
                            self.results.insert(id, result);
                            sum
                        });
                        assert!(self.finished.insert(id, result).is_none(), "{id:?} finished twice");
                    }
                }
            }
            let now = self.now;
            for (id, worker) in self.workers.iter_mut().filter(|(_, worker)| !worker.is_frozen) {
                for message in std::mem::take(&mut worker.kept_back) {
                    moved = true;
                    worker.session.handle_message(now, message);
                }
                worker.take_events(now);
                while let Some(message) = worker.session.poll_transmit() {
                    moved = true;
                    self.swarm.handle_message(now, *id, message);
                }
            }
            if !moved && self.swarm.poll_timeout().is_some_and(|at| at <= now) {
                moved = true;
                self.swarm.handle_timeout(now);
            }
        }
    }
}

impl Scripted {
    fn take_events(&mut self, now: Duration) {
        while let Some(event) = self.session.poll_event() {
            match event {
                WorkerEvent::Sync(sync) => {
                    let resident: Vec<_> = sync.hold.iter().map(|source| source.block).collect();
                    if self.fails_loads {
                        let failed = resident.into_iter().map(|block| (block, "no".to_owned())).collect();
                        let report = BlockReport { epoch: sync.epoch, failed, ..BlockReport::default() };
                        self.session.report_blocks(now, report);
                    } else if self.loads && !resident.is_empty() {
                        let report = BlockReport { epoch: sync.epoch, resident, ..BlockReport::default() };
                        self.session.report_blocks(now, report);
                    }
                    self.syncs.push(sync);
                }
                WorkerEvent::Rejected(error) => self.rejected = Some(error.code),
                WorkerEvent::Accepted(_) | WorkerEvent::Cancelled(_) | WorkerEvent::Closed { .. } => {}
            }
        }
    }

    /// All blocks it was ever told to hold, in order.
    pub(super) fn told_to_hold(&self) -> Vec<Block> {
        self.syncs.iter().flat_map(|sync| &sync.hold).map(|source| source.block).collect()
    }

    pub(super) fn told_to_drop(&self) -> Vec<Block> {
        self.syncs.iter().flat_map(|sync| &sync.drop).copied().collect()
    }
}
