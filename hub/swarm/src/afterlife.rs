//! What is remembered of attempts that nobody waits for any more, so that an answer that comes all the same still says how
//! fast its worker is, and whether it agrees with the answer that won. Bounded by number and by bytes.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use moex_protocol::AttemptId;

use super::attempts::{Attempt, Kind};
use super::job::Winner;
use super::plan::WireJob;
use super::{ConnectionId, JobId};

/// Attempts remembered; the oldest are forgotten first.
const MAX_LOST: usize = 1024;
/// Jobs that are over whose answers are kept for comparison, and their bytes; the oldest are forgotten first.
const MAX_OVER: usize = 64;
const MAX_OVER_BYTES: usize = 16 << 20;

/// An attempt that was given up.
#[derive(Debug)]
pub(super) struct Lost {
    pub job: JobId,
    pub worker: ConnectionId,
    pub cells: Vec<usize>,
    pub n_pairs: usize,
    pub kind: Kind,
    pub sent: Duration,
    /// Whether its latency was recorded when it was given up.
    pub is_timed: bool,
}

/// A job that is over.
#[derive(Debug)]
pub(super) struct Over {
    pub job: JobId,
    pub wire: WireJob,
    pub winners: Vec<Winner>,
    n_bytes: usize,
}

#[derive(Debug, Default)]
pub(super) struct Afterlife {
    /// By age, which ids do not tell: they wrap.
    lost: BTreeMap<u64, (AttemptId, Lost)>,
    /// The age of each attempt in `lost`.
    ages: HashMap<AttemptId, u64>,
    /// Attempts ever lost.
    n_lost: u64,
    /// How many of these a job has.
    by_job: HashMap<JobId, usize>,
    over: VecDeque<Over>,
    n_bytes: usize,
}

impl Afterlife {
    /// Remembers an attempt that was given up. `is_timed`: its latency so far has been recorded.
    pub(super) fn lose(&mut self, id: AttemptId, attempt: Attempt, n_pairs: usize, is_timed: bool) {
        // An attempt of the same id is four billion attempts old.
        self.remove(id);
        if self.lost.len() >= MAX_LOST
            && let Some(oldest) = self.lost.first_key_value().map(|(_, (oldest, _))| *oldest)
        {
            self.remove(oldest);
        }
        let Attempt { job, worker, cells, kind, sent, .. } = attempt;
        let lost = Lost { job, worker, cells, n_pairs, kind, sent, is_timed };
        self.n_lost += 1;
        self.lost.insert(self.n_lost, (id, lost));
        self.ages.insert(id, self.n_lost);
        *self.by_job.entry(job).or_default() += 1;
    }

    /// A new attempt is given this id: what is remembered under it is another's.
    pub(super) fn reuse(&mut self, id: AttemptId) {
        self.remove(id);
    }

    /// Keeps what won a job that is over, if an answer to it may still come.
    pub(super) fn bury(&mut self, job: JobId, wire: WireJob, winners: Vec<Winner>) {
        if !self.by_job.contains_key(&job) {
            return;
        }
        let detached = |Winner { source, part }| Winner { source, part: part.detached() };
        let winners: Vec<Winner> = winners.into_iter().map(detached).collect();
        let n_bytes = winners.iter().map(|winner| winner.part.n_bytes()).sum();
        self.over.push_back(Over { job, wire, winners, n_bytes });
        self.n_bytes += n_bytes;
        while self.over.len() > MAX_OVER || self.n_bytes > MAX_OVER_BYTES {
            let Some(oldest) = self.over.pop_front() else { break };
            self.n_bytes -= oldest.n_bytes;
        }
    }

    /// What is known of an attempt that is answered after all; each is taken once.
    pub(super) fn take(&mut self, id: AttemptId, worker: ConnectionId) -> Option<Lost> {
        let (_, lost) = self.lost.get(self.ages.get(&id)?)?;
        if lost.worker != worker { None } else { self.remove(id) }
    }

