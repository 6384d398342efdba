//! How attempts and jobs end: timeouts, failures, disconnects, wrong answers, and results.

use std::time::Duration;

use moex_protocol::{AttemptId, WorkerId};
use tracing::info;

use super::attempts::Kind;
use super::error::JobError;
use super::job::Job;
use super::{Dispatcher, Order};
use crate::fleet::Fleet;
use crate::trace::Outcome;
use crate::{ConnectionId, JobId};

impl Dispatcher {
    /// Marks attempts past their deadline: their items are requested from others, and their answers are still used.
    pub(super) fn expire_attempts(&mut self, now: Duration) {
        for id in self.attempts.expire(now) {
            let Some(attempt) = self.attempts.get(id) else { continue };
            let (job, from) = (attempt.job, attempt.worker);
            // Nothing waits for a probe: it has a separate deadline.
            if attempt.kind == Kind::Probe {
                continue;
            }
            self.counts.timeouts += 1;
            self.to_cover.insert(job);
            if let Some(worker) = self.workers.get_mut(from) {
                worker.counts.timeouts += 1;
                worker.health.late();
                info!(
                    worker = worker.id().short(),
                    attempt = id.0,
                    "not answered in time: asking another worker"
                );
                self.failure(now, from);
            }
            self.cover_waiting();
        }
    }

    /// Counts probes that were not answered in time: each is a failure of its worker.
    pub(super) fn expire_probes(&mut self, now: Duration) {
        while let Some(id) = self.workers.next_overdue_probe(now) {
            self.counts.timeouts += 1;
            if let Some(worker) = self.workers.get_mut(id) {
                worker.counts.timeouts += 1;
            }
            self.failure(now, id);
        }
    }

