//! The worker's end of its connection: input slots, resident blocks, and attempts that it has to answer.
//!
//! The session answers by itself what needs no arithmetic: pings, dispatches it has no room for (`preempted`), no
//! blocks for (`not_resident`), that pass the agreed sizes (`too_large`) or come while it leaves (`draining`).
//! Computing, loading and storing are left to the owner.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use super::compressor::Compressor;
use super::error::{CloseReason, SendError};
use super::{Channel, State, heartbeat_interval};
use crate::compression::{Compression, CompressionMode};
use crate::error_code::ErrorCode;
use crate::frame::digests;
use crate::frame::dispatch::Dispatch;
use crate::frame::error::WireError;
use crate::frame::heartbeat::{Accepted, Beat, Heartbeat, Join, Visibility};
use crate::frame::padding;
use crate::frame::reply::Reply;
use crate::frame::result::{Answer, AnswerShape};
use crate::frame::weight_sync::{BlockReport, WeightSync, WeightSyncFrame};
use crate::frame::{Frame, decode_message};
use crate::id::{AttemptId, Block};
use crate::limits::{
    MAX_JOIN_TEXT_BYTES, MAX_NAME_BYTES, MAX_RESIDENT_BLOCKS, MAX_SLOTS, MAX_STARTED_ATTEMPTS,
};

/// How long a worker waits for its join to be answered.
pub const JOIN_DEADLINE: Duration = Duration::from_secs(10);

/// After how many heartbeat intervals without a byte a worker takes its hub for gone.
pub const SILENT_BEATS: u32 = 4;

/// The settings of a worker session.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerConfig {
    /// Its first frame. Input slots are clamped to 1 to [`MAX_SLOTS`].
    pub join: Join,
}

/// An event of the hub.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerEvent {
    /// The hub accepted the worker, on these terms.
    Accepted(Accepted),
    /// Blocks to drop, which are refused from now on, then to add, in order.
    Sync(WeightSync),
    /// A started attempt no longer needs an answer. Queued attempts are removed without an event.
    Cancelled(AttemptId),
    /// The hub refused the worker, or ended the session, and said why. [`WorkerEvent::Closed`] follows.
    Rejected(WireError),
    /// The session is over. The last event.
    Closed {
        /// Why.
        reason: CloseReason,
    },
}

/// The worker's end of its connection.
///
/// In: `handle_message`, `handle_text`, `handle_timeout`, `handle_closed`; `next_work` to start what is queued, then
/// `complete` or `fail`; `report_blocks`, `report_beat`, `stop`.
/// Out, after each of these, in this order: all of `poll_transmit`, all of `poll_event`, then `poll_timeout`, and
/// `close_code`. A new session has its join to transmit.
#[derive(Debug)]
pub struct WorkerSession {
    channel: Channel<WorkerEvent>,
    phase: Phase,
    slots: usize,
    /// Not started, the oldest first; at most `slots`.
    queued: VecDeque<(AttemptId, Dispatch)>,
    /// Started and owed; at most [`MAX_STARTED_ATTEMPTS`].
    started: BTreeMap<AttemptId, AnswerShape>,
    /// At most [`MAX_RESIDENT_BLOCKS`].
    resident: BTreeSet<Block>,
    any_resident: bool,
    beat: Beat,
    heard_at: Duration,
}

/// How far the conversation is; with visibility and residency it makes the [`State`].
#[derive(Clone, Debug)]
enum Phase {
    Joining { deadline: Duration },
    Accepted(Terms),
    Draining(Terms),
}

/// What of the hub's terms the session itself goes by.
#[derive(Clone, Copy, Debug)]
struct Terms {
    silence: Duration,
    hidden: u32,
    max_rows: u32,
    max_pairs: u32,
}

impl WorkerSession {
    /// A session on a connection that opened at `now`; its join is ready to transmit.
    pub fn new(config: WorkerConfig, now: Duration) -> Self {
        let mut join = config.join;
        join.input_slots = join.input_slots.clamp(1, MAX_SLOTS);
        // Written by drivers, not by us: a long text is no reason to be refused.
        for (text, max_bytes) in [
            (&mut join.name, MAX_NAME_BYTES),
            (&mut join.adapter, MAX_JOIN_TEXT_BYTES),
            (&mut join.self_test.detail, MAX_JOIN_TEXT_BYTES),
        ] {
            text.truncate(text.floor_char_boundary(max_bytes));
        }
        let mut session = Self {
            channel: Channel::new(Compressor::following()),
            phase: Phase::Joining { deadline: now.saturating_add(JOIN_DEADLINE) },
            slots: usize::from(join.input_slots),
            queued: VecDeque::new(),
            started: BTreeMap::new(),
            resident: BTreeSet::new(),
            any_resident: false,
            beat: Beat::default(),
            heard_at: now,
        };
        session.send(Heartbeat::Join(join).encode(Compression::Off));
        session
    }

