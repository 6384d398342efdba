//! The hub's end of one worker's connection. Sends what the swarm asks for, in order, and checks everything a worker says:
//! the swarm sees only joins, beats, block reports, and answers of the shape that was asked for.
//!
//! Timeouts of attempts are left to the swarm, which cancels the attempts that it gives up.

use core::time::Duration;
use std::collections::VecDeque;

use bytes::Bytes;

use super::attempts::{Attempts, Lookup};
use super::compressor::Compressor;
use super::error::{CloseReason, SendError};
pub use super::hub_event::HubEvent;
use super::link_rate::{LinkRate, Probe};
use super::{Channel, State, heartbeat_interval};
use crate::compression::CompressionMode;
use crate::error_code::ErrorCode;
use crate::frame::digests::Digest;
use crate::frame::dispatch::Dispatch;
use crate::frame::error::WireError;
use crate::frame::heartbeat::{Accepted, Beat, Heartbeat, Ping, Visibility};
use crate::frame::padding::{self, MAX_PADDING_BYTES};
use crate::frame::reply::Reply;
use crate::frame::result::Answer;
use crate::frame::weight_sync::{WeightSync, WeightSyncFrame};
use crate::frame::{Frame, cancel, decode_message_within};
use crate::id::AttemptId;
use crate::limits::{MAX_JOIN_MESSAGE_BYTES, MAX_MESSAGE_BYTES};

/// The most pings that wait for their beats; older ones are forgotten.
const MAX_PINGS: usize = 16;

/// The settings of a hub session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionConfig {
    /// How long a connection may take to join.
    pub join_deadline: Duration,
    /// After how many heartbeat intervals without a byte a worker counts as gone.
    pub silent_beats: u32,
    /// The same for a worker that said it is hidden or frozen: a frozen tab cannot answer, and comes back.
    pub paused_silence: Duration,
    /// How long a leaving worker may take to finish what it owes.
    pub drain_deadline: Duration,
    /// When both ends compress what they send.
    pub compression: CompressionMode,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            join_deadline: Duration::from_secs(10),
            silent_beats: 4,
            paused_silence: Duration::from_mins(10),
            drain_deadline: Duration::from_secs(10),
            compression: CompressionMode::Off,
        }
    }
}

/// The hub's end of one connection.
///
/// In: `handle_message`, `handle_text`, `handle_timeout`, `handle_closed`; `accept` or `reject` once after
/// [`HubEvent::Joined`], then `sync_weights`, `dispatch`, `cancel`, `drain`.
/// Out, after each of these, in this order: all of `poll_transmit`, all of `poll_event`, then `poll_timeout`, and
/// `close_code`.
#[derive(Debug)]
pub struct HubSession {
    config: SessionConfig,
    channel: Channel<HubEvent>,
    phase: Phase,
    visibility: Visibility,
    any_resident: bool,
    wants_products: bool,
    attempts: Attempts,
    late_answers: u64,
    heard_at: Duration,
    interval: Duration,
    next_ping: Duration,
    /// Pings that no beat has answered, oldest first; at most [`MAX_PINGS`].
    pings: VecDeque<(u64, Probe)>,
    link: LinkRate,
}

/// How far the conversation is; with visibility and residency it makes the [`State`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    AwaitingJoin {
        deadline: Duration,
    },
    /// Joined; the owner has not said whether it is accepted.
    AwaitingVerdict,
    Accepted,
    Draining {
        deadline: Duration,
    },
}

impl HubSession {
    /// A session on a connection that opened at `now`.
    pub fn new(config: SessionConfig, now: Duration) -> Self {
        Self {
            channel: Channel::new(Compressor::measuring()),
            phase: Phase::AwaitingJoin { deadline: now.saturating_add(config.join_deadline) },
            visibility: Visibility::Visible,
            any_resident: false,
            wants_products: false,
            attempts: Attempts::default(),
            late_answers: 0,
            heard_at: now,
            interval: Duration::ZERO,
            next_ping: now,
            pings: VecDeque::new(),
            link: LinkRate::default(),
            config,
        }
    }

    /// Takes a binary message from the worker. A message is taken whole or, if anything in it is bad, not at all.
    pub fn handle_message(&mut self, now: Duration, message: Bytes) {
        if self.channel.is_closed() {
            return;
        }
        let limit = match self.phase {
            Phase::AwaitingJoin { .. } | Phase::AwaitingVerdict => MAX_JOIN_MESSAGE_BYTES,
            Phase::Accepted | Phase::Draining { .. } => MAX_MESSAGE_BYTES,
        };
        match decode_message_within(&message, limit) {
            Ok(frames) => {
                self.heard_at = now;
                for frame in frames {
                    if self.channel.is_closed() {
                        return;
                    }
                    self.handle_frame(now, frame);
                }
                self.finish_draining();
            }
            Err(error) => self.close(CloseReason::Decode(error)),
        }
    }

