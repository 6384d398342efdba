//! Decides which failures are retried, and how often.

use std::time::Duration;

use super::error::PullError;

/// Longest pause that a hub may request.
const MAX_ASKED_PAUSE: Duration = Duration::from_secs(60);

/// Why something failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// It may succeed next time.
    Again {
        /// The reason, as a sentence without its end.
        why: String,
        /// The pause that the hub requests.
        after: Option<Duration>,
    },
    /// A retry would not help.
    Final(PullError),
}

impl Failure {
    pub(super) fn again(why: String) -> Self {
        Self::Again { why, after: None }
    }
}

impl From<PullError> for Failure {
    fn from(error: PullError) -> Self {
        Self::Final(error)
    }
}

/// Counts failures since the last success.
#[derive(Debug)]
pub(super) struct RetryBudget<'a> {
    pauses: &'a [Duration],
    n_failed: usize,
}

impl<'a> RetryBudget<'a> {
    /// Allows one attempt more than there are pauses.
    pub(super) fn new(pauses: &'a [Duration]) -> Self {
        Self { pauses, n_failed: 0 }
    }

    /// Forgets earlier failures after a success.
    pub(super) fn reset(&mut self) {
        self.n_failed = 0;
    }

    /// The pause before the next attempt; none if there is none.
    pub(super) fn next_pause(&mut self, asked: Option<Duration>) -> Option<Duration> {
        let pause = *self.pauses.get(self.n_failed)?;
        self.n_failed += 1;
        let pause = asked.map_or(pause, |asked| asked.max(pause));
        (pause <= MAX_ASKED_PAUSE).then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_end_unless_something_goes_well() {
        const S: Duration = Duration::from_secs(1);
        let mut tries = RetryBudget::new(&[S, S]);
        assert_eq!(tries.next_pause(None), Some(S));
        assert_eq!(tries.next_pause(Some(5 * S)), Some(5 * S));
        assert_eq!(tries.next_pause(None), None);
        tries.reset();
        assert_eq!(tries.next_pause(Some(Duration::ZERO)), Some(S));
        assert_eq!(tries.next_pause(Some(3600 * S)), None, "nobody waits an hour");
    }
}
