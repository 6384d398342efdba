//! The records of a trace: what happened to each layer, given out when it is finished by [`super::Swarm::poll_trace`].
//!
//! The dispatcher collects them. Reading a clock and writing records to a file are left to the driver. Without
//! [`super::SwarmConfig::is_traced`] there is no recorder, and this costs nothing.
//!
//! All times are microseconds since the hub's start. Bytes are those of the frames before compression, headers included.

use std::time::Duration;

use moex_protocol::{Dtype, ModelSummary, WorkerId, WorkerKind};
use serde::{Deserialize, Serialize};

use super::policy::Hedge;

/// The version of the records' meaning, in the first line of a trace.
pub const TRACE_VERSION: u32 = 1;

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
    /// A layer is finished.
    Layer(LayerRecord),
    /// A late answer: to an attempt that was abandoned.
    Late {
        /// The attempt, of a layer that was recorded before or is in flight.
        attempt: u32,
        /// When.
        at: u64,
    },
    /// A step of the model is finished. The layers since the last one were its layers.
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
        /// Records that were dropped because the writer did not keep up.
        dropped: u64,
    },
}

/// What the hub serves, and with which settings.
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
    /// When its answer had arrived, or it was abandoned.
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
    /// It was abandoned: other workers had answered all of it.
    GivenUp,
    /// It had no answer in time, and other workers had answered all of it when the layer was finished.
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
    /// When it was done; none if its layer was finished before.
    pub ended: Option<u64>,
}

/// Time since the hub's start, as a trace has it.
pub fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
