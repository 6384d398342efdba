//! Collects the records of a trace.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use moex_protocol::{AttemptId, Dispatch, Form, Join, WorkerId, header::HEADER_BYTES};

use super::attempts::{Attempt, Kind};
use super::covering::MAX_JOBS;
use super::layer::EncodedLayer;
use crate::trace::{
    AttemptKind, AttemptRecord, HubRecord, HubWorkRecord, JoinedRecord, LayerRecord, Outcome, Record,
    TRACE_VERSION, micros,
};
use crate::{ComputeId, JobId, SwarmConfig};

/// Maximum records waiting to be polled; more are counted and dropped.
const MAX_WAITING: usize = 4 * MAX_JOBS;
/// Bytes of a gate, and of a row's index beside it.
const GATE_BYTES: usize = 2;
const INDEXED_GATE_BYTES: usize = 4;

/// The records of layers in flight, and completed ones.
#[derive(Debug, Default)]
pub(super) struct TraceRecorder {
    /// By job; as many as there are jobs.
    open: BTreeMap<JobId, LayerRecord>,
    ready: VecDeque<Record>,
    dropped: u64,
}

impl TraceRecorder {
    /// A recorder that begins with the hub's record. None if tracing is off.
    pub(super) fn new(config: &SwarmConfig) -> Option<Box<Self>> {
        let hub = HubRecord {
            version: TRACE_VERSION,
            model: config.model.clone(),
            replicas: config.replicas,
            hedge: config.hedge,
            timeout: micros(config.timeout),
            wire: config.wire,
            check_every: config.check_every,
            hub_compute: config.hub_compute,
        };
        let recorder = || Self { ready: VecDeque::from([Record::Hub(hub)]), ..Self::default() };
        config.is_traced.then(|| Box::new(recorder()))
    }

    /// The next record.
    pub(super) fn poll(&mut self) -> Option<Record> {
        self.ready.pop_front()
    }

    /// Records dropped because nobody polled them.
    pub(super) fn n_dropped(&self) -> u64 {
        self.dropped
    }

    pub(super) fn joined(&mut self, now: Duration, worker: WorkerId, join: &Join) {
        self.push(Record::Joined(JoinedRecord {
            worker,
            at: micros(now),
            kind: join.kind,
            backend: join.backend.clone(),
            memory_budget_bytes: join.memory_budget_bytes,
            input_slots: join.input_slots,
            sync_latency: join.sync_latency_micros,
            teraflops: Some(join.teraflops).filter(|teraflops| teraflops.is_finite()),
        }));
    }

    pub(super) fn left(&mut self, now: Duration, worker: WorkerId) {
        self.push(Record::Left { worker, at: micros(now) });
    }

    pub(super) fn round_trip(&mut self, now: Duration, worker: WorkerId, took: Duration) {
        self.push(Record::RoundTrip { worker, at: micros(now), micros: micros(took) });
    }

    pub(super) fn started(&mut self, now: Duration, id: JobId, layer: &EncodedLayer) {
        let record = LayerRecord {
            job: id.0,
            layer: layer.layer.0,
            rows: layer.n_rows as u32,
            experts: layer.experts.clone(),
            started: micros(now),
            ..LayerRecord::default()
        };
        self.open.insert(id, record);
    }

    /// A message was sent.
    pub(super) fn asked(&mut self, id: AttemptId, attempt: &Attempt, worker: WorkerId, dispatch: &Dispatch) {
        let Some(layer) = self.open.get_mut(&attempt.job) else { return };
        layer.attempts.push(AttemptRecord {
            id: id.0,
            worker,
            kind: match attempt.kind {
                Kind::Ask => AttemptKind::Ask,
                Kind::Hedge => AttemptKind::Hedge,
                Kind::Probe => AttemptKind::Probe,
            },
            experts: dispatch.calls.len() as u32,
            copies: attempt.copies.len() as u32,
            pairs: dispatch.n_pairs() as u32,
            rows: dispatch.n_rows() as u32,
            bytes_out: dispatch_bytes(dispatch),
            bytes_back: 0,
            sent: micros(attempt.sent),
            ended: micros(attempt.sent),
            outcome: Outcome::GivenUp,
            won: 0,
        });
    }

    /// An answer of `n_bytes` arrived and was the first to settle `won` work items.
    pub(super) fn answered(&mut self, now: Duration, job: JobId, id: AttemptId, n_bytes: u64, won: usize) {
        if let Some(attempt) = self.attempt(job, id) {
            attempt.ended = micros(now);
            attempt.outcome = Outcome::Answered;
            attempt.bytes_back = n_bytes;
            attempt.won = won as u32;
        }
    }

    /// An attempt ended without an answer in time.
    pub(super) fn ended(&mut self, now: Duration, job: JobId, id: AttemptId, outcome: Outcome) {
        if let Some(attempt) = self.attempt(job, id) {
            (attempt.ended, attempt.outcome) = (micros(now), outcome);
        }
    }

    /// A late answer arrived.
    pub(super) fn late(&mut self, now: Duration, id: AttemptId) {
        self.push(Record::Late { attempt: id.0, at: micros(now) });
    }

    pub(super) fn hub_asked(
        &mut self,
        now: Duration,
        job: JobId,
        id: ComputeId,
        n_experts: usize,
        n_pairs: usize,
    ) {
        let Some(layer) = self.open.get_mut(&job) else { return };
        let (experts, pairs) = (n_experts as u32, n_pairs as u32);
        layer.hub.push(HubWorkRecord { id: id.0, experts, pairs, sent: micros(now), ended: None });
    }

    pub(super) fn hub_answered(&mut self, now: Duration, job: JobId, id: ComputeId) {
        let layer = self.open.get_mut(&job);
        if let Some(work) = layer.and_then(|layer| layer.hub.iter_mut().find(|work| work.id == id.0)) {
            work.ended = Some(micros(now));
        }
    }

    /// A layer finished: its record is complete except for the driver's times.
    pub(super) fn finished(&mut self, now: Duration, id: JobId, is_ok: bool) {
        if let Some(layer) = self.open.remove(&id) {
            self.push(Record::Layer(LayerRecord { done: micros(now), is_ok, ..layer }));
        }
    }

    fn attempt(&mut self, job: JobId, id: AttemptId) -> Option<&mut AttemptRecord> {
        // Recent ones are the most likely.
        self.open.get_mut(&job)?.attempts.iter_mut().rev().find(|attempt| attempt.id == id.0)
    }

    fn push(&mut self, record: Record) {
        if self.ready.len() < MAX_WAITING {
            self.ready.push_back(record);
        } else {
            self.dropped += 1;
        }
    }
}

/// Bytes of a message that asks.
fn dispatch_bytes(dispatch: &Dispatch) -> u64 {
    let (calls, pairs, rows) = (dispatch.calls.len(), dispatch.n_pairs(), dispatch.rows.len());
    let n_bytes = match dispatch.form {
        // In the plain form, each expert's frame carries its own rows.
        Form::Plain => {
            let row = rows.checked_div(dispatch.n_rows()).unwrap_or(0);
            calls * HEADER_BYTES + pairs * (row + GATE_BYTES)
        }
        Form::RowsOnce => HEADER_BYTES + rows + calls * HEADER_BYTES + pairs * INDEXED_GATE_BYTES,
    };
    n_bytes as u64
}
