//! The wait before another try.

use std::time::Duration;

/// Doubles from `first` up to `cap`; starts over after a success.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    cap: Duration,
    next: Duration,
}

impl Backoff {
    /// Starts with the wait `first`, and never waits longer than `cap`.
    pub fn new(first: Duration, cap: Duration) -> Self {
        Self { first, cap, next: first }
    }

    /// The wait before the next try; the one after it will be twice as long.
    pub fn delay(&mut self) -> Duration {
        let delay = self.next;
        self.next = delay.saturating_mul(2).min(self.cap);
        delay
    }

    /// After a success, the next wait is the first again.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_to_the_cap_and_starts_over() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
        let waits: Vec<_> = (0..5).map(|_| backoff.delay().as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 5, 5]);
        backoff.reset();
        assert_eq!(backoff.delay().as_secs(), 1);
    }
}
