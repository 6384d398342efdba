//! What becomes of each layer, written down as it happens and given out when it is over: [`Swarm::poll_trace`].
//!
//! What lives here: the [`Record`]s of a trace and the tape that collects them. What does not: who reads a clock, and
//! where records go; that is the driver's (`net`). Without [`super::SwarmConfig::is_traced`] there is no tape, and
//! nothing of this costs anything.
//!
//! All times are microseconds since the hub's start. Bytes are those of the frames before compression, headers included.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use moex_protocol::{Answer, AttemptId, Dispatch, Dtype, Form, Join, ModelSummary, WorkerId, WorkerKind};
use serde::{Deserialize, Serialize};

use super::attempts::{Attempt, Kind};
use super::plan::WireJob;
use super::{ComputeId, Hedge, JobId, LayerJob, MAX_JOBS, Swarm, SwarmConfig};

/// The version of the records' meaning, in the first line of a trace.
pub const TRACE_VERSION: u32 = 1;
/// Records that wait to be polled; what comes beyond them is counted and lost.
const MAX_WAITING: usize = 4 * MAX_JOBS;
/// Bytes of a frame's header.
const FRAME_BYTES: u64 = 28;
/// Bytes of a gate, and of a row's index beside it.
const GATE_BYTES: u64 = 2;
const INDEXED_GATE_BYTES: u64 = 4;

/// One line of a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// The first line: what the hub serves, and how.
    Hub(HubRecord),
    /// A worker joined.
    Joined(JoinedRecord),
    /// A worker is gone.
    Left {
        /// Its id.
        worker: WorkerId,
        /// When.
        at: u64,
    },
    /// A worker answered a ping, this long after it left.
    RoundTrip {
        /// Its id.
        worker: WorkerId,
        /// When.
        at: u64,
        /// There and back.
        micros: u64,
    },
    /// A layer is over.
    Layer(LayerRecord),
    /// An answer that nobody waited for any more.
    Late {
        /// To this attempt of a layer that was written down before, or of the one that is at work.
        attempt: u32,
        /// When.
        at: u64,
    },
    /// A step of the model is over: the layers since the last one were its layers.
    Step {
        /// When it began, before the embedding.
        begun: u64,
        /// When its last token was given out.
        ended: u64,
        /// T.
        rows: u32,
        /// Tokens that it gave.
        tokens: u32,
    },
    /// The last line.
    End {
        /// Records that were lost because the writer did not keep up.
        dropped: u64,
    },
}

/// What the hub serves, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HubRecord {
    /// [`TRACE_VERSION`].
    pub version: u32,
    /// What is served.
    pub model: ModelSummary,
    /// Copies of each block.
    pub replicas: usize,
    /// Who is asked at once.
    pub hedge: Hedge,
    /// Until another worker is asked, microseconds.
    pub timeout: u64,
    /// Number format on the wire.
    pub wire: Dtype,
    /// One answer in so many is checked.
    pub check_every: u32,
    /// Whether the hub computes what no worker can.
    pub hub_compute: bool,
}

/// A worker, as it said of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JoinedRecord {
    /// Its id.
    pub worker: WorkerId,
    /// When.
    pub at: u64,
    /// Browser or native.
    pub kind: WorkerKind,
    /// What it computes on.
    pub backend: String,
    /// What it gives for experts.
    pub memory_budget_bytes: u64,
    /// Dispatches it takes at a time.
    pub input_slots: u8,
    /// What one sync costs it, microseconds.
    pub sync_latency: u64,
    /// What it computes, if it measured that.
    pub teraflops: Option<f32>,
}

/// One layer of one step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LayerRecord {
    /// Counts the layers of a hub.
    pub job: u64,
    /// Of the model.
    pub layer: u16,
    /// T.
    pub rows: u32,
    /// (T, K), each row's experts.
    pub experts: Vec<u16>,
    /// When the model had routed its rows and asked; its own attention and router came before.
    pub asked: u64,
    /// When the swarm took it up.
    pub started: u64,
    /// When its first messages were written and handed to their sockets.
    pub sent: u64,
    /// When the last answer it needed was there.
    pub done: u64,
    /// When its sum was made and handed back.
    pub replied: u64,
    /// Whether it has a sum.
    pub is_ok: bool,
    /// Messages to workers, in the order they were sent.
    pub attempts: Vec<AttemptRecord>,
    /// What the hub computed of it itself.
    pub hub: Vec<HubWorkRecord>,
}

/// One message to one worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// Its id on the wire.
    pub id: u32,
    /// Whom it was sent to.
    pub worker: WorkerId,
    /// Why.
    pub kind: AttemptKind,
    /// Experts asked for.
    pub experts: u32,
    /// Of these, those that another was asked for already.
    pub copies: u32,
    /// (row, expert) pairs.
    pub pairs: u32,
    /// Distinct rows.
    pub rows: u32,
    /// Bytes of the message.
    pub bytes_out: u64,
    /// Bytes of its answer; 0 without one.
    pub bytes_back: u64,
    /// When it was sent.
    pub sent: u64,
    /// When its answer was there whole, or it was given up.
    pub ended: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// Experts that its answer was the first to settle.
    pub won: u32,
}

/// Why a message was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptKind {
    /// The first of its kind, or a copy that left with it.
    Ask,
    /// Because another was late.
    Hedge,
    /// To see how fast the worker is now.
    Probe,
}

