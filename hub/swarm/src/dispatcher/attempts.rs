//! The attempt table: which messages are in flight, to which worker, for which work items of which job, and until when.
//!
//! ```text
//!           deadline                    answered, failed, cancelled, socket closed
//! InTime ------------> Overdue -----------------------------------------------------> (removed)
//!    \___________________________________________________________________________________^
//! ```
//! Items of an overdue attempt are requested from other workers, but its answer is still used if it comes first. Before
//! that, once, an attempt may become due for a hedge: a second copy to another worker, while the first is still in
//! time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use moex_protocol::{AttemptId, Reply};

use crate::{ConnectionId, JobId};

/// One message to one worker.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub job: JobId,
    pub worker: ConnectionId,
    /// Indices of the job's work items, ascending, in the order of the message.
    pub items: Vec<usize>,
    /// Those of the items that another worker was asked for already.
    pub copies: Vec<usize>,
    pub kind: Kind,
    /// What the worker is to answer with.
    pub reply: Reply,
    /// Whether it repeats a request of an earlier attempt.
    pub is_retry: bool,
    pub sent: Duration,
    /// When to send a second copy, if at all.
    pub hedge_at: Option<Duration>,
    pub deadline: Duration,
    pub is_overdue: bool,
}

/// The purpose of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// To get an answer; copies are to get it sooner.
    Ask,
    /// A second copy, because the first one is late.
    Hedge,
    /// To measure how fast a worker is now; its answer is used if it comes first, but no layer waits for it.
    Probe,
}

/// All attempts that may still be answered. Bounded by jobs in flight times workers per job.
#[derive(Debug, Default)]
pub(crate) struct AttemptTable {
    attempts: BTreeMap<AttemptId, Attempt>,
    /// Deadlines of the attempts in time.
    deadlines: BTreeSet<(Duration, AttemptId)>,
    hedges: BTreeSet<(Duration, AttemptId)>,
    last: AttemptId,
}

impl AttemptTable {
    /// An empty table whose last id was this one.
    #[cfg(test)]
    pub(crate) fn after(last: AttemptId) -> Self {
        Self { last, ..Self::default() }
    }

    /// Inserts an attempt with a new id, which counts up and wraps.
    pub(crate) fn insert(&mut self, attempt: Attempt) -> AttemptId {
        loop {
            self.last = self.last.next();
            if !self.attempts.contains_key(&self.last) {
                break;
            }
        }
        self.deadlines.insert((attempt.deadline, self.last));
        self.hedges.extend(attempt.hedge_at.map(|at| (at, self.last)));
        self.attempts.insert(self.last, attempt);
        self.last
    }

    /// Removes an attempt.
    pub(crate) fn remove(&mut self, id: AttemptId) -> Option<Attempt> {
        let attempt = self.attempts.remove(&id)?;
        self.deadlines.remove(&(attempt.deadline, id));
        if let Some(at) = attempt.hedge_at {
            self.hedges.remove(&(at, id));
        }
        Some(attempt)
    }

    /// Returns the attempts whose second copy is due now, each once.
    pub(crate) fn due_for_hedge(&mut self, now: Duration) -> Vec<AttemptId> {
        let later = self.hedges.split_off(&(now + Duration::from_nanos(1), AttemptId(0)));
        std::mem::replace(&mut self.hedges, later).into_iter().map(|(_, id)| id).collect()
    }

    /// Marks attempts past their deadline as overdue and returns their ids.
    pub(crate) fn expire(&mut self, now: Duration) -> Vec<AttemptId> {
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

    /// When the next attempt becomes overdue, or due for a hedge.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let first = |times: &BTreeSet<(Duration, AttemptId)>| times.first().map(|(time, _)| *time);
        first(&self.deadlines).into_iter().chain(first(&self.hedges)).min()
    }

    /// Returns an attempt in flight.
    pub(crate) fn get(&self, id: AttemptId) -> Option<&Attempt> {
        self.attempts.get(&id)
    }

    /// All attempts in flight.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (AttemptId, &Attempt)> {
        self.attempts.iter().map(|(id, attempt)| (*id, attempt))
    }

    /// By worker: attempts in time, which occupy its input slots as far as the hub knows, and all attempts in flight.
    pub(crate) fn load(&self) -> HashMap<ConnectionId, Load> {
        let mut loads: HashMap<ConnectionId, Load> = HashMap::new();
        for attempt in self.attempts.values() {
            let load = loads.entry(attempt.worker).or_default();
            load.n_out += 1;
            load.n_in_time += usize::from(!attempt.is_overdue);
        }
        loads
    }
}

/// Attempts in flight at one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub n_in_time: usize,
    pub n_out: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(deadline_millis: u64) -> Attempt {
        let deadline = Duration::from_millis(deadline_millis);
        let (job, worker) = (JobId(1), ConnectionId(1));
        Attempt {
            job,
            worker,
            items: vec![0],
            copies: Vec::new(),
            kind: Kind::Ask,
            reply: Reply::Rows,
            is_retry: false,
            sent: Duration::ZERO,
            hedge_at: None,
            deadline,
            is_overdue: false,
        }
    }

    #[test]
    fn an_attempt_expires_once_and_stays_answerable() {
        let mut table = AttemptTable::default();
        let (late, early) = (table.insert(attempt(20)), table.insert(attempt(10)));
        assert_eq!(table.next_deadline(), Some(Duration::from_millis(10)));
        assert_eq!(table.expire(Duration::from_millis(9)), []);
        assert_eq!(table.expire(Duration::from_millis(10)), [early]);
        assert_eq!(table.expire(Duration::from_millis(10)), []);
        assert_eq!(table.load()[&ConnectionId(1)], Load { n_in_time: 1, n_out: 2 });
        assert!(table.remove(early).unwrap().is_overdue);
        assert_eq!(table.next_deadline(), Some(Duration::from_millis(20)));
        table.remove(late).unwrap();
        assert_eq!((table.next_deadline(), table.iter().count()), (None, 0));
    }

    #[test]
    fn an_attempt_is_due_for_a_hedge_once_and_not_after_its_end() {
        let mut table = AttemptTable::default();
        let hedge_at = Some(Duration::from_millis(5));
        let first = table.insert(Attempt { hedge_at, ..attempt(20) });
        let second = table.insert(Attempt { hedge_at, ..attempt(20) });
        table.remove(second).unwrap();
        assert_eq!(table.next_deadline(), hedge_at);
        assert_eq!(table.due_for_hedge(Duration::from_millis(4)), []);
        assert_eq!(table.due_for_hedge(Duration::from_millis(5)), [first]);
        assert_eq!(table.due_for_hedge(Duration::from_millis(6)), []);
        assert_eq!(table.next_deadline(), Some(Duration::from_millis(20)));
    }

    #[test]
    fn ids_wrap_past_those_still_out() {
        let mut table = AttemptTable { last: AttemptId(u32::MAX - 1), ..AttemptTable::default() };
        assert_eq!(table.insert(attempt(1)), AttemptId(u32::MAX));
        table.last = AttemptId(u32::MAX - 1);
        assert_eq!(table.insert(attempt(1)), AttemptId(0));
    }
}
