//! A hub session and a worker core joined by two queues, and the CPU engine that does the worker's tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use half::f16;
use moex_kernels::engine::{Batch, Computed, CpuEngine, Output};
use moex_kernels::{ExpertShape, WeightFormat};
use moex_protocol::{
    Accepted, AttemptId, Block, BlockSource, Call, Dispatch, Dtype, ExpertId, Form, HubEvent, HubSession,
    Join, LayerId, ModelSummary, Pair, Reply, SelfTest, SessionConfig, WeightSync, WorkerKey, WorkerKind,
    tensor,
};
use moex_worker::core::{Core, CoreConfig, Loaded, Task};

pub(crate) const HIDDEN: usize = 40;
pub(crate) const SHAPE: ExpertShape = ExpertShape::uniform(HIDDEN, 24, WeightFormat::Int4G128);
pub(crate) const LAYER: LayerId = LayerId(1);
const MAX_ROWS: u32 = 16;

/// Everything on one clock; what the test does not hold back is delivered and done by [`World::drive`].
pub(crate) struct World {
    pub(crate) now: Duration,
    pub(crate) hub: HubSession,
    pub(crate) core: Core,
    pub(crate) engine: Option<CpuEngine>,
    pub(crate) events: Vec<HubEvent>,
    /// Computations wait here while `hold_computations`.
    pub(crate) computations: Vec<(AttemptId, Batch)>,
    pub(crate) hold_computations: bool,
    /// Loads of these blocks fail.
    pub(crate) unreachable: BTreeSet<Block>,
    /// Blocks fetched since the start, in order.
    pub(crate) fetched: Vec<Block>,
    pub(crate) plans: usize,
    pub(crate) stopped: Option<String>,
    /// Whether the hub asks for products; of the last computation, whether it did.
    pub(crate) wants_products: bool,
    pub(crate) model: ModelSummary,
}

impl World {
    /// Connected, with room for `n_slots` blocks; nothing sent yet.
    pub(crate) fn new(n_slots: u64) -> Self {
        let model = ModelSummary {
            name: "tiny".into(),
            hidden: HIDDEN as u32,
            inner: SHAPE.inner as u32,
            n_layers: 2,
            n_experts: 8,
            n_experts_per_token: 2,
            format: "int4".into(),
            layer_formats: Vec::new(),
            activations: "f32".into(),
            block_bytes: SHAPE.block_bytes() as u64,
            max_rows: MAX_ROWS,
            max_pairs: 2 * MAX_ROWS,
        };
        let budget = n_slots * SHAPE.block_bytes() as u64;
        Self {
            now: Duration::ZERO,
            hub: HubSession::new(SessionConfig::default(), Duration::ZERO),
            core: Core::new(CoreConfig { join: join(budget) }, Duration::ZERO),
            engine: None,
            events: Vec::new(),
            computations: Vec::new(),
            hold_computations: false,
            unreachable: BTreeSet::new(),
            fetched: Vec::new(),
            plans: 0,
            stopped: None,
            wants_products: false,
            model,
        }
    }

    /// Accepted, and holding these experts of [`LAYER`].
    pub(crate) fn serving(n_slots: u64, experts: &[u16]) -> Self {
        let mut world = Self::new(n_slots);
        world.drive();
        world.accept();
        world.hold(1, experts);
        assert!(world.resident().is_superset(&experts.iter().map(|&n| block(n)).collect()));
        world
    }

    pub(crate) fn accept(&mut self) {
        let accepted = Accepted {
            session: 1,
            heartbeat_interval_millis: 1000,
            dispatch_timeout_millis: 500,
            model: self.model.clone(),
            wants_products: self.wants_products,
        };
        self.hub.accept(self.now, accepted);
        self.drive();
    }

    pub(crate) fn hold(&mut self, epoch: u64, experts: &[u16]) {
        let hold = experts.iter().map(|&n| source(n)).collect();
        self.sync(WeightSync { epoch, hold, drop: Vec::new() });
    }

    pub(crate) fn drop_blocks(&mut self, epoch: u64, experts: &[u16]) {
        let drop = experts.iter().map(|&n| block(n)).collect();
        self.sync(WeightSync { epoch, hold: Vec::new(), drop });
    }

    fn sync(&mut self, sync: WeightSync) {
        self.hub.sync_weights(self.now, sync).unwrap();
        self.drive();
    }

    pub(crate) fn dispatch(&mut self, attempt: u32, dispatch: &Dispatch) {
        self.hub.dispatch(self.now, AttemptId(attempt), dispatch).unwrap();
        self.drive();
    }

    /// Ends the oldest computation that was held back.
    pub(crate) fn compute_one(&mut self) {
        let (attempt, batch) = self.computations.remove(0);
        let engine = self.engine.as_ref().unwrap();
        let result = match self.wants_products {
            true => engine.compute_with_products(&batch),
            false => engine.compute(&batch).map(Computed::from),
        };
        let result = result.map_err(|error| error.to_string());
        self.core.computed(self.now, attempt, result.map(Output::from));
        self.drive();
    }

    /// Lets time pass, with whatever falls due in it.
    pub(crate) fn advance(&mut self, time: Duration) {
        self.now += time;
        self.core.handle_timeout(self.now);
        self.drive();
    }

