//! What becomes of answers, failures and silence.
//!
//! ```text
//! answer --> of the shape asked for? --no--> the attempt failed: asked elsewhere, a strike
//!              |yes
//!              +--> not finite: asked elsewhere, and a wrong answer (`judging`)
//!              +--> first to a cell: it wins; whoever else is at it is told to forget it
//!              +--> not the first: compared with the one that won (`judging`)
//!              +--> every answer is to be checked: withheld until the hub has computed the same, and uses its own
//! ```

use std::time::Duration;

use moex_protocol::{Answer, AttemptId, ErrorCode, WireError, WorkerId};
use tracing::{info, warn};

use super::attempts::Kind;
use super::combine::Part;
use super::job::{Claim, HubWork, Source};
use super::judging::evidence;
use super::plan::WireJob;
use super::trace::Outcome;
use super::worker::Worker;
use super::{Action, ComputeId, ConnectionId, JobError, JobId, Swarm};
use moex_protocol::peer_text;

impl Swarm {
    /// The hub computed what [`Action::HubCompute`] asked for.
    pub fn hub_computed(&mut self, now: Duration, id: ComputeId, answer: Answer) {
        self.n_computing = self.n_computing.saturating_sub(1);
        if let Some(check) = self.checks.remove(&id) {
            self.checked(now, check, &answer);
        } else if let Some((job_id, work)) = self.take_hub_work(id) {
            self.hub_answered(now, job_id, work, &answer);
        }
        self.run(now);
    }

    /// The hub could not compute what [`Action::HubCompute`] asked for.
    pub fn hub_failed(&mut self, now: Duration, id: ComputeId, message: String) {
        self.n_computing = self.n_computing.saturating_sub(1);
        if self.checks.remove(&id).is_some() {
            warn!(message, "an answer could not be checked");
        } else if let Some((job_id, _)) = self.take_hub_work(id)
            && let Some(job) = self.jobs.get(&job_id)
        {
            let layer = job.wire.layer;
            self.finish(job_id, now, Err(JobError::Hub { layer, message }));
        }
        self.run(now);
    }

    fn take_hub_work(&mut self, id: ComputeId) -> Option<(JobId, HubWork)> {
        let (job_id, job) =
            self.jobs.iter_mut().find(|(_, job)| job.hub.as_ref().is_some_and(|work| work.id == id))?;
        Some((*job_id, job.hub.take()?))
    }

