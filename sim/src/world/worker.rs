//! A worker's process: the shipped core, an engine, a device with simulated times, and a store that outlives the
//! process.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use moex_kernels::engine::Batch;
use moex_protocol::{AttemptId, Block, Join, SelfTest, WorkerId, WorkerKey, WorkerKind};
use moex_worker::{
    backoff::Backoff,
    core::{Core, CoreConfig},
};

use super::{Device, Link, engine::Engine};

/// The first and the longest wait before reconnecting, as in the native worker.
const RECONNECT_DELAY: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(5)];
/// A connection that lasted this long counts as a success.
const STABLE: Duration = Duration::from_secs(5);
/// The time to find a block in the worker's own store.
pub(super) const FROM_STORE: Duration = Duration::from_micros(500);

/// A worker to be added.
#[derive(Clone, Debug)]
pub struct WorkerSpec {
    /// The same for all its processes.
    pub id: WorkerId,
    /// The token that it shows to join.
    pub token: String,
    /// Its link to the hub.
    pub link: Link,
    /// Its device.
    pub device: Device,
    /// Its memory for experts.
    pub memory_budget_bytes: u64,
    /// Dispatches that it takes at a time.
    pub input_slots: u8,
    /// The time that it reports for one sync.
    pub sync_latency_micros: u64,
    /// The speed that it reports; NaN if it has not measured.
    pub teraflops: f32,
    /// Whether its store has every block from the start.
    pub is_stocked: bool,
}

/// See the [module's description](self).
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) spec: WorkerSpec,
    pub(super) core: Option<Core>,
    pub(super) engine: Option<Engine>,
    /// The number of engines made so far, so that a load for an earlier one is void.
    pub(super) plans: u32,
    /// The running computation, and whether products are wanted.
    pub(super) computing: Option<(AttemptId, Batch, bool)>,
    /// The blocks in its store.
    pub(super) stored: BTreeSet<Block>,
    pub(super) load_free_at: Duration,
    pub(super) failing_loads_percent: u32,
    backoff: Backoff,
    connected_at: Duration,
    pub(super) is_leaving: bool,
}

impl Worker {
    pub(super) fn new(spec: WorkerSpec) -> Self {
        Self {
            spec,
            core: None,
            engine: None,
            plans: 0,
            computing: None,
            stored: BTreeSet::new(),
            load_free_at: Duration::ZERO,
            failing_loads_percent: 0,
            backoff: Backoff::new(RECONNECT_DELAY[0], RECONNECT_DELAY[1]),
            connected_at: Duration::ZERO,
            is_leaving: false,
        }
    }

    pub(super) fn start(&mut self, now: Duration) {
        self.core = Some(Core::new(CoreConfig { join: self.join() }, now));
        self.is_leaving = false;
        self.load_free_at = now;
        self.backoff.reset();
    }

    pub(super) fn die(&mut self) {
        (self.core, self.engine, self.computing) = (None, None, None);
    }

    pub(super) fn connected(&mut self, now: Duration) {
        self.connected_at = now;
        if let Some(core) = &mut self.core {
            core.reconnect(now);
        }
    }

    /// Returns the wait before the next try; `None` if it has left.
    pub(super) fn disconnected(&mut self, now: Duration) -> Option<Duration> {
        if let Some(core) = &mut self.core {
            core.handle_closed(now);
        }
        if now.saturating_sub(self.connected_at) > STABLE {
            self.backoff.reset();
        }
        (!self.is_leaving).then(|| self.backoff.delay())
    }

    pub(super) fn handle_message(&mut self, now: Duration, message: Bytes) {
        if let Some(core) = &mut self.core {
            core.handle_message(now, message);
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Duration) {
        if let Some(core) = &mut self.core {
            core.handle_timeout(now);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        self.core.as_ref()?.poll_timeout()
    }

    fn join(&self) -> Join {
        let spec = &self.spec;
        Join {
            token: spec.token.clone(),
            key: WorkerKey(spec.id.0),
            name: String::new(),
            kind: WorkerKind::Native,
            build: "simulated".to_owned(),
            adapter: "simulated".to_owned(),
            backend: "cpu".to_owned(),
            features: Vec::new(),
            limits: BTreeMap::new(),
            memory_budget_bytes: spec.memory_budget_bytes,
            self_test: SelfTest { passed: true, worst_nmse: 0.0, detail: String::new() },
            sync_latency_micros: spec.sync_latency_micros,
            gigabytes_per_second: f32::NAN,
            teraflops: spec.teraflops,
            input_slots: spec.input_slots,
            gives_products: true,
            gives_digests: true,
        }
    }
}