    fn remove(&mut self, id: AttemptId) -> Option<Lost> {
        let (_, lost) = self.lost.remove(&self.ages.remove(&id)?)?;
        self.uncount(lost.job);
        Some(lost)
    }

    /// What won a job that is over.
    pub(super) fn over(&self, job: JobId) -> Option<&Over> {
        self.over.iter().rev().find(|over| over.job == job)
    }

    /// A worker is gone: no answer of it will come.
    pub(super) fn forget(&mut self, worker: ConnectionId) {
        let its = self.lost.values().filter(|(_, lost)| lost.worker == worker);
        for id in its.map(|(id, _)| *id).collect::<Vec<AttemptId>>() {
            self.remove(id);
        }
        let Self { by_job, over, n_bytes, .. } = self;
        over.retain(|over| by_job.contains_key(&over.job));
        *n_bytes = over.iter().map(|over| over.n_bytes).sum();
    }

    fn uncount(&mut self, job: JobId) {
        if let Some(n) = self.by_job.get_mut(&job) {
            *n -= 1;
            if *n == 0 {
                self.by_job.remove(&job);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(worker: u64, job: u64) -> Attempt {
        Attempt {
            job: JobId(job),
            worker: ConnectionId(worker),
            cells: vec![0],
            copies: Vec::new(),
            kind: Kind::Ask,
            sent: Duration::ZERO,
            hedge_at: None,
            deadline: Duration::ZERO,
            is_overdue: false,
        }
    }

    #[test]
    fn an_attempt_is_taken_once_by_its_own_worker() {
        let mut after = Afterlife::default();
        after.lose(AttemptId(1), attempt(5, 9), 2, false);
        assert!(after.take(AttemptId(1), ConnectionId(6)).is_none());
        assert_eq!(after.take(AttemptId(1), ConnectionId(5)).unwrap().job, JobId(9));
        assert!(after.take(AttemptId(1), ConnectionId(5)).is_none());
    }

    #[test]
    fn the_oldest_are_forgotten_first_across_the_wrap_of_ids() {
        let mut after = Afterlife::default();
        let start = u32::MAX - MAX_LOST as u32 / 2;
        let id = |n: u32| AttemptId(start.wrapping_add(n));
        for n in 0..MAX_LOST as u32 + 10 {
            after.lose(id(n), attempt(5, u64::from(n)), 2, false);
        }
        assert!(after.take(id(9), ConnectionId(5)).is_none(), "one of the ten oldest");
        assert_eq!(after.take(id(10), ConnectionId(5)).unwrap().job, JobId(10));
        assert_eq!(after.take(id(MAX_LOST as u32 + 9), ConnectionId(5)).unwrap().job.0, MAX_LOST as u64 + 9);
    }

    #[test]
    fn an_id_that_is_used_again_is_the_new_attempts() {
        let mut after = Afterlife::default();
        after.lose(AttemptId(7), attempt(5, 1), 2, false);
        after.reuse(AttemptId(7));
        assert!(after.take(AttemptId(7), ConnectionId(5)).is_none() && after.by_job.is_empty());
        after.lose(AttemptId(7), attempt(5, 1), 2, false);
        after.lose(AttemptId(7), attempt(5, 2), 2, false);
        assert_eq!(after.take(AttemptId(7), ConnectionId(5)).unwrap().job, JobId(2));
        assert!(after.by_job.is_empty() && after.lost.is_empty() && after.ages.is_empty());
    }

    #[test]
    fn what_is_remembered_is_bounded_and_goes_with_its_worker() {
        let mut after = Afterlife::default();
        for id in 0..2 * MAX_LOST as u32 {
            after.lose(AttemptId(id), attempt(u64::from(id % 2), 9), 2, false);
        }
        assert_eq!((after.lost.len(), after.by_job[&JobId(9)]), (MAX_LOST, MAX_LOST));
        after.forget(ConnectionId(0));
        assert_eq!((after.lost.len(), after.by_job[&JobId(9)]), (MAX_LOST / 2, MAX_LOST / 2));
        after.forget(ConnectionId(1));
        assert!(after.lost.is_empty() && after.by_job.is_empty());
    }
}