/// How a message to a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// With an answer.
    Answered,
    /// The worker failed, refused or left.
    Failed,
    /// Others had answered all of it before.
    GivenUp,
    /// It had no answer in time, and others had answered all of it when the layer was over.
    TimedOut,
}

/// A message that the hub computed itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HubWorkRecord {
    /// Names it.
    pub id: u64,
    /// Experts.
    pub experts: u32,
    /// (row, expert) pairs.
    pub pairs: u32,
    /// When it was asked for.
    pub sent: u64,
    /// When it was there; none if its layer was over before.
    pub ended: Option<u64>,
}

/// What is being written down, and what is ready.
#[derive(Debug, Default)]
pub(super) struct Tape {
    /// By job; as many as there are jobs.
    open: BTreeMap<JobId, LayerRecord>,
    ready: VecDeque<Record>,
    dropped: u64,
}

impl Swarm {
    /// The next record of the trace, if there is to be one. Take all of them after each call.
    pub fn poll_trace(&mut self) -> Option<Record> {
        self.tape.as_mut()?.ready.pop_front()
    }

    /// Records lost because nobody polled them.
    pub fn trace_dropped(&self) -> u64 {
        self.tape.as_ref().map_or(0, |tape| tape.dropped)
    }

    /// Notes something, if there is a tape.
    pub(super) fn tape(&mut self, note: impl FnOnce(&mut Tape)) {
        if let Some(tape) = &mut self.tape {
            note(tape);
        }
    }
}

impl Tape {
    /// A tape that begins with what the hub is, if there is to be one.
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
        let tape = || Self { ready: VecDeque::from([Record::Hub(hub)]), ..Self::default() };
        config.is_traced.then(|| Box::new(tape()))
    }

    pub(super) fn joined(&mut self, now: Duration, join: &Join) {
        self.push(Record::Joined(JoinedRecord {
            worker: join.worker,
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

    pub(super) fn started(&mut self, now: Duration, id: JobId, job: &LayerJob) {
        let rows = job.routing.experts.len() / job.routing.k.max(1);
        let record = LayerRecord {
            job: id.0,
            layer: job.layer.0,
            rows: rows as u32,
            experts: job.routing.experts.clone(),
            started: micros(now),
            ..LayerRecord::default()
        };
        self.open.insert(id, record);
    }

    /// A message left.
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

    /// An answer came, the first to settle so many cells.
    pub(super) fn answered(&mut self, now: Duration, job: JobId, id: AttemptId, answer: &Answer, won: usize) {
        if let Some(attempt) = self.attempt(job, id) {
            attempt.ended = micros(now);
            attempt.outcome = Outcome::Answered;
            attempt.bytes_back = answer_bytes(answer);
            attempt.won = won as u32;
        }
    }

    /// An attempt ended without an answer that anybody waited for.
    pub(super) fn ended(&mut self, now: Duration, job: JobId, id: AttemptId, outcome: Outcome) {
        if let Some(attempt) = self.attempt(job, id) {
            (attempt.ended, attempt.outcome) = (micros(now), outcome);
        }
    }

    /// An answer came that nobody waited for.
    pub(super) fn late(&mut self, now: Duration, id: AttemptId) {
        self.push(Record::Late { attempt: id.0, at: micros(now) });
    }

    pub(super) fn hub_asked(
        &mut self,
        now: Duration,
        job: JobId,
        id: ComputeId,
        wire: &WireJob,
        cells: &[usize],
    ) {
        let Some(layer) = self.open.get_mut(&job) else { return };
        let (experts, pairs) = (cells.len() as u32, wire.n_pairs(cells) as u32);
        layer.hub.push(HubWorkRecord { id: id.0, experts, pairs, sent: micros(now), ended: None });
    }

    pub(super) fn hub_answered(&mut self, now: Duration, job: JobId, id: ComputeId) {
        let layer = self.open.get_mut(&job);
        if let Some(work) = layer.and_then(|layer| layer.hub.iter_mut().find(|work| work.id == id.0)) {
            work.ended = Some(micros(now));
        }
    }

    /// A layer is over: its record is ready but for what only the driver knows.
    pub(super) fn finished(&mut self, now: Duration, id: JobId, is_ok: bool) {
        if let Some(layer) = self.open.remove(&id) {
            self.push(Record::Layer(LayerRecord { done: micros(now), is_ok, ..layer }));
        }
    }

    fn attempt(&mut self, job: JobId, id: AttemptId) -> Option<&mut AttemptRecord> {
        // The last ones are the likely ones.
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

/// Time since the hub's start, as a trace has it.
pub fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Bytes of a message that asks.
fn dispatch_bytes(dispatch: &Dispatch) -> u64 {
    let (calls, pairs) = (dispatch.calls.len() as u64, dispatch.n_pairs() as u64);
    let rows = dispatch.rows.len() as u64;
    match dispatch.form {
        // Each expert's rows beside it, however often a row is asked for.
        Form::Plain => {
            let row = rows.checked_div(dispatch.n_rows() as u64).unwrap_or(0);
            calls * FRAME_BYTES + pairs * (row + GATE_BYTES)
        }
        Form::RowsOnce | Form::Sum => FRAME_BYTES + rows + calls * FRAME_BYTES + pairs * INDEXED_GATE_BYTES,
    }
}

/// Bytes of a message that answers.
fn answer_bytes(answer: &Answer) -> u64 {
    answer.parts.iter().map(|part| FRAME_BYTES + part.payload.len() as u64).sum()
}
