//! Limits the rate at which bytes of many peers together are read. A peer that is not read waits: TCP slows it down.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The pace of everybody who shares it.
#[derive(Debug)]
pub(crate) struct Pace {
    bytes_per_second: f64,
    /// What is read at once after a pause is read at the pace in this time.
    burst: Duration,
    /// The time at which all that was read so far would have been read at the pace.
    due: Mutex<Instant>,
}

impl Pace {
    /// So many bytes a second, and `burst_bytes` at once after a pause.
    pub(crate) fn new(bytes_per_second: f64, burst_bytes: usize) -> Self {
        let burst = Duration::from_secs_f64(burst_bytes as f64 / bytes_per_second);
        Self { bytes_per_second, burst, due: Mutex::new(idle_since(burst, Instant::now())) }
    }

    /// So many bytes were read: waits until more may be.
    pub(crate) async fn has_read(&self, n_bytes: usize) {
        sleep_until(self.due(n_bytes, Instant::now())).await;
    }

    /// So many bytes were read: the time from which more may be.
    pub(crate) fn due(&self, n_bytes: usize, now: Instant) -> Instant {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let took = Duration::from_secs_f64(n_bytes as f64 / self.bytes_per_second);
        *due = (*due).max(idle_since(self.burst, now)) + took;
        *due
    }
}

/// However long nothing was read, no more than a burst is saved up.
fn idle_since(burst: Duration, now: Instant) -> Instant {
    now.checked_sub(burst).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_read_at_once_and_more_at_the_pace() {
        const BURST: usize = 4 << 20;
        let pace = Pace::new(16e6, BURST);
        let now = Instant::now() + 2 * pace.burst;
        assert!(pace.due(BURST, now) <= now);
        let mut due = now;
        for _ in 0..10 {
            due = pace.due(BURST, now);
        }
        let waits = (due - now).as_secs_f64() / (BURST as f64 / 16e6);
        assert!((9.9..10.1).contains(&waits), "{waits} bursts");
        let later = due + 1000 * pace.burst;
        assert!(pace.due(BURST, later) <= later);
        assert!(pace.due(BURST, later) > later, "one burst is saved up, however long nothing came");
    }
}