    /// Takes a text message from the worker: no text is allowed, so this ends the session with 1003.
    pub fn handle_text(&mut self, _now: Duration) {
        self.close(CloseReason::Text);
    }

    /// Acts on the deadline that [`HubSession::poll_timeout`] gave. Too early is harmless.
    pub fn handle_timeout(&mut self, now: Duration) {
        match self.phase {
            Phase::AwaitingJoin { deadline } if now >= deadline => {
                return self.close(CloseReason::JoinDeadline);
            }
            Phase::AwaitingJoin { .. } | Phase::AwaitingVerdict => return,
            Phase::Draining { deadline } if now >= deadline => return self.close(CloseReason::Drained),
            Phase::Draining { .. } | Phase::Accepted => {}
        }
        if now >= self.silent_at() {
            self.close(CloseReason::Silent);
        } else if now >= self.next_ping {
            self.ping(now);
        }
    }

    /// The connection is gone.
    pub fn handle_closed(&mut self, _now: Duration) {
        self.channel.disconnect(closed);
    }

    /// Takes the worker that joined, on these terms. Without a join to answer it does nothing.
    pub fn accept(&mut self, now: Duration, accepted: Accepted) {
        if self.channel.is_closed() || self.phase != Phase::AwaitingVerdict {
            return;
        }
        self.phase = Phase::Accepted;
        self.wants_products = accepted.wants_products;
        self.interval = heartbeat_interval(accepted.heartbeat_interval_millis);
        self.heard_at = now;
        self.next_ping = now.saturating_add(self.interval);
        let message = Heartbeat::Accepted(accepted).encode(self.channel.control());
        self.channel.send_or_close(message, closed);
        if self.visibility == Visibility::Leaving {
            self.start_draining(now);
            self.finish_draining();
        }
    }

    /// Refuses the worker, or ends the session later on, saying why.
    pub fn reject(&mut self, _now: Duration, code: ErrorCode, message: impl Into<String>) {
        self.close(CloseReason::Refused(WireError { code, message: message.into(), attempt: None }));
    }

    /// Sends `dispatch` as `attempt`, an id after all that are still owed in this session ([`AttemptId::is_after`]).
    ///
    /// # Errors
    /// When the worker is not serving, the dispatch is malformed, too much is owed or queued: nothing was sent.
    pub fn dispatch(
        &mut self,
        _now: Duration,
        attempt: AttemptId,
        dispatch: &Dispatch,
    ) -> Result<(), SendError> {
        if self.state() != State::Serving {
            return Err(SendError::State(self.state()));
        }
        // A session that is asked nothing while half of all ids go to others begins anew.
        if self.attempts.last().is_some_and(|last| !attempt.is_after(last)) {
            self.attempts.start_over();
        }
        if let Some(last) = self.attempts.last()
            && !attempt.is_after(last)
        {
            return Err(SendError::AttemptOrder { attempt, last });
        }
        if self.attempts.is_full() {
            return Err(SendError::TooManyOutstanding);
        }
        let encode = |compression| dispatch.encode(attempt, compression);
        let message = self.channel.encode(dispatch.message_bytes(), encode)?;
        self.channel.send([message]).map_err(|_| SendError::Backlog)?;
        self.attempts.insert(attempt, dispatch.answer_shape());
        Ok(())
    }

    /// Gives up an attempt: no answer is owed, one that comes is late. Nothing happens if none was owed.
    pub fn cancel(&mut self, _now: Duration, attempt: AttemptId) {
        if self.channel.is_closed() {
            return;
        }
        if let Lookup::Settled(_) = self.attempts.settle(attempt) {
            // A worker that does not read will not be cancelled sooner by ending the session over it.
            let _ = self.channel.send([cancel::encode(attempt)]);
            self.finish_draining();
        }
    }

    /// Tells the worker which blocks to drop and to add, in as many frames as it takes.
    ///
    /// # Errors
    /// When the worker is not accepted or is leaving, a block's entry is too large, or too much is queued.
    pub fn sync_weights(&mut self, _now: Duration, sync: WeightSync) -> Result<(), SendError> {
        match self.state() {
            State::Syncing | State::Serving | State::Paused => {}
            state => return Err(SendError::State(state)),
        }
        let messages = sync.encode(self.channel.control()).map_err(SendError::EntryTooLarge)?;
        self.channel.send(messages).map_err(|_| SendError::Backlog)
    }

