//! The attempt table: which message to which worker is out, for which cells of which job, and until when.
//!
//! ```text
//!           deadline                    answered, failed, cancelled, socket closed
//! InTime ------------> Overdue -----------------------------------------------------> (removed)
//!    \___________________________________________________________________________________^
//! ```
//! An overdue attempt's cells are asked of others, yet its answer is still taken if it comes first.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use moex_protocol::AttemptId;

use super::{ConnectionId, JobId};

/// One message to one worker.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub job: JobId,
    pub worker: ConnectionId,
    /// Indices of the job's calls, ascending, in the order of the message.
    pub cells: Vec<usize>,
    pub sent: Duration,
    pub deadline: Duration,
    pub is_overdue: bool,
}

/// All attempts that may still be answered. Bounded by jobs in flight times workers asked for each.
#[derive(Debug, Default)]
pub(super) struct AttemptTable {
    attempts: BTreeMap<AttemptId, Attempt>,
    /// Of those in time.
    deadlines: BTreeSet<(Duration, AttemptId)>,
    last: AttemptId,
}

impl AttemptTable {
    /// Enters an attempt under a fresh id: counting upwards, and around.
    pub(super) fn insert(&mut self, attempt: Attempt) -> AttemptId {
        loop {
            self.last = self.last.next();
            if !self.attempts.contains_key(&self.last) {
                break;
            }
        }
        self.deadlines.insert((attempt.deadline, self.last));
        self.attempts.insert(self.last, attempt);
        self.last
    }

    /// Takes an attempt out.
    pub(super) fn remove(&mut self, id: AttemptId) -> Option<Attempt> {
        let attempt = self.attempts.remove(&id)?;
        self.deadlines.remove(&(attempt.deadline, id));
        Some(attempt)
    }

    /// Marks the attempts whose deadline has come as overdue and gives their ids.
    pub(super) fn expire(&mut self, now: Duration) -> Vec<AttemptId> {
        let mut expired = Vec::new();
        while let Some((deadline, id)) = self.deadlines.first().copied()
            && deadline <= now
        {
            self.deadlines.pop_first();
            if let Some(attempt) = self.attempts.get_mut(&id) {
                attempt.is_overdue = true;
                expired.push(id);
            }
        }
        expired
    }

    /// When the next attempt becomes overdue.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// An attempt that is still out.
    pub(super) fn get(&self, id: AttemptId) -> Option<&Attempt> {
        self.attempts.get(&id)
    }

    /// All that are out.
    pub(super) fn iter(&self) -> impl Iterator<Item = (AttemptId, &Attempt)> {
        self.attempts.iter().map(|(id, attempt)| (*id, attempt))
    }

    /// Attempts of one worker that are in time: what occupies its input slots as far as the hub knows.
    pub(super) fn in_time(&self, worker: ConnectionId) -> usize {
        self.attempts.values().filter(|a| a.worker == worker && !a.is_overdue).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(deadline_millis: u64) -> Attempt {
        let deadline = Duration::from_millis(deadline_millis);
        let (job, worker) = (JobId(1), ConnectionId(1));
        Attempt { job, worker, cells: vec![0], sent: Duration::ZERO, deadline, is_overdue: false }
    }

    #[test]
    fn an_attempt_expires_once_and_stays_answerable() {
        let mut table = AttemptTable::default();
        let (late, early) = (table.insert(attempt(20)), table.insert(attempt(10)));
        assert_eq!(table.next_deadline(), Some(Duration::from_millis(10)));
        assert_eq!(table.expire(Duration::from_millis(9)), []);
        assert_eq!(table.expire(Duration::from_millis(10)), [early]);
        assert_eq!(table.expire(Duration::from_millis(10)), []);
        assert_eq!((table.in_time(ConnectionId(1)), table.iter().count()), (1, 2));
        assert!(table.remove(early).unwrap().is_overdue);
        assert_eq!(table.next_deadline(), Some(Duration::from_millis(20)));
        table.remove(late).unwrap();
        assert_eq!((table.next_deadline(), table.iter().count()), (None, 0));
    }

    #[test]
    fn ids_wrap_past_those_still_out() {
        let mut table = AttemptTable { last: AttemptId(u32::MAX - 1), ..AttemptTable::default() };
        assert_eq!(table.insert(attempt(1)), AttemptId(u32::MAX));
        table.last = AttemptId(u32::MAX - 1);
        assert_eq!(table.insert(attempt(1)), AttemptId(0));
    }
}
