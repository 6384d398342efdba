//! Remembers abandoned attempts and their jobs, so that a late answer still measures its worker's speed and is compared
//! with the answer that was used. Bounded by number and by bytes.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use moex_protocol::AttemptId;

use super::attempts::{Attempt, Kind};
use super::job::Winner;
use super::layer::EncodedLayer;
use crate::{ConnectionId, JobId};

/// Attempts remembered; the oldest are forgotten first.
const MAX_ABANDONED: usize = 1024;
/// Finished jobs whose answers are kept for comparison; the oldest are forgotten first.
const MAX_FINISHED: usize = 64;
const MAX_FINISHED_BYTES: usize = 16 << 20;

/// An abandoned attempt.
#[derive(Debug)]
pub(super) struct AbandonedAttempt {
    pub job: JobId,
    pub worker: ConnectionId,
    pub items: Vec<usize>,
    pub n_pairs: usize,
    pub kind: Kind,
    pub sent: Duration,
    /// Whether its latency was recorded when it was abandoned.
    pub is_timed: bool,
}

/// A finished job.
#[derive(Debug)]
pub(super) struct FinishedJob {
    pub job: JobId,
    pub layer: Arc<EncodedLayer>,
    pub winners: Vec<Winner>,
    n_bytes: usize,
}

/// See the [module's description](self).
#[derive(Debug, Default)]
pub(super) struct LateAnswers {
    /// Keyed by age, since ids wrap.
    abandoned: BTreeMap<u64, (AttemptId, AbandonedAttempt)>,
    /// The age of each attempt in `abandoned`.
    ages: HashMap<AttemptId, u64>,
    /// Attempts ever abandoned.
    n_abandoned: u64,
    /// How many of these a job has.
    by_job: HashMap<JobId, usize>,
    finished: VecDeque<FinishedJob>,
    n_bytes: usize,
}

impl LateAnswers {
    /// Remembers an abandoned attempt. `is_timed`: its latency so far has been recorded.
    pub(super) fn abandon(&mut self, id: AttemptId, attempt: Attempt, n_pairs: usize, is_timed: bool) {
        // An attempt with the same id would be four billion attempts old.
        self.remove(id);
        if self.abandoned.len() >= MAX_ABANDONED
            && let Some(oldest) = self.abandoned.first_key_value().map(|(_, (oldest, _))| *oldest)
        {
            self.remove(oldest);
        }
        let Attempt { job, worker, items, kind, sent, .. } = attempt;
        let abandoned = AbandonedAttempt { job, worker, items, n_pairs, kind, sent, is_timed };
        self.n_abandoned += 1;
        self.abandoned.insert(self.n_abandoned, (id, abandoned));
        self.ages.insert(id, self.n_abandoned);
        *self.by_job.entry(job).or_default() += 1;
    }

    /// A new attempt takes this id: forgets the old one.
    pub(super) fn reuse(&mut self, id: AttemptId) {
        self.remove(id);
    }

    /// Keeps the answers that a finished job used, if another answer may still come.
    pub(super) fn keep_finished(&mut self, job: JobId, layer: &Arc<EncodedLayer>, winners: &[Winner]) {
        if !self.by_job.contains_key(&job) {
            return;
        }
        let detached = |winner: &Winner| Winner { source: winner.source, part: winner.part.detached() };
        let (layer, winners) = (layer.clone(), winners.iter().map(detached).collect::<Vec<_>>());
        let n_bytes = winners.iter().map(|winner| winner.part.n_bytes()).sum();
        self.finished.push_back(FinishedJob { job, layer, winners, n_bytes });
        self.n_bytes += n_bytes;
        while self.finished.len() > MAX_FINISHED || self.n_bytes > MAX_FINISHED_BYTES {
            let Some(oldest) = self.finished.pop_front() else { break };
            self.n_bytes -= oldest.n_bytes;
        }
    }

    /// Takes what is known of an attempt that is answered late; each is taken once.
    pub(super) fn take(&mut self, id: AttemptId, worker: ConnectionId) -> Option<AbandonedAttempt> {
        let (_, abandoned) = self.abandoned.get(self.ages.get(&id)?)?;
        if abandoned.worker != worker { None } else { self.remove(id) }
    }