    /// Asks the worker to finish what it owes and leave: ERROR `draining`, then a close when nothing is owed.
    pub fn drain(&mut self, now: Duration) {
        if self.channel.is_closed() || matches!(self.phase, Phase::Draining { .. }) {
            return;
        }
        let error =
            WireError { code: ErrorCode::Draining, message: "the hub is leaving".into(), attempt: None };
        let message = error.encode(self.channel.control());
        self.start_draining(now);
        self.channel.send_or_close(message, closed);
        self.finish_draining();
    }

    /// The next message to send.
    pub fn poll_transmit(&mut self) -> Option<Bytes> {
        self.channel.poll_transmit()
    }

    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<HubEvent> {
        self.channel.events.pop_front()
    }

    /// When to call [`HubSession::handle_timeout`], at the latest.
    pub fn poll_timeout(&self) -> Option<Duration> {
        if self.channel.is_closed() {
            return None;
        }
        let beats = self.silent_at().min(self.next_ping);
        match self.phase {
            Phase::AwaitingJoin { deadline } => Some(deadline),
            Phase::AwaitingVerdict => None,
            Phase::Accepted => Some(beats),
            Phase::Draining { deadline } => Some(deadline.min(beats)),
        }
    }

    /// Where the session stands.
    pub fn state(&self) -> State {
        match self.phase {
            _ if self.channel.is_closed() => State::Closed,
            Phase::AwaitingJoin { .. } | Phase::AwaitingVerdict => State::Joining,
            Phase::Draining { .. } => State::Draining,
            Phase::Accepted if !self.any_resident => State::Syncing,
            Phase::Accepted if self.visibility == Visibility::Visible => State::Serving,
            Phase::Accepted => State::Paused,
        }
    }

    /// The code to close the connection with, once everything is sent; `None` while it stays open, or is gone.
    pub fn close_code(&self) -> Option<u16> {
        self.channel.close_code()
    }

    /// Answers to attempts that were settled before they came.
    pub fn late_answers(&self) -> u64 {
        self.late_answers
    }

    /// Bytes a second that the link was measured to carry to the worker and from it: with [`CompressionMode::Auto`], if
    /// payloads shrink, and after some pings.
    pub fn link_bytes_per_second(&self) -> [Option<u64>; 2] {
        [self.link.down_bytes_per_second(), self.link.up_bytes_per_second()]
    }

    /// Whether what is sent to the worker is compressed at present.
    pub fn is_compressing(&self) -> bool {
        self.channel.compressor.is_on()
    }

    /// Attempts that owe an answer.
    pub fn outstanding(&self) -> usize {
        self.attempts.outstanding()
    }

    fn handle_frame(&mut self, now: Duration, frame: Frame) {
        match (self.phase, frame) {
            (Phase::AwaitingJoin { .. }, Frame::Heartbeat(Heartbeat::Join(join))) => {
                self.phase = Phase::AwaitingVerdict;
                self.emit(HubEvent::Joined(join));
            }
            (_, Frame::Error(error)) => self.handle_error(error),
            (Phase::AwaitingJoin { .. }, _) => self.close(CloseReason::Unexpected("a frame before its join")),
            (_, Frame::Heartbeat(Heartbeat::Beat(beat))) => self.handle_beat(now, beat),
            (Phase::AwaitingVerdict, _) => {
                self.close(CloseReason::Unexpected("a frame before it was accepted"));
            }
            (_, Frame::WeightSync(WeightSyncFrame::Report(report))) => {
                self.any_resident |= !report.resident.is_empty();
                self.emit(HubEvent::Blocks(report));
            }
            (_, Frame::Result(attempt, answer)) => self.handle_answer(attempt, answer),
            (_, Frame::Digests(attempt, digests)) => self.handle_digests(attempt, digests),
            (_, Frame::Heartbeat(Heartbeat::Join(_))) => self.close(CloseReason::Unexpected("a second join")),
            (_, Frame::Heartbeat(_) | Frame::WeightSync(_) | Frame::Dispatch(..) | Frame::Cancel(_)) => {
                self.close(CloseReason::Unexpected("a frame that only a hub sends"));
            }
        }
    }

    fn handle_beat(&mut self, now: Duration, beat: Beat) {
        let round_trip = beat.echo.and_then(|echo| {
            let (answered, &(_, probe)) =
                self.pings.iter().enumerate().find(|(_, (ping, _))| *ping == echo)?;
            self.pings.drain(..=answered);
            let round_trip = now.saturating_sub(Duration::from_micros(echo));
            self.link.answered(probe, round_trip);
            Some(if probe == Probe::Plain { round_trip } else { self.link.shortest().unwrap_or(round_trip) })
        });
        if beat.takes_lz4 {
            self.channel.compressor.agree(self.config.compression, self.link.down_bytes_per_second());
        }
        // Leaving is final, whatever an event of the page that comes after says.
        if self.visibility != Visibility::Leaving {
            self.visibility = beat.visibility;
            if beat.visibility == Visibility::Leaving && self.phase == Phase::Accepted {
                self.start_draining(now);
            }
        }
        self.emit(HubEvent::Beat { beat, round_trip });
    }

