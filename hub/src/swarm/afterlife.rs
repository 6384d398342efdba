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
    /// By id, which is by age.
    lost: BTreeMap<AttemptId, Lost>,
    /// How many of these a job has.
    by_job: HashMap<JobId, usize>,
    over: VecDeque<Over>,
    n_bytes: usize,
}

impl Afterlife {
    /// Remembers an attempt that was given up. `is_timed`: its latency so far has been recorded.
    pub(super) fn lose(&mut self, id: AttemptId, attempt: Attempt, n_pairs: usize, is_timed: bool) {
        while self.lost.len() >= MAX_LOST {
            if let Some((_, oldest)) = self.lost.pop_first() {
                self.uncount(oldest.job);
            }
        }
        let Attempt { job, worker, cells, kind, sent, .. } = attempt;
        let lost = Lost { job, worker, cells, n_pairs, kind, sent, is_timed };
        if self.lost.insert(id, lost).is_none() {
            *self.by_job.entry(job).or_default() += 1;
        }
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
        self.lost.get(&id).filter(|lost| lost.worker == worker)?;
        let lost = self.lost.remove(&id)?;
        self.uncount(lost.job);
        Some(lost)
    }

    /// What won a job that is over.
    pub(super) fn over(&self, job: JobId) -> Option<&Over> {
        self.over.iter().rev().find(|over| over.job == job)
    }

    /// A worker is gone: no answer of it will come.
    pub(super) fn forget(&mut self, worker: ConnectionId) {
        let gone: Vec<AttemptId> =
            self.lost.iter().filter(|(_, lost)| lost.worker == worker).map(|(id, _)| *id).collect();
        for id in gone {
            self.take(id, worker);
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