    fn remove(&mut self, id: AttemptId) -> Option<AbandonedAttempt> {
        let (_, abandoned) = self.abandoned.remove(&self.ages.remove(&id)?)?;
        self.uncount(abandoned.job);
        Some(abandoned)
    }

    /// A finished job with kept answers.
    pub(super) fn finished(&self, job: JobId) -> Option<&FinishedJob> {
        self.finished.iter().rev().find(|finished| finished.job == job)
    }

    /// A worker has left: no more answers of it will come.
    pub(super) fn forget(&mut self, worker: ConnectionId) {
        let its = self.abandoned.values().filter(|(_, abandoned)| abandoned.worker == worker);
        for id in its.map(|(id, _)| *id).collect::<Vec<AttemptId>>() {
            self.remove(id);
        }
        let Self { by_job, finished, n_bytes, .. } = self;
        finished.retain(|job| by_job.contains_key(&job.job));
        *n_bytes = finished.iter().map(|job| job.n_bytes).sum();
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
            items: vec![0],
            copies: Vec::new(),
            kind: Kind::Ask,
            reply: moex_protocol::Reply::Rows,
            is_retry: false,
            sent: Duration::ZERO,
            hedge_at: None,
            deadline: Duration::ZERO,
            is_overdue: false,
        }
    }

    #[test]
    fn an_attempt_is_taken_once_by_its_own_worker() {
        let mut late = LateAnswers::default();
        late.abandon(AttemptId(1), attempt(5, 9), 2, false);
        assert!(late.take(AttemptId(1), ConnectionId(6)).is_none());
        assert_eq!(late.take(AttemptId(1), ConnectionId(5)).unwrap().job, JobId(9));
        assert!(late.take(AttemptId(1), ConnectionId(5)).is_none());
    }

    #[test]
    fn the_oldest_are_forgotten_first_across_the_wrap_of_ids() {
        let mut late = LateAnswers::default();
        let start = u32::MAX - MAX_ABANDONED as u32 / 2;
        let id = |n: u32| AttemptId(start.wrapping_add(n));
        for n in 0..MAX_ABANDONED as u32 + 10 {
            late.abandon(id(n), attempt(5, u64::from(n)), 2, false);
        }
        assert!(late.take(id(9), ConnectionId(5)).is_none(), "one of the ten oldest");
        assert_eq!(late.take(id(10), ConnectionId(5)).unwrap().job, JobId(10));
        assert_eq!(
            late.take(id(MAX_ABANDONED as u32 + 9), ConnectionId(5)).unwrap().job.0,
            MAX_ABANDONED as u64 + 9
        );
    }

    #[test]
    fn an_id_that_is_used_again_is_the_new_attempts() {
        let mut late = LateAnswers::default();
        late.abandon(AttemptId(7), attempt(5, 1), 2, false);
        late.reuse(AttemptId(7));
        assert!(late.take(AttemptId(7), ConnectionId(5)).is_none() && late.by_job.is_empty());
        late.abandon(AttemptId(7), attempt(5, 1), 2, false);
        late.abandon(AttemptId(7), attempt(5, 2), 2, false);
        assert_eq!(late.take(AttemptId(7), ConnectionId(5)).unwrap().job, JobId(2));
        assert!(late.by_job.is_empty() && late.abandoned.is_empty() && late.ages.is_empty());
    }

    #[test]
    fn what_is_remembered_is_bounded_and_goes_with_its_worker() {
        let mut late = LateAnswers::default();
        for id in 0..2 * MAX_ABANDONED as u32 {
            late.abandon(AttemptId(id), attempt(u64::from(id % 2), 9), 2, false);
        }
        assert_eq!((late.abandoned.len(), late.by_job[&JobId(9)]), (MAX_ABANDONED, MAX_ABANDONED));
        late.forget(ConnectionId(0));
        assert_eq!((late.abandoned.len(), late.by_job[&JobId(9)]), (MAX_ABANDONED / 2, MAX_ABANDONED / 2));
        late.forget(ConnectionId(1));
        assert!(late.abandoned.is_empty() && late.by_job.is_empty());
    }
}
