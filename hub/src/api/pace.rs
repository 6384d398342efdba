//! Limits the rate at which all large bodies together are read. Reading megabytes takes processor time from the engine, and a
//! client that is not read waits: TCP slows it down.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Bytes a second.
const RATE: f64 = 16e6;
/// What a hub that has read none for a while reads at once: one body of the largest size.
const BURST: Duration = Duration::from_millis(270);

/// The pace of all bodies.
pub(super) struct Pace {
    /// The time at which all that was read so far would have been read at [`RATE`].
    due: Mutex<Instant>,
}

impl Default for Pace {
    fn default() -> Self {
        let now = Instant::now();
        Self { due: Mutex::new(now.checked_sub(BURST).unwrap_or(now)) }
    }
}

impl Pace {
    /// So many bytes were read: waits until more may be.
    pub(super) async fn has_read(&self, n_bytes: usize) {
        sleep_until(self.due(n_bytes, Instant::now())).await;
    }

    fn due(&self, n_bytes: usize, now: Instant) -> Instant {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = now.checked_sub(BURST).unwrap_or(now);
        *due = (*due).max(idle) + Duration::from_secs_f64(n_bytes as f64 / RATE);
        *due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::MAX_BODY_BYTES;

    #[test]
    fn one_body_is_read_at_once_and_many_at_the_pace() {
        let pace = Pace::default();
        let now = Instant::now() + 2 * BURST;
        assert!(pace.due(MAX_BODY_BYTES, now) <= now);
        let seconds = MAX_BODY_BYTES as f64 / RATE;
        let mut due = now;
        for _ in 0..10 {
            due = pace.due(MAX_BODY_BYTES, now);
        }
        let waits = (due - now).as_secs_f64() / seconds;
        assert!((9.9..10.0).contains(&waits), "{waits} bodies");
        // What was saved up is one body's time, however long nothing came.
        let later = due + 1000 * BURST;
        assert!(pace.due(MAX_BODY_BYTES, later) <= later);
        assert!(pace.due(MAX_BODY_BYTES, later) > later);
    }
}
