//! Both ends of a conversation as state machines: [`hub::HubSession`] and [`worker::WorkerSession`].
//!
//! Bytes and times go in by `handle_*`, what the owner wants by the other methods; bytes, events and a deadline come
//! out by `poll_*`. After anything goes in, a driver sends all of `poll_transmit`, takes all of `poll_event`, arms
//! its timer with `poll_timeout`, and once `close_code` gives a code and everything is sent, closes the connection.
//! Times are durations since the driver's own start and do not go back.
//!
//! ```text
//!              accepted             first block resident           hidden, frozen
//! Joining ----------------> Syncing ---------------------> Serving <------------> Paused
//!    |                         |                              |       visible       |
//!    |                         +---------- leaving, drain ----+---------------------+
//!    |                                                        v
//!    +--------- refused, bad frame, silence, ... --------> Closed <---- Draining, when nothing is owed
//! ```
//!
//! Every state but Closed also goes to Closed at once on what ends a session ([`CloseReason`]).

pub mod error;
pub mod hub;
pub mod worker;

mod attempts;
mod compressor;
mod hub_event;
mod link_rate;
mod state;

use core::time::Duration;
use std::collections::VecDeque;

use bytes::Bytes;

pub use self::state::State;

use self::compressor::Compressor;
use self::error::CloseReason;
use crate::compression::Compression;
use crate::limits::{MAX_EVENTS, MAX_OUTBOX_BYTES, MAX_OUTBOX_MESSAGES};

/// What both ends have: messages to send, events to give, and an end.
#[derive(Debug)]
struct Channel<Event> {
    outbox: VecDeque<Bytes>,
    outbox_bytes: usize,
    events: VecDeque<Event>,
    compressor: Compressor,
    closed: Option<CloseReason>,
}

/// The outbound queue has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Full;

impl<Event> Channel<Event> {
    /// Nothing is compressed before both ends have said so.
    fn new(compressor: Compressor) -> Self {
        Self { outbox: VecDeque::new(), outbox_bytes: 0, events: VecDeque::new(), compressor, closed: None }
    }

    /// Encodes a tensor message of `n_bytes` uncompressed, compressed if that pays.
    fn encode<E>(
        &mut self,
        n_bytes: u64,
        encode: impl FnOnce(Compression) -> Result<Bytes, E>,
    ) -> Result<Bytes, E> {
        let n_bytes = usize::try_from(n_bytes).unwrap_or(usize::MAX);
        let compression = self.compressor.choose(n_bytes);
        let message = encode(compression)?;
        self.compressor.encoded(compression, n_bytes, message.len());
        Ok(message)
    }

    /// How control frames are encoded, which are few.
    fn control(&self) -> Compression {
        self.compressor.choose_control()
    }

    fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    fn is_idle(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Queues all of `messages` or none.
    fn send(&mut self, messages: impl IntoIterator<Item = Bytes, IntoIter: Clone>) -> Result<(), Full> {
        let messages = messages.into_iter();
        let (n, bytes) = messages.clone().fold((0, 0), |(n, bytes), message| (n + 1, bytes + message.len()));
        if self.outbox.len() + n > MAX_OUTBOX_MESSAGES || self.outbox_bytes + bytes > MAX_OUTBOX_BYTES {
            return Err(Full);
        }
        self.outbox.extend(messages);
        self.outbox_bytes += bytes;
        Ok(())
    }

    /// Queues a message that must not be lost: an overflow ends the session.
    fn send_or_close(&mut self, message: Bytes, closed: impl FnOnce(CloseReason) -> Event) {
        if self.send([message]).is_err() {
            self.close(CloseReason::Backlog, closed);
        }
    }

    /// Gives an event to the owner: an overflow, which means that nobody polls, ends the session.
    fn emit(&mut self, event: Event, closed: impl FnOnce(CloseReason) -> Event) {
        if self.is_closed() {
            return;
        }
        if self.events.len() < MAX_EVENTS {
            self.events.push_back(event);
        } else {
            self.close(CloseReason::Backlog, closed);
        }
    }

    /// Ends the session, once: the last message and the last event are beyond the bounds that the others keep.
    fn close(&mut self, reason: CloseReason, closed: impl FnOnce(CloseReason) -> Event) {
        if self.is_closed() {
            return;
        }
        if reason.close_code().is_none() || reason == CloseReason::Backlog {
            self.outbox.clear();
            self.outbox_bytes = 0;
        }
        if let Some(error) = reason.farewell() {
            let message = error.encode(Compression::Off);
            self.outbox_bytes += message.len();
            self.outbox.push_back(message);
        }
        self.closed = Some(reason.clone());
        self.events.push_back(closed(reason));
    }

    /// The connection went away: what was to be sent cannot be.
    fn disconnect(&mut self, closed: impl FnOnce(CloseReason) -> Event) {
        self.close(CloseReason::Transport, closed);
        self.outbox.clear();
        self.outbox_bytes = 0;
        self.closed = Some(CloseReason::Transport);
    }

    fn poll_transmit(&mut self) -> Option<Bytes> {
        let message = self.outbox.pop_front()?;
        self.outbox_bytes -= message.len();
        Some(message)
    }

    fn close_code(&self) -> Option<u16> {
        self.closed.as_ref().and_then(CloseReason::close_code)
    }
}

/// The bounds of a heartbeat interval that a session goes by, whatever was agreed.
const HEARTBEAT_INTERVALS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_hours(1));

fn heartbeat_interval(millis: u64) -> Duration {
    Duration::from_millis(millis).clamp(HEARTBEAT_INTERVALS.0, HEARTBEAT_INTERVALS.1)
}
