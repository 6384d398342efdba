//! Decides whether a worker gets work: failures in a row, and recovery.
//!
//! ```text
//!       failure x n in a row           heartbeat, and the back-off is over        valid answer to what it was asked since
//! Healthy ------------------> Out ----------------------------------------> tried --------------------------------> Healthy
//!    ^  any answer clears the failures                                        \--> failure: Out, for twice as long
//! ```
//! A worker that is *tried* gets probes that nothing waits for. A heartbeat alone does not restore a worker: one that
//! answers pings may still answer nothing else. A worker is also *late* while it owes an answer for longer than it
//! usually takes and has answered nothing since. A layer asks a late worker last, or each layer after a stall would
//! wait for it again; after a heartbeat it may be tried.

use std::time::Duration;

/// How long a worker that is out a second time in a row gets nothing; it doubles each time. The first time, its next
/// heartbeat suffices.
const FIRST_BACK_OFF: Duration = Duration::from_secs(2);
/// The longest such time.
const MAX_BACK_OFF: Duration = Duration::from_secs(60);
/// Answers in a row after which earlier outages are forgotten.
const FORGIVEN_AFTER: u32 = 100;

/// The health of one worker.
#[derive(Clone, Debug)]
pub(crate) struct Health {
    /// Failures in a row after which a worker is out.
    max_failures: u32,
    failures: u32,
    is_late: bool,
    /// Whether it answered a heartbeat since it became late or went out.
    is_alive: bool,
    out: Option<Out>,
    /// Times it went out, or failed when tried, with few answers between.
    n_outs: u32,
    /// Answers since then.
    n_answers: u32,
}

/// A worker that gets no work.
#[derive(Clone, Copy, Debug)]
struct Out {
    since: Duration,
    try_at: Duration,
}

impl Health {
    /// A healthy worker that goes out after `max_failures` in a row (at least one).
    pub(crate) fn new(max_failures: u32) -> Self {
        Self {
            max_failures: max_failures.max(1),
            failures: 0,
            is_late: false,
            is_alive: true,
            out: None,
            n_outs: 0,
            n_answers: 0,
        }
    }

    /// It has not answered within its usual time.
    pub(crate) fn late(&mut self) {
        if !std::mem::replace(&mut self.is_late, true) {
            self.is_alive = false;
        }
    }

    /// Whether it was late, and has answered nothing since.
    pub(crate) fn is_late(&self) -> bool {
        self.is_late
    }

    /// Records a timeout or an unusable answer. True if this took a healthy worker out.
    pub(crate) fn failed(&mut self, now: Duration) -> bool {
        self.failures = self.failures.saturating_add(1);
        self.n_answers = 0;
        let was_healthy = self.is_healthy();
        if self.failures >= self.max_failures || !was_healthy {
            let doublings = self.n_outs.saturating_sub(1).min(16);
            let back_off = FIRST_BACK_OFF.saturating_mul(1 << doublings).min(MAX_BACK_OFF);
            let back_off = if self.n_outs == 0 { Duration::ZERO } else { back_off };
            self.out = Some(Out { since: now, try_at: now + back_off });
            self.n_outs = self.n_outs.saturating_add(1);
            self.is_alive = false;
        }
        was_healthy && !self.is_healthy()
    }

    /// Records a valid answer to a request sent at `sent`. True if it restored the worker; a late answer to a request
    /// from before it went out does not.
    pub(crate) fn answered(&mut self, sent: Duration) -> bool {
        self.is_late = false;
        if self.out.is_some_and(|out| sent < out.since) {
            return false;
        }
        let was_out = self.out.take().is_some();
        self.failures = 0;
        self.n_answers = self.n_answers.saturating_add(1);
        if self.n_answers >= FORGIVEN_AFTER {
            self.n_outs = 0;
        }
        was_out
    }

    /// The worker answered a heartbeat.
    pub(crate) fn heartbeat(&mut self) {
        self.is_alive = true;
    }

    /// Whether the worker may get work.
    pub(crate) fn is_healthy(&self) -> bool {
        self.out.is_none()
    }

    /// Whether the worker is out but answers heartbeats, which is better than no worker.
    pub(crate) fn is_last_resort(&self) -> bool {
        !self.is_healthy() && self.is_alive
    }

    /// Whether the late or out worker should get a probe now.
    pub(crate) fn is_to_be_tried(&self, now: Duration) -> bool {
        let is_due = self.out.map_or(self.is_late, |out| out.try_at <= now);
        is_due && self.is_alive
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn three_in_a_row_and_an_answer_back() {
        let mut health = Health::new(3);
        assert!(!health.failed(at(1)) && !health.failed(at(1)));
        health.answered(at(1));
        assert!(!health.failed(at(1)) && !health.failed(at(1)) && health.failed(at(1)));
        assert!(!health.is_healthy() && !health.is_to_be_tried(at(1)) && !health.is_last_resort());
        assert!(!health.answered(at(0)) && !health.is_healthy(), "it was asked before it went out");
        health.heartbeat();
        assert!(!health.is_healthy(), "a heartbeat alone heals nothing");
        assert!(health.is_to_be_tried(at(1)) && health.is_last_resort());
        assert!(health.answered(at(1)) && health.is_healthy() && !health.is_to_be_tried(at(1)));
    }

    #[test]
    fn who_fails_when_tried_is_left_alone_for_longer_each_time() {
        let mut health = Health::new(1);
        let mut waits = Vec::new();
        let mut now = at(0);
        for _ in 0..8 {
            health.failed(now);
            health.heartbeat();
            let wait = (0..).find(|wait| health.is_to_be_tried(now + at(*wait))).unwrap();
            waits.push(wait);
            now += at(wait);
        }
        assert_eq!(waits, [0, 2, 4, 8, 16, 32, 60, 60]);
        health.answered(now);
        health.failed(now);
        health.heartbeat();
        assert!(!health.is_to_be_tried(now + at(59)), "one answer does not make up for it");
        for _ in 0..FORGIVEN_AFTER + 1 {
            health.answered(now);
        }
        health.failed(now);
        health.heartbeat();
        assert!(health.is_to_be_tried(now), "a hundred do");
    }

    #[test]
    fn late_until_it_answers() {
        let mut health = Health::new(3);
        health.late();
        assert!(health.is_late() && health.is_healthy() && !health.is_to_be_tried(at(1)));
        health.heartbeat();
        health.late();
        assert!(health.is_late() && health.is_to_be_tried(at(1)), "to be tried, not to be waited for");
        health.answered(at(1));
        assert!(!health.is_late() && !health.is_to_be_tried(at(1)));
    }

    #[test]
    fn a_heartbeat_does_not_clear_the_failures_of_a_healthy_worker() {
        let mut health = Health::new(3);
        health.failed(at(1));
        health.failed(at(1));
        health.heartbeat();
        assert!(health.failed(at(1)));
    }
}