    fn hub_answered(&mut self, now: Duration, id: JobId, work: HubWork, answer: &Answer) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(parts) = job.wire.read(&work.cells, self.config.form, answer) else {
            let layer = job.wire.layer;
            return self.finish(id, now, Err(JobError::NotFinite { layer }));
        };
        self.hub_latencies.record(job.wire.n_pairs(&work.cells), now.saturating_sub(work.sent));
        self.tape(|tape| tape.hub_answered(now, id, work.id));
        self.weigh_winners(now, id, &parts);
        self.settle_withheld(now, id, &work.cells, &parts);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let settled = job.accept_own(parts);
        self.totals.hedge_wins += u64::from(work.is_hedge && !settled.is_empty());
        self.after_answer(now, id);
    }

    /// A worker answered an attempt.
    pub(super) fn answered(&mut self, now: Duration, from: ConnectionId, id: AttemptId, answer: &Answer) {
        let Some(attempt) = self.attempts.get(id).filter(|attempt| attempt.worker == from) else {
            return self.answered_late(now, from, id, answer);
        };
        let Some(job) = self.jobs.get(&attempt.job) else { return };
        let Some(parts) = job.wire.read(&attempt.cells, self.config.form, answer) else {
            warn!(connection = from.0, attempt = id.0, "an answer is not of the shape asked for");
            self.strike_for_error(now, from);
            return self.attempt_failed(now, id, true);
        };
        let n_pairs = job.wire.n_pairs(&attempt.cells);
        let Some(attempt) = self.attempts.remove(id) else { return };
        let latency = now.saturating_sub(attempt.sent);
        let Some(worker) = self.worker(from).map(Worker::id) else { return };
        self.timed(from, id, attempt.kind, n_pairs, latency);
        self.revived(from, attempt.sent);
        self.judge(from);
        if self.config.checks_everything() {
            self.tape(|tape| tape.answered(now, attempt.job, id, answer, 0));
            let Some(job) = self.jobs.get_mut(&attempt.job) else { return };
            job.withheld.push(Claim { worker, parts });
            self.to_cover.insert(attempt.job);
            return self.cover_waiting();
        }
        if self.is_to_be_checked() {
            self.check(now, attempt.job, attempt.cells, vec![Claim { worker, parts: parts.clone() }]);
        }
        let settled = self.take_parts(attempt.job, worker, parts);
        self.tape(|tape| tape.answered(now, attempt.job, id, answer, settled.len()));
        self.totals.hedge_wins += u64::from(attempt.copies.iter().any(|copy| settled.contains(copy)));
        self.after_answer(now, attempt.job);
    }

    /// A worker answered with values that are not finite: what honest workers cannot compute they say they cannot.
    pub(super) fn answered_not_finite(&mut self, now: Duration, from: ConnectionId, id: AttemptId) {
        let attempt = self.attempts.get(id).filter(|attempt| attempt.worker == from);
        let asked = attempt.map(|attempt| (attempt.job, attempt.cells.first().copied()));
        let asked = asked.or_else(|| {
            let lost = self.afterlife.take(id, from)?;
            Some((lost.job, lost.cells.first().copied()))
        });
        self.end_probe(from, |probe| probe == id);
        let evidence =
            asked.and_then(|(job, cell)| Some(evidence(self.wire_of(job)?, cell?, f64::MAX, None)));
        self.attempt_failed(now, id, true);
        match (self.worker(from).map(Worker::id), evidence) {
            (Some(worker), Some(evidence)) => self.offence(now, worker, evidence),
            _ => self.strike_for_error(now, from),
        }
    }

    /// What a job in flight, or just over, asked.
    pub(super) fn wire_of(&self, job: JobId) -> Option<&WireJob> {
        let in_flight = self.jobs.get(&job).map(|job| &job.wire);
        in_flight.or_else(|| self.afterlife.over(job).map(|over| &over.wire))
    }

    /// A worker answered an attempt that was given up.
    pub(super) fn answered_late(
        &mut self,
        now: Duration,
        from: ConnectionId,
        id: AttemptId,
        answer: &Answer,
    ) {
        let Some(lost) = self.afterlife.take(id, from) else {
            self.totals.late += 1;
            return;
        };
        self.tape(|tape| tape.late(now, id));
        self.totals.late += u64::from(lost.kind != Kind::Probe);
        let Some(worker) = self.worker(from).map(Worker::id) else { return };
        if !lost.is_timed {
            self.timed(from, id, lost.kind, lost.n_pairs, now.saturating_sub(lost.sent));
        }
        self.judge(from);
        let Some(wire) = self.wire_of(lost.job) else {
            // Too late to be compared with anything, yet it is an answer.
            return self.revived(from, lost.sent);
        };
        if let Some(parts) = wire.read(&lost.cells, self.config.form, answer) {
            self.confront(now, lost.job, worker, &parts);
            self.revived(from, lost.sent);
        } else if let Some(cell) = lost.cells.first().filter(|_| answer.has_non_finite()) {
            let evidence = evidence(wire, *cell, f64::MAX, None);
            self.offence(now, worker, evidence);
        }
    }

    /// An answer took this long.
    fn timed(&mut self, from: ConnectionId, id: AttemptId, kind: Kind, n_pairs: usize, latency: Duration) {
        self.end_probe(from, |probe| probe == id);
        self.worker_latencies.record(n_pairs, latency);
        let Some(worker) = self.connections.get_mut(&from).and_then(|c| c.worker.as_mut()) else { return };
        match kind {
            Kind::Probe => worker.probed(n_pairs, latency),
            Kind::Ask | Kind::Hedge => worker.took(n_pairs, latency),
        }
    }

    /// A worker gave a valid answer to what it was asked at `sent`.
    fn revived(&mut self, from: ConnectionId, sent: Duration) {
        let Some(worker) = self.connections.get_mut(&from).and_then(|c| c.worker.as_mut()) else { return };
        if worker.health.answered(sent) {
            info!(worker = worker.id().short(), "healthy again");
            self.cover_waiting();
        }
    }

    /// Takes what a worker says, and compares what was known before. The cells it settled.
    pub(super) fn take_parts(&mut self, id: JobId, worker: WorkerId, parts: Vec<Part>) -> Vec<usize> {
        let Some(job) = self.jobs.get_mut(&id) else { return Vec::new() };
        let worth = job.accept(Source::Worker(worker), parts);
        if !worth.settled.is_empty() {
            let n_pairs = job.wire.n_pairs(&worth.settled);
            self.credit(worker, n_pairs);
        }
        if !worth.redundant.is_empty() {
            self.to_confront.push((id, worker, worth.redundant));
        }
        worth.settled
    }

    /// Counts an answer that was used, or that the hub agrees with.
    pub(super) fn credit(&mut self, worker: WorkerId, n_pairs: usize) {
        let connection = self.by_id.get(&worker).and_then(|id| self.connections.get_mut(id));
        if let Some(worker) = connection.and_then(|c| c.worker.as_mut()) {
            worker.counts.answers += 1;
            worker.counts.rows += n_pairs as u64;
        }
        self.totals.answers += 1;
    }

    /// A worker said that it will not answer an attempt.
    pub(super) fn refused(&mut self, now: Duration, from: ConnectionId, id: AttemptId, error: &WireError) {
        let Some(attempt) = self.attempts.get(id).filter(|attempt| attempt.worker == from).cloned() else {
            self.totals.late += 1;
            self.end_probe(from, |probe| probe == id);
            if !matches!(error.code, ErrorCode::Preempted | ErrorCode::Draining | ErrorCode::NotResident) {
                self.strike_for_error(now, from);
            }
            return;
        };
        let said = peer_text(&error.message);
        info!(connection = from.0, attempt = id.0, code = ?error.code, message = %said, "an attempt failed");
        match error.code {
            // Told so by its own queue: no fault of the worker.
            ErrorCode::Preempted | ErrorCode::Draining => {
                self.totals.errors += 1;
            }
            // It does not say which block: what it still has it reports anew at once.
            ErrorCode::NotResident => {
                self.totals.errors += 1;
                let blocks: Vec<_> = self.jobs.get(&attempt.job).map_or(Vec::new(), |job| {
                    attempt.cells.iter().filter_map(|cell| self.catalog.index(job.block(*cell))).collect()
                });
                if let Some(worker) = self.connections.get_mut(&from).and_then(|c| c.worker.as_mut()) {
                    for block in blocks {
                        worker.shelf.forget(block, &mut self.holders);
                    }
                }
                self.to_sync.insert(from);
            }
            _ => self.strike_for_error(now, from),
        }
        self.attempt_failed(now, id, true);
    }

    /// Attempts whose time is up: their cells are asked of others, their answers still taken.
    pub(super) fn expire_attempts(&mut self, now: Duration) {
        for id in self.attempts.expire(now) {
            let Some(attempt) = self.attempts.get(id) else { continue };
            let (job, from) = (attempt.job, attempt.worker);
            // Nobody waits for a probe: it has a deadline of its own.
            if attempt.kind == Kind::Probe {
                continue;
            }
            self.totals.timeouts += 1;
            self.to_cover.insert(job);
            if let Some(worker) = self.connections.get_mut(&from).and_then(|c| c.worker.as_mut()) {
                worker.counts.timeouts += 1;
                worker.health.late();
                info!(worker = worker.id().short(), attempt = id.0, "not answered in time: asked of another");
                self.strike(now, from);
            }
            self.cover_waiting();
        }
    }

    /// Fails the jobs that have waited for a holder for as long as one may.
    pub(super) fn expire_jobs(&mut self, now: Duration) {
        let wait = self.config.coverage_wait;
        let expired: Vec<(JobId, JobError)> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.uncovered_since.is_some_and(|since| since + wait <= now))
            .filter_map(|(id, job)| {
                let orphan = |cell: &usize| !job.cells[*cell].is_settled && !self.is_askable(job, *cell);
                // A block held by a worker that hangs at it counts as uncovered too; then any open cell will do.
                let cells = || 0..job.cells.len();
                let cell =
                    cells().find(orphan).or_else(|| cells().find(|cell| !job.cells[*cell].is_settled))?;
                Some((*id, JobError::Uncovered { block: job.block(cell), waited: wait }))
            })
            .collect();
        for (id, error) in expired {
            self.finish(id, now, Err(error));
        }
    }

    /// Ends an attempt without an answer; its cells are asked of others. `blame`: count it against the worker.
    pub(super) fn attempt_failed(&mut self, now: Duration, id: AttemptId, blame: bool) {
        let Some(attempt) = self.attempts.remove(id) else { return };
        self.end_probe(attempt.worker, |probe| probe == id);
        self.tape(|tape| tape.ended(now, attempt.job, id, Outcome::Failed));
        if let Some(job) = self.jobs.get_mut(&attempt.job) {
            if blame {
                for cell in &attempt.cells {
                    job.cells[*cell].failures.push(attempt.worker);
                }
            }
            self.to_cover.insert(attempt.job);
        }
        self.cover_waiting();
    }

    /// Ends all attempts of a worker that is gone, or about to be.
    pub(super) fn abandon(&mut self, now: Duration, worker: ConnectionId) {
        self.end_probe(worker, |_| true);
        let ids: Vec<_> =
            self.attempts.iter().filter(|(_, attempt)| attempt.worker == worker).map(|(id, _)| id).collect();
        for id in ids {
            if let Some(connection) = self.connections.get_mut(&worker) {
                connection.session.cancel(now, id);
                self.to_pump.insert(worker);
            }
            self.attempt_failed(now, id, false);
        }
    }

    /// Something changed for the better: covers again every job that waits.
    pub(super) fn cover_waiting(&mut self) {
        self.to_cover.extend(self.jobs.iter().filter(|(_, job)| job.is_waiting).map(|(id, _)| *id));
    }

    /// When the next job gives up waiting for a holder.
    pub(super) fn next_job_deadline(&self) -> Option<Duration> {
        self.jobs
            .values()
            .filter_map(|job| job.uncovered_since)
            .min()
            .map(|since| since + self.config.coverage_wait)
    }

    pub(super) fn strike_for_error(&mut self, now: Duration, from: ConnectionId) {
        self.totals.errors += 1;
        if let Some(worker) = self.connections.get_mut(&from).and_then(|c| c.worker.as_mut()) {
            worker.counts.errors += 1;
        }
        self.strike(now, from);
    }

    /// Counts a failure against a worker.
    pub(super) fn strike(&mut self, now: Duration, from: ConnectionId) {
        let Some(worker) = self.connections.get_mut(&from).and_then(|c| c.worker.as_mut()) else { return };
        if worker.health.strike(now) {
            self.totals.unhealthy += 1;
            warn!(worker = worker.id().short(), "unhealthy: tried beside others until it answers again");
        }
    }

    /// Ends a job that is settled; else cancels its attempts that are moot and covers what is left.
    pub(super) fn after_answer(&mut self, now: Duration, id: JobId) {
        for (job, worker, parts) in std::mem::take(&mut self.to_confront) {
            self.confront(now, job, worker, &parts);
        }
        let Some(job) = self.jobs.get(&id) else { return };
        if job.is_settled() {
            return self.finish(id, now, Ok(()));
        }
        let moot: Vec<_> = self
            .attempts
            .iter()
            .filter(|(_, attempt)| attempt.job == id && job.are_settled(&attempt.cells))
            .map(|(attempt, _)| attempt)
            .collect();
        self.give_up(now, &moot);
        self.to_cover.insert(id);
        self.cover_waiting();
    }

    /// Ends a job and gives up whatever is still out for it.
    pub(super) fn finish(&mut self, id: JobId, now: Duration, result: Result<(), JobError>) {
        let out: Vec<_> = self
            .attempts
            .iter()
            .filter(|(_, attempt)| attempt.job == id)
            .map(|(attempt, _)| attempt)
            .collect();
        self.give_up(now, &out);
        let Some(job) = self.jobs.remove(&id) else { return };
        self.cover_waiting();
        if result.is_ok() {
            self.totals.layers += 1;
            self.layer_latency.record(now.saturating_sub(job.started));
        }
        self.tape(|tape| tape.finished(now, id, result.is_ok()));
        self.actions.push_back(Action::Finished(id, result.map(|()| job.sum())));
        let (wire, winners) = job.into_winners();
        self.afterlife.bury(id, wire, winners);
    }

    /// Gives attempts up: nobody waits for them any more, but what comes all the same is looked at.
    fn give_up(&mut self, now: Duration, attempts: &[AttemptId]) {
        let flops_per_pair = self.flops_per_pair();
        for id in attempts {
            let Some(attempt) = self.attempts.remove(*id) else { continue };
            let outcome = if attempt.is_overdue { Outcome::TimedOut } else { Outcome::GivenUp };
            self.tape(|tape| tape.ended(now, attempt.job, *id, outcome));
            let n_pairs = self.jobs.get(&attempt.job).map_or(0, |job| job.wire.n_pairs(&attempt.cells));
            let Some(connection) = self.connections.get_mut(&attempt.worker) else { continue };
            // A probe is there to be answered.
            if attempt.kind != Kind::Probe {
                connection.session.cancel(now, *id);
                self.to_pump.insert(attempt.worker);
            }
            let Some(worker) = connection.worker.as_mut() else { continue };
            // Whoever is always beaten would look as fast as it once was. What is overdue was counted as a timeout.
            let so_far = now.saturating_sub(attempt.sent);
            let is_timed = !attempt.is_overdue
                && attempt.kind != Kind::Probe
                && so_far > worker.expected(n_pairs, n_pairs as f64 * flops_per_pair);
            if is_timed {
                worker.took(n_pairs, so_far);
            }
            self.afterlife.lose(*id, attempt, n_pairs, is_timed);
        }
    }
}