    /// Fails the jobs that have waited too long for a holder.
    pub(crate) fn expire_jobs(&mut self, now: Duration, fleet: &Fleet) {
        let wait = self.config.coverage_wait;
        let chooser = self.chooser(fleet);
        let expired: Vec<(JobId, JobError)> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.uncovered_since.is_some_and(|since| since + wait <= now))
            .filter_map(|(id, job)| {
                let is_open = |item: &usize| !job.items[*item].is_settled;
                let is_orphan = |item: &usize| is_open(item) && !chooser.is_askable(job, *item);
                // A block held by a worker that hangs on it counts as uncovered too; then any open item is named.
                let items = || 0..job.items.len();
                let item = items().find(is_orphan).or_else(|| items().find(is_open))?;
                Some((*id, JobError::Uncovered { block: job.block(item), waited: wait }))
            })
            .collect();
        for (id, error) in expired {
            self.finish(id, now, Err(error));
        }
    }

    /// Ends an attempt without an answer; its items are requested from others. If `is_blamed`, the worker is asked for
    /// them again only if the hub does not compute.
    pub(super) fn attempt_failed(&mut self, now: Duration, id: AttemptId, is_blamed: bool) {
        let Some(attempt) = self.attempts.remove(id) else { return };
        self.workers.end_probe(attempt.worker, |probe| probe == id);
        self.record(|recorder| recorder.ended(now, attempt.job, id, Outcome::Failed));
        if let Some(job) = self.jobs.get_mut(&attempt.job) {
            if is_blamed {
                for item in &attempt.items {
                    job.items[*item].failures.push(attempt.worker);
                }
            }
            self.to_cover.insert(attempt.job);
        }
        self.cover_waiting();
    }

    /// Ends all attempts of a worker that has left or is leaving; their items are requested from others.
    pub(crate) fn reassign(&mut self, now: Duration, worker: ConnectionId) {
        self.workers.end_probe(worker, |_| true);
        let ids: Vec<_> =
            self.attempts.iter().filter(|(_, attempt)| attempt.worker == worker).map(|(id, _)| id).collect();
        for id in ids {
            self.orders.push_back(Order::Cancel { at: worker, attempt: id });
            self.attempt_failed(now, id, false);
        }
    }

    /// A worker failed or answered wrong.
    pub(crate) fn worker_failed(&mut self, now: Duration, from: ConnectionId) {
        self.counts.errors += 1;
        if let Some(worker) = self.workers.get_mut(from) {
            worker.counts.errors += 1;
        }
        self.failure(now, from);
    }

    fn failure(&mut self, now: Duration, from: ConnectionId) {
        self.counts.unhealthy += u64::from(self.workers.failed(now, from));
    }

    /// Discards a worker's results for a job in flight, because its answer was wrong.
    pub(crate) fn retract(&mut self, worker: WorkerId, connection: Option<ConnectionId>, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        for item in job.retract(worker) {
            job.items[item].failures.extend(connection);
        }
        self.to_cover.insert(id);
    }

    /// Discards a worker's results for every job in flight.
    pub(crate) fn retract_all(&mut self, worker: WorkerId, connection: Option<ConnectionId>) {
        let jobs: Vec<_> = self.jobs.keys().copied().collect();
        jobs.into_iter().for_each(|job| self.retract(worker, connection, job));
    }

    /// Finishes a settled job. Otherwise abandons its attempts that are not needed any more, and covers the rest.
    pub(crate) fn after_answer(&mut self, now: Duration, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        if job.is_settled() {
            return self.finish(id, now, Ok(()));
        }
        let settled = self.attempts_of(id, Job::are_settled);
        self.abandon(now, &settled);
        self.to_cover.insert(id);
        self.cover_waiting();
    }

    /// Finishes a job and abandons its attempts in flight.
    pub(super) fn finish(&mut self, id: JobId, now: Duration, result: Result<(), JobError>) {
        let out = self.attempts_of(id, |_, _| true);
        self.abandon(now, &out);
        let Some(job) = self.jobs.remove(&id) else { return };
        self.cover_waiting();
        if result.is_ok() {
            self.counts.layers += 1;
            self.layer_latency.record(now.saturating_sub(job.started));
        }
        self.record(|recorder| recorder.finished(now, id, result.is_ok()));
        self.late_answers.keep_finished(id, &job.layer, job.winners());
        self.orders.push_back(Order::Finish(id, result.map(|()| job.into_result())));
    }

    fn attempts_of(&self, id: JobId, is_one: impl Fn(&Job, &[usize]) -> bool) -> Vec<AttemptId> {
        let Some(job) = self.jobs.get(&id) else { return Vec::new() };
        self.attempts
            .iter()
            .filter(|(_, attempt)| attempt.job == id && is_one(job, &attempt.items))
            .map(|(attempt, _)| attempt)
            .collect()
    }

    /// Abandons attempts. If an answer still comes, it is compared with the one that was used.
    fn abandon(&mut self, now: Duration, attempts: &[AttemptId]) {
        let flops_per_pair = self.config.flops_per_pair();
        for id in attempts {
            let Some(attempt) = self.attempts.remove(*id) else { continue };
            let outcome = if attempt.is_overdue { Outcome::TimedOut } else { Outcome::GivenUp };
            self.record(|recorder| recorder.ended(now, attempt.job, *id, outcome));
            let n_pairs = self.jobs.get(&attempt.job).map_or(0, |job| job.layer.n_pairs(&attempt.items));
            // Probes stay in flight, since they measure their worker.
            if attempt.kind != Kind::Probe {
                self.orders.push_back(Order::Cancel { at: attempt.worker, attempt: *id });
            }
            let Some(worker) = self.workers.get_mut(attempt.worker) else { continue };
            // Records its time so far, or a worker that always loses would look as fast as it once was. Overdue ones
            // were counted as timeouts.
            let so_far = now.saturating_sub(attempt.sent);
            let is_timed = !attempt.is_overdue
                && attempt.kind != Kind::Probe
                && so_far > worker.expected(n_pairs, n_pairs as f64 * flops_per_pair);
            if is_timed {
                worker.took(n_pairs, so_far);
            }
            self.late_answers.abandon(*id, attempt, n_pairs, is_timed);
        }
    }

    /// Recomputes a worker's tier.
    pub(super) fn classify(&mut self, id: ConnectionId) {
        let hub = self.config.hub_compute.then_some(self.hub.latencies());
        let Some(worker) = self.workers.get_mut(id) else { return };
        if worker.classify(hub) {
            let reason = worker.tier_reason().unwrap_or_default();
            info!(worker = worker.id().short(), tier = ?worker.tier(), reason, "the worker's tier changed");
        }
    }
}
