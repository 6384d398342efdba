//! The records of a trace: what happened to each layer, returned by [`super::Swarm::poll_trace`] once it is finished.
//!
//! The dispatcher collects them; the driver adds times and writes them to a file. Without
//! [`super::SwarmConfig::is_traced`] there is no recorder, and no cost.
//!
//! All times are microseconds since the hub's start. Bytes are those of the frames before compression, headers included.

use std::time::Duration;

use moex_protocol::{Dtype, ModelSummary, WorkerId, WorkerKind};
use serde::{Deserialize, Serialize};

use super::policy::Hedge;

/// Version of the record format, in the first line of a trace.
pub const TRACE_VERSION: u32 = 1;

/// One line of a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// The first line: what the hub serves, and how.
    Hub(HubRecord),
    /// A worker joined.
    Joined(JoinedRecord),
    /// A worker left.
    Left {
        /// Its id.
        worker: WorkerId,
        /// When.
        at: u64,
    },
    /// A worker answered a ping after this time.
    RoundTrip {
        /// Its id.
        worker: WorkerId,
        /// When.
        at: u64,
        /// The round trip.
        micros: u64,
    },
    /// A layer is finished.
    Layer(LayerRecord),
    /// A late answer, to an abandoned attempt.
    Late {
        /// The attempt, of a layer that was recorded before or is in flight.
        attempt: u32,
        /// When.
        at: u64,
    },
    /// A forward pass finished. The layers since the last such record belong to it.
    Step {
        /// When it began, before the embedding.
        begun: u64,
        /// When its last token was emitted.
        ended: u64,
        /// T.
        rows: u32,
        /// Tokens that it generated.
        tokens: u32,
    },
    /// The last line.
    End {
        /// Records that were dropped because the writer did not keep up.
        dropped: u64,
    },
}

/// The served model and the settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HubRecord {
    /// [`TRACE_VERSION`].
    pub version: u32,
    /// The served model.
    pub model: ModelSummary,
    /// Copies of each block.
    pub replicas: usize,
    /// The hedging policy.
    pub hedge: Hedge,
    /// Timeout before another worker is asked, microseconds.
    pub timeout: u64,
    /// Number format on the wire.
    pub wire: Dtype,
    /// One answer in this many is checked.
    pub check_every: u32,
    /// Whether the hub computes what no worker can.
    pub hub_compute: bool,
}

/// A worker, as described by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JoinedRecord {
    /// Its id.
    pub worker: WorkerId,
    /// When.
    pub at: u64,
    /// Browser or native.
    pub kind: WorkerKind,
    /// Its backend.
    pub backend: String,
    /// Its memory for experts.
    pub memory_budget_bytes: u64,
    /// Dispatches that it accepts at a time.
    pub input_slots: u8,
    /// Time of one sync, microseconds.
    pub sync_latency: u64,
    /// Its speed, if measured.
    pub teraflops: Option<f32>,
}

/// One layer of one step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LayerRecord {
    /// Number of the layer since the hub's start.
    pub job: u64,
    /// Index in the model.
    pub layer: u16,
    /// T.
    pub rows: u32,
    /// (T, K), each row's experts.
    pub experts: Vec<u16>,
    /// When the model had routed its rows and requested the layer, after its attention and router.
    pub asked: u64,
    /// When the swarm started it.
    pub started: u64,
    /// When its first messages were handed to their sockets.
    pub sent: u64,
    /// When the last needed answer had arrived.
    pub done: u64,
    /// When its sum was returned.
    pub replied: u64,
    /// Whether it succeeded.
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
    /// The worker that it was sent to.
    pub worker: WorkerId,
    /// Its purpose.
    pub kind: AttemptKind,
    /// Experts asked for.
    pub experts: u32,
    /// Those of them that another worker was asked for already.
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
    /// When its answer arrived, or it was abandoned.
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
    /// A second copy, because another attempt was late.
    Hedge,
    /// A measurement of the worker's current speed.
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
    /// Abandoned: other workers had answered all its items.
    GivenUp,
    /// Not answered in time, and other workers had answered all its items when the layer finished.
    TimedOut,
}

/// A message's worth of items computed by the hub.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HubWorkRecord {
    /// Its id.
    pub id: u64,
    /// Experts.
    pub experts: u32,
    /// (row, expert) pairs.
    pub pairs: u32,
    /// When it was requested.
    pub sent: u64,
    /// When it was done; none if its layer finished before.
    pub ended: Option<u64>,
}

/// Time since the hub's start, as in a trace.
pub fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