    /// A new connection after the old one was lost.
    pub(crate) fn reconnect(&mut self) {
        self.core.handle_closed(self.now);
        self.drive();
        self.hub = HubSession::new(SessionConfig::default(), self.now);
        self.core.reconnect(self.now);
        self.drive();
    }

    /// Delivers messages and does tasks until nothing moves.
    pub(crate) fn drive(&mut self) {
        let mut moved = true;
        while moved {
            moved = false;
            while let Some(message) = self.core.poll_transmit() {
                self.hub.handle_message(self.now, message);
                moved = true;
            }
            while let Some(message) = self.hub.poll_transmit() {
                self.core.handle_message(self.now, message);
                moved = true;
            }
            while let Some(task) = self.core.poll_task() {
                self.perform(task);
                moved = true;
            }
            while let Some(event) = self.hub.poll_event() {
                self.events.push(event);
            }
        }
    }

    fn perform(&mut self, task: Task) {
        match task {
            Task::Plan { plan } => {
                self.plans += 1;
                self.engine = Some(CpuEngine::new(plan).unwrap());
                self.core.planned(self.now, Ok(()));
            }
            Task::Load { slot, format, source } => {
                let result = if self.unreachable.contains(&source.block) {
                    Err("unreachable".to_owned())
                } else {
                    self.fetched.push(source.block);
                    let bytes = block_bytes(source.block.expert.0);
                    self.engine.as_ref().unwrap().load(slot, format, &bytes).unwrap();
                    Ok(Loaded { bytes: bytes.len() as u64, downloaded: bytes.len() as u64 })
                };
                self.core.loaded(self.now, source.block, result);
            }
            Task::Compute { attempt, batch, wanted } => {
                self.wants_products = wanted.products;
                self.computations.push((attempt, batch));
                assert_eq!(self.computations.len(), 1, "one computation at a time");
                if !self.hold_computations {
                    self.compute_one();
                }
            }
            Task::Stop(reason) => self.stopped = Some(reason),
        }
    }

    /// The events since the last call.
    pub(crate) fn take_events(&mut self) -> Vec<HubEvent> {
        std::mem::take(&mut self.events)
    }

    /// Blocks reported resident so far and still in `events`.
    pub(crate) fn resident(&self) -> BTreeSet<Block> {
        let reports = self.events.iter().filter_map(|event| match event {
            HubEvent::Blocks(report) => Some(report.resident.iter().copied()),
            _ => None,
        });
        reports.flatten().collect()
    }
}

pub(crate) fn join(memory_budget_bytes: u64) -> Join {
    Join {
        token: "token".into(),
        key: WorkerKey(1),
        name: String::new(),
        kind: WorkerKind::Native,
        build: "test".into(),
        adapter: "CPU".into(),
        backend: "cpu".into(),
        features: Vec::new(),
        limits: BTreeMap::new(),
        memory_budget_bytes,
        self_test: SelfTest { passed: true, worst_nmse: 0.0, detail: String::new() },
        sync_latency_micros: 0,
        gigabytes_per_second: 1.0,
        teraflops: 1.0,
        input_slots: 2,
        gives_products: true,
        gives_digests: true,
    }
}

pub(crate) fn block(expert: u16) -> Block {
    Block { layer: LAYER, expert: ExpertId(expert) }
}

/// The bytes of an expert: pseudo-random weights that depend on its number.
pub(crate) fn block_bytes(expert: u16) -> Vec<u8> {
    packed(&SHAPE, expert)
}

/// The same weights in this shape's formats.
pub(crate) fn packed(shape: &ExpertShape, expert: u16) -> Vec<u8> {
    let n = HIDDEN * shape.inner;
    let weights = |matrix: u16| values(u64::from(expert * 3 + matrix), n).collect::<Vec<_>>();
    shape.pack(&weights(0), &weights(1), &weights(2))
}

pub(crate) fn source(expert: u16) -> BlockSource {
    let bytes = block_bytes(expert);
    let blake3 = blake3::hash(&bytes).to_hex().to_string();
    BlockSource {
        block: block(expert),
        url: "/shards/layer-01".into(),
        start: 0,
        end: bytes.len() as u64,
        blake3,
    }
}

/// A dispatch of `n_rows` rows to `experts`: even rows to all of them, odd rows to the first only.
pub(crate) fn dispatch(form: Form, dtype: Dtype, n_rows: u16, experts: &[u16]) -> Dispatch {
    let rows: Vec<f32> = values(99, usize::from(n_rows) * HIDDEN).collect();
    let mut encoded = Vec::new();
    tensor::encode_rows(dtype, &rows, HIDDEN, &mut encoded);
    let gate = |row: u16, expert: u16| f16::from_f32(0.1 + f32::from(row) / 16.0 + f32::from(expert) / 32.0);
    let call = |(i, &expert): (usize, &u16)| {
        let rows = (0..n_rows).filter(|row| i == 0 || row % 2 == 0);
        Call {
            expert: ExpertId(expert),
            pairs: rows.map(|row| Pair { row, gate: gate(row, expert) }).collect(),
        }
    };
    let calls = experts.iter().enumerate().map(call).collect();
    let (layer, hidden, rows) = (LAYER, HIDDEN as u16, encoded.into());
    Dispatch { layer, hidden, dtype, form, rows, calls, reply: Reply::Rows }
}

/// Values in -1..1 from a linear congruential generator.
fn values(seed: u64, n: usize) -> impl Iterator<Item = f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..n).map(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    })
}
