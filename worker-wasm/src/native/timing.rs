//! Where a message's time goes in this worker: the medians of its parts, logged at debug level (`MOEX_LOG=moex_worker=debug`) every
//! [`WINDOW`] messages.

use std::{
    fmt::Write,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use moex_kernels::engine::Stage;

use super::clock::Clock;

/// Messages whose medians are one line of the log.
const WINDOW: usize = 1000;

/// What happens to a message, in this order. A CPU has no stages of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Point {
    /// The hub's message was read from the socket.
    Received,
    /// It became a batch.
    Parsed,
    /// Its rows were handed to the device.
    Written,
    /// Its commands were recorded.
    Recorded,
    /// Its commands were submitted.
    Submitted,
    /// The device was done.
    Ready,
    /// The results were read.
    Read,
    /// They became an answer.
    Encoded,
    /// The answer was handed to the socket.
    Sent,
}

impl Point {
    /// The point that a stage of a device is.
    pub(super) fn of(stage: Stage) -> Self {
        match stage {
            Stage::Written => Self::Written,
            Stage::Recorded => Self::Recorded,
            Stage::Submitted => Self::Submitted,
            Stage::Ready => Self::Ready,
            Stage::Read => Self::Read,
        }
    }
}

const N_POINTS: usize = 9;
const NAMES: [&str; N_POINTS] =
    ["received", "parsed", "written", "recorded", "submitted", "ready", "read", "encoded", "sent"];

/// Clones share the measurement.
#[derive(Clone, Debug)]
pub(super) struct Timing(Option<(Clock, Arc<Mutex<State>>)>);

#[derive(Debug, Default)]
struct State {
    /// When each point of the message under way was reached.
    reached: [Option<Duration>; N_POINTS],
    /// Of the last messages, the time from the point before to each point; for the first, from the last answer.
    parts: [Vec<Duration>; N_POINTS],
    last_sent: Option<Duration>,
}

impl Timing {
    /// Measures if the log shows it.
    pub(super) fn new(clock: Clock) -> Self {
        Self(tracing::enabled!(tracing::Level::DEBUG).then(|| (clock, Arc::default())))
    }

    /// Whether it measures.
    pub(super) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The message under way has reached `point`.
    pub(super) fn reach(&self, point: Point) {
        let Some((clock, state)) = &self.0 else { return };
        let medians = state.lock().unwrap_or_else(PoisonError::into_inner).reach(point, clock.now());
        if let Some(medians) = medians {
            tracing::debug!("the medians of the last {WINDOW} messages: {medians}");
        }
    }
}

impl State {
    /// Notes `point`; returns the medians once a window is full.
    fn reach(&mut self, point: Point, now: Duration) -> Option<String> {
        let at = point as usize;
        match point {
            Point::Received => self.reached = [None; N_POINTS],
            // Sockets are polled on and on: the first time after an answer counts.
            Point::Sent if self.reached[Point::Encoded as usize].is_none() => return None,
            _ if self.reached[Point::Received as usize].is_none() => return None,
            _ => {}
        }
        self.reached[at] = Some(now);
        if point != Point::Sent {
            return None;
        }
        let mut before = self.last_sent.replace(now);
        for (reached, parts) in self.reached.iter().zip(&mut self.parts) {
            if let (Some(reached), Some(before)) = (*reached, before) {
                parts.push(reached.saturating_sub(before));
            }
            before = reached.or(before);
        }
        self.reached = [None; N_POINTS];
        let is_full = self.parts[at].len() >= WINDOW;
        is_full.then(|| self.medians())
    }

    /// The medians of all parts, which it forgets.
    fn medians(&mut self) -> String {
        let mut words = String::new();
        for (name, mut parts) in NAMES.into_iter().zip(std::mem::take(&mut self.parts)) {
            parts.sort_unstable();
            if let Some(median) = parts.get(parts.len() / 2) {
                // Writing to a string cannot fail.
                let _ = write!(words, "{name} after {:.1} us, ", median.as_nanos() as f64 / 1e3);
            }
        }
        words.truncate(words.trim_end_matches(", ").len());
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_of_messages_is_a_line_of_medians() {
        let mut state = State::default();
        let mut line = None;
        for message in 0..WINDOW as u64 {
            assert_eq!(line, None, "after {message} messages");
            let at = |micros| Duration::from_micros(1000 * message + micros);
            assert_eq!(state.reach(Point::Sent, at(1)), None, "nothing is on its way");
            assert_eq!(state.reach(Point::Received, at(100)), None);
            assert_eq!(state.reach(Point::Parsed, at(107)), None);
            assert_eq!(state.reach(Point::Encoded, at(200 + message / 2)), None);
            line = state.reach(Point::Sent, at(201 + message / 2));
        }
        let words = "received after 650.0 us, parsed after 7.0 us, encoded after 343.0 us, sent after 1.0 us";
        assert_eq!(line.as_deref(), Some(words));
    }

    #[test]
    fn what_is_no_computation_is_not_measured() {
        let (mut state, now) = (State::default(), Duration::from_secs(1));
        state.reach(Point::Received, now);
        state.reach(Point::Sent, now);
        state.reach(Point::Received, now);
        assert!(state.parts.iter().all(Vec::is_empty));
    }
}