    fn handle_answer(&mut self, attempt: AttemptId, answer: Answer) {
        let event = match self.attempts.settle(attempt) {
            Lookup::NeverSent => return self.close(CloseReason::NeverSent(attempt)),
            Lookup::Late => {
                self.late_answers += 1;
                HubEvent::Late { attempt, answer }
            }
            Lookup::Settled(shape) if shape.reply == Reply::Digests || !answer.has_shape(&shape) => {
                return self.other_shape(attempt);
            }
            Lookup::Settled(_) if !self.wants_products && answer.has_non_finite() => {
                HubEvent::NotFinite { attempt }
            }
            Lookup::Settled(_) => HubEvent::Answered { attempt, answer },
        };
        self.emit(event);
    }

    fn handle_digests(&mut self, attempt: AttemptId, digests: Vec<Digest>) {
        match self.attempts.settle(attempt) {
            Lookup::NeverSent => return self.close(CloseReason::NeverSent(attempt)),
            Lookup::Late => self.late_answers += 1,
            Lookup::Settled(shape) if shape.reply == Reply::Digests && shape.parts.len() == digests.len() => {
            }
            Lookup::Settled(_) => return self.other_shape(attempt),
        }
        self.emit(HubEvent::Digested { attempt, digests });
    }

    fn other_shape(&mut self, attempt: AttemptId) {
        let message = "the answer is not of the shape asked for".into();
        let error = WireError { code: ErrorCode::BadFrame, message, attempt: Some(attempt) };
        self.emit(HubEvent::Failed { attempt, error });
    }

    fn handle_error(&mut self, error: WireError) {
        let Some(attempt) = error.attempt else { return self.close(CloseReason::Peer(error)) };
        match self.attempts.settle(attempt) {
            Lookup::Settled(_) => self.emit(HubEvent::Failed { attempt, error }),
            // Crossed a cancellation: there was no answer to lose.
            Lookup::Late => {}
            Lookup::NeverSent => self.close(CloseReason::NeverSent(attempt)),
        }
    }

    fn ping(&mut self, now: Duration) {
        self.next_ping = now.saturating_add(self.interval);
        // A worker that does not read gets no pile of pings; its silence is noticed all the same.
        if !self.channel.is_idle() {
            return;
        }
        let hub_micros = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        // A way there and back may be longer than the interval: the last one is not the only one that may be answered.
        if self.pings.len() == MAX_PINGS {
            self.pings.pop_front();
        }
        let is_worth_it = self.channel.compressor.is_worth_measuring();
        let probe = if is_worth_it { self.link.next_probe() } else { Probe::Plain };
        let padding = |is_wanted| if is_wanted { MAX_PADDING_BYTES } else { 0 };
        self.pings.push_back((hub_micros, probe));
        let ping = Ping {
            hub_micros,
            compression: self.config.compression,
            bytes_per_second: self.link.up_bytes_per_second(),
            padding_bytes: padding(probe == Probe::FromWorker) as u32,
        };
        let message = Heartbeat::Ping(ping).encode(self.channel.control());
        let message = padding::before(&message, padding(probe == Probe::ToWorker));
        self.channel.send_or_close(message, closed);
    }

    fn silent_at(&self) -> Duration {
        let patience = match self.visibility {
            Visibility::Visible | Visibility::Leaving => {
                self.interval.saturating_mul(self.config.silent_beats)
            }
            Visibility::Hidden | Visibility::Frozen => self.config.paused_silence,
        };
        self.heard_at.saturating_add(patience)
    }

    fn start_draining(&mut self, now: Duration) {
        self.phase = Phase::Draining { deadline: now.saturating_add(self.config.drain_deadline) };
    }

    fn finish_draining(&mut self) {
        if matches!(self.phase, Phase::Draining { .. }) && self.attempts.outstanding() == 0 {
            self.close(CloseReason::Drained);
        }
    }

    fn emit(&mut self, event: HubEvent) {
        self.channel.emit(event, closed);
    }

    fn close(&mut self, reason: CloseReason) {
        self.channel.close(reason, closed);
    }
}

fn closed(reason: CloseReason) -> HubEvent {
    HubEvent::Closed { reason }
}