    /// Takes a binary message from the hub. A message is taken whole or, if anything in it is bad, not at all.
    pub fn handle_message(&mut self, now: Duration, message: Bytes) {
        if self.channel.is_closed() {
            return;
        }
        match decode_message(&message) {
            Ok(frames) => {
                self.heard_at = now;
                for frame in frames {
                    if self.channel.is_closed() {
                        return;
                    }
                    self.handle_frame(frame);
                }
                self.finish_draining();
            }
            Err(error) => self.close(CloseReason::Decode(error)),
        }
    }

    /// Takes a text message from the hub: no text is allowed, so this ends the session with 1003.
    pub fn handle_text(&mut self, _now: Duration) {
        self.close(CloseReason::Text);
    }

    /// Acts on the deadline that [`WorkerSession::poll_timeout`] gave. Too early is harmless.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.poll_timeout().is_some_and(|deadline| now >= deadline) {
            self.close(match self.phase {
                Phase::Joining { .. } => CloseReason::JoinDeadline,
                Phase::Accepted(_) | Phase::Draining(_) => CloseReason::Silent,
            });
        }
    }

    /// The connection is gone.
    pub fn handle_closed(&mut self, _now: Duration) {
        self.forget_work();
        self.channel.disconnect(closed);
    }

    /// Starts the oldest queued dispatch: from here on it cannot be preempted, and `complete` or `fail` ends it.
    pub fn next_work(&mut self, _now: Duration) -> Option<(AttemptId, Dispatch)> {
        while self.started.len() < MAX_STARTED_ATTEMPTS {
            let (attempt, dispatch) = self.queued.pop_front()?;
            // Blocks may have been dropped while it waited.
            match self.missing_block(&dispatch) {
                Some(block) => {
                    self.send_error(attempt, ErrorCode::NotResident, block.to_string());
                    self.finish_draining();
                }
                None => {
                    self.started.insert(attempt, dispatch.answer_shape());
                    return Some((attempt, dispatch));
                }
            }
        }
        None
    }

    /// Answers a started attempt, with digests of `answer` if those were asked for. One that was cancelled meanwhile is
    /// dropped silently.
    ///
    /// # Errors
    /// When the answer contradicts itself or is not of the shape asked for: nothing is sent and the attempt is still
    /// owed, to be ended with [`WorkerSession::fail`].
    pub fn complete(&mut self, _now: Duration, attempt: AttemptId, answer: Answer) -> Result<(), SendError> {
        let Some(shape) = self.started.get(&attempt) else { return Ok(()) };
        if !answer.has_shape(shape) {
            return Err(SendError::AnswerShape(attempt));
        }
        let encode = |compression| answer.encode(attempt, compression);
        let message = match shape.reply {
            Reply::Digests => digests::encode(attempt, &answer.digests(attempt)),
            _ => self.channel.encode(answer.message_bytes(), encode)?,
        };
        self.started.remove(&attempt);
        self.send(message);
        self.finish_draining();
        Ok(())
    }

    /// Ends a started attempt without an answer. One that was cancelled meanwhile is dropped silently.
    pub fn fail(&mut self, _now: Duration, attempt: AttemptId, code: ErrorCode, message: impl Into<String>) {
        if self.started.remove(&attempt).is_some() {
            self.send_error(attempt, code, message.into());
            self.finish_draining();
        }
    }

    /// Says which blocks are served from now on, and which could not be had.
    pub fn report_blocks(&mut self, _now: Duration, report: BlockReport) {
        if !matches!(self.phase, Phase::Accepted(_)) || self.channel.is_closed() {
            return;
        }
        for block in &report.resident {
            if self.resident.len() < MAX_RESIDENT_BLOCKS {
                self.resident.insert(*block);
            }
        }
        self.any_resident |= !report.resident.is_empty();
        for message in report.encode(self.channel.control()) {
            self.send(message);
        }
    }

    /// Notes how the worker is: told with the next ping, or at once if the visibility changed. Depth, residency and
    /// echo are the session's own and taken from nowhere else. Leaving is final: what is queued is handed back
    /// (`draining`), what is started is finished, then the session ends.
    pub fn report_beat(&mut self, now: Duration, beat: Beat) {
        if self.channel.is_closed() || self.beat.visibility == Visibility::Leaving {
            return;
        }
        let changed = self.beat.visibility != beat.visibility;
        self.beat = beat;
        if !changed {
            return;
        }
        // What the hub sent while this end could not listen is still under way.
        self.heard_at = now;
        self.send_beat(None, 0);
        if beat.visibility == Visibility::Leaving {
            self.leave();
        }
    }

    /// Ends the session, saying why: a lost device, for one.
    pub fn stop(&mut self, _now: Duration, code: ErrorCode, message: impl Into<String>) {
        self.close(CloseReason::Refused(WireError { code, message: message.into(), attempt: None }));
    }

    /// The next message to send.
    pub fn poll_transmit(&mut self) -> Option<Bytes> {
        self.channel.poll_transmit()
    }

    /// The next thing the hub wants.
    pub fn poll_event(&mut self) -> Option<WorkerEvent> {
        self.channel.events.pop_front()
    }

    /// When to call [`WorkerSession::handle_timeout`], at the latest.
    pub fn poll_timeout(&self) -> Option<Duration> {
        if self.channel.is_closed() {
            return None;
        }
        match &self.phase {
            Phase::Joining { deadline } => Some(*deadline),
            // A page that does not run cannot tell the hub's silence from its own.
            _ if matches!(self.beat.visibility, Visibility::Hidden | Visibility::Frozen) => None,
            Phase::Accepted(terms) | Phase::Draining(terms) => {
                Some(self.heard_at.saturating_add(terms.silence))
            }
        }
    }

    /// Where the session stands.
    pub fn state(&self) -> State {
        match self.phase {
            _ if self.channel.is_closed() => State::Closed,
            Phase::Joining { .. } => State::Joining,
            Phase::Draining(_) => State::Draining,
            Phase::Accepted(_) if !self.any_resident => State::Syncing,
            Phase::Accepted(_) if self.beat.visibility == Visibility::Visible => State::Serving,
            Phase::Accepted(_) => State::Paused,
        }
    }

    /// The code to close the connection with, once everything is sent; `None` while it stays open, or is gone.
    pub fn close_code(&self) -> Option<u16> {
        self.channel.close_code()
    }

    /// Dispatches queued and started.
    pub fn queue_depth(&self) -> usize {
        self.queued.len() + self.started.len()
    }

    fn handle_frame(&mut self, frame: Frame) {
        match (&self.phase, frame) {
            (_, Frame::Error(error)) => self.handle_error(error),
            (Phase::Joining { .. }, Frame::Heartbeat(Heartbeat::Accepted(accepted))) => {
                self.phase = Phase::Accepted(Terms::of(&accepted));
                self.emit(WorkerEvent::Accepted(accepted));
            }
            (Phase::Joining { .. }, _) => self.close(CloseReason::Unexpected("a frame before it accepted")),
            (_, Frame::Dispatch(attempt, dispatch)) => self.handle_dispatch(attempt, dispatch),
            (_, Frame::Cancel(attempt)) => self.handle_cancel(attempt),
            (_, Frame::Heartbeat(Heartbeat::Ping(ping))) => {
                self.channel.compressor.agree(ping.compression, ping.bytes_per_second);
                self.send_beat(Some(ping.hub_micros), ping.padding_bytes as usize);
            }
            (_, Frame::WeightSync(WeightSyncFrame::Sync(sync))) => {
                for block in &sync.drop {
                    self.resident.remove(block);
                }
                self.emit(WorkerEvent::Sync(sync));
            }
            (_, Frame::Heartbeat(_) | Frame::WeightSync(_) | Frame::Result(..) | Frame::Digests(..)) => {
                self.close(CloseReason::Unexpected(
                    "a frame that only a worker sends, or a second acceptance",
                ));
            }
        }
    }

    fn handle_dispatch(&mut self, attempt: AttemptId, dispatch: Dispatch) {
        if self.started.contains_key(&attempt) || self.queued.iter().any(|(queued, _)| *queued == attempt) {
            return self.close(CloseReason::Unexpected("an attempt twice"));
        }
        if let Err((code, message)) = self.admit(&dispatch) {
            return self.send_error(attempt, code, message);
        }
        if self.queued.len() >= self.slots
            && let Some((oldest, _)) = self.queued.pop_front()
        {
            self.send_error(oldest, ErrorCode::Preempted, "a newer dispatch took the input slot".into());
        }
        self.queued.push_back((attempt, dispatch));
    }

    /// Whether the worker can take a dispatch at all, or what to answer.
    fn admit(&self, dispatch: &Dispatch) -> Result<(), (ErrorCode, String)> {
        let Phase::Accepted(terms) = &self.phase else {
            return Err((ErrorCode::Draining, "the worker is leaving".into()));
        };
        if u32::from(dispatch.hidden) != terms.hidden {
            let message = format!("rows of {} values, the model's have {}", dispatch.hidden, terms.hidden);
            return Err((ErrorCode::BadFrame, message));
        }
        let (n_rows, n_pairs) = (dispatch.n_rows(), dispatch.n_pairs());
        if n_rows > terms.max_rows as usize || n_pairs > terms.max_pairs as usize {
            let Terms { max_rows, max_pairs, .. } = terms;
            let message = format!("{n_rows} rows, {n_pairs} pairs; agreed were {max_rows} and {max_pairs}");
            return Err((ErrorCode::TooLarge, message));
        }
        match self.missing_block(dispatch) {
            Some(block) => Err((ErrorCode::NotResident, block.to_string())),
            None => Ok(()),
        }
    }

    fn missing_block(&self, dispatch: &Dispatch) -> Option<Block> {
        let blocks = dispatch.calls.iter().map(|call| Block { layer: dispatch.layer, expert: call.expert });
        blocks.into_iter().find(|block| !self.resident.contains(block))
    }

    fn handle_cancel(&mut self, attempt: AttemptId) {
        self.queued.retain(|(queued, _)| *queued != attempt);
        if self.started.remove(&attempt).is_some() {
            self.emit(WorkerEvent::Cancelled(attempt));
        }
    }

    fn handle_error(&mut self, error: WireError) {
        match (error.attempt, error.code, &self.phase) {
            (Some(attempt), ..) => self.handle_cancel(attempt),
            (None, ErrorCode::Draining, Phase::Accepted(terms)) => self.phase = Phase::Draining(*terms),
            (None, ErrorCode::Draining, Phase::Draining(_)) => {}
            (None, ..) => {
                self.emit(WorkerEvent::Rejected(error.clone()));
                self.close(CloseReason::Peer(error));
            }
        }
    }

    /// Hands back what is queued and begins to drain. Before the hub's acceptance there is nothing to drain.
    fn leave(&mut self) {
        match &self.phase {
            Phase::Joining { .. } => self.close(CloseReason::Drained),
            Phase::Accepted(terms) | Phase::Draining(terms) => {
                self.phase = Phase::Draining(*terms);
                while let Some((attempt, _)) = self.queued.pop_front() {
                    self.send_error(attempt, ErrorCode::Draining, "the worker is leaving".into());
                }
                self.finish_draining();
            }
        }
    }

    fn finish_draining(&mut self) {
        if matches!(self.phase, Phase::Draining(_)) && self.queue_depth() == 0 {
            self.close(CloseReason::Drained);
        }
    }

    fn send_beat(&mut self, echo: Option<u64>, padding_bytes: usize) {
        let beat = Beat {
            echo,
            queue_depth: self.queue_depth() as u32,
            blocks_resident: self.resident.len() as u32,
            takes_lz4: self.channel.compressor.mode() != CompressionMode::Off,
            ..self.beat
        };
        let message = Heartbeat::Beat(beat).encode(self.channel.control());
        self.send(padding::before(&message, padding_bytes));
    }

    fn send_error(&mut self, attempt: AttemptId, code: ErrorCode, message: String) {
        let error = WireError { code, message, attempt: Some(attempt) };
        self.send(error.encode(self.channel.control()));
    }

    fn send(&mut self, message: Bytes) {
        if !self.channel.is_closed() {
            self.channel.send_or_close(message, closed);
        }
        if self.channel.is_closed() {
            self.forget_work();
        }
    }

    fn emit(&mut self, event: WorkerEvent) {
        self.channel.emit(event, closed);
    }

    fn close(&mut self, reason: CloseReason) {
        self.forget_work();
        self.channel.close(reason, closed);
    }

    /// After the end nothing is owed, and what was queued is not kept.
    fn forget_work(&mut self) {
        self.queued.clear();
        self.started.clear();
    }
}

impl Terms {
    fn of(accepted: &Accepted) -> Self {
        let interval = heartbeat_interval(accepted.heartbeat_interval_millis);
        let model = &accepted.model;
        Self {
            silence: interval.saturating_mul(SILENT_BEATS),
            hidden: model.hidden,
            max_rows: model.max_rows,
            max_pairs: model.max_pairs,
        }
    }
}

fn closed(reason: CloseReason) -> WorkerEvent {
    WorkerEvent::Closed { reason }
}
