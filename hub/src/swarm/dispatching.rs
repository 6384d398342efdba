//! From a job to its result: whom to ask next, and what becomes of answers, failures and silence.
//!
//! [`Swarm::cover`] is the one place that asks: it looks at a job's cells that are neither settled nor being asked in
//! time, and asks for each the next holder, else the hub. Everything that happens (an answer, a failure, a timeout, a
//! closed socket, a new holder, a free slot) only marks jobs to be covered again.

use std::collections::BTreeMap;
use std::time::Duration;

use moex_protocol::{Answer, AttemptId, ErrorCode, State, Visibility, WireError};
use tracing::{debug, warn};

use super::attempts::Attempt;
use super::job::{Job, Worth};
use super::plan::{Share, WireJob, deal};
use super::{Action, ComputeId, ConnectionId, JobError, JobId, LayerJob, Swarm};

/// Layers in flight at a time.
pub const MAX_JOBS: usize = 64;
/// Times one worker is asked for the same cell when there is no hub to fall back on.
const MAX_TRIES_WITHOUT_HUB: usize = 3;
/// Attempts of one worker, overdue ones included, beyond which it is left alone.
const MAX_ATTEMPTS_PER_WORKER: usize = 2 * moex_protocol::limits::MAX_SLOTS as usize;

impl Swarm {
    /// Starts a layer. Its end comes as [`Action::Finished`].
    pub fn start_layer(&mut self, now: Duration, id: JobId, job: LayerJob) {
        match self.admit(&job) {
            Ok(wire) => {
                self.jobs.insert(id, Job::new(wire, now));
                self.to_cover.insert(id);
            }
            Err(error) => self.actions.push_back(Action::Finished(id, Err(error))),
        }
        self.run(now);
    }

    /// The hub computed what [`Action::HubCompute`] asked for.
    pub fn hub_computed(&mut self, now: Duration, id: ComputeId, answer: Answer) {
        if let Some((job_id, cells)) = self.take_hub_compute(id)
            && let Some(job) = self.jobs.get_mut(&job_id)
        {
            if job.accept(&cells, self.config.form, &answer) == Worth::Invalid {
                let layer = job.wire.layer;
                self.finish(job_id, now, Err(JobError::NotFinite { layer }));
            } else {
                self.after_answer(now, job_id);
            }
        }
        self.run(now);
    }

    /// The hub could not compute what [`Action::HubCompute`] asked for.
    pub fn hub_failed(&mut self, now: Duration, id: ComputeId, message: String) {
        if let Some((job_id, _)) = self.take_hub_compute(id)
            && let Some(job) = self.jobs.get(&job_id)
        {
            let layer = job.wire.layer;
            self.finish(job_id, now, Err(JobError::Hub { layer, message }));
        }
        self.run(now);
    }

    fn admit(&self, job: &LayerJob) -> Result<WireJob, JobError> {
        if self.is_shutting_down {
            return Err(JobError::ShuttingDown);
        }
        if self.jobs.len() >= MAX_JOBS {
            return Err(JobError::Busy { max: MAX_JOBS });
        }
        let summary = &self.config.model;
        let max_rows = (summary.max_rows as usize).min(summary.max_pairs as usize / job.routing.k.max(1));
        let wire = WireJob::encode(job, summary.hidden as usize, self.config.wire, max_rows)?;
        let missing = wire
            .calls
            .iter()
            .map(|call| moex_protocol::Block { layer: job.layer, expert: call.expert })
            .find(|block| self.catalog.index(*block).is_none());
        missing.map_or(Ok(wire), |block| Err(JobError::NoSuchBlock { block }))
    }

    fn take_hub_compute(&mut self, id: ComputeId) -> Option<(JobId, Vec<usize>)> {
        let (job_id, job) = self
            .jobs
            .iter_mut()
            .find(|(_, job)| job.hub.as_ref().is_some_and(|(compute, _)| *compute == id))?;
        job.hub.take().map(|(_, cells)| (*job_id, cells))
    }

    /// Asks for every cell of the job that nobody is being asked for in time.
    pub(super) fn cover(&mut self, now: Duration, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        if job.is_settled() {
            return self.finish(id, now, Ok(()));
        }
        let mut in_time = vec![false; job.cells.len()];
        let mut asked: Vec<Vec<ConnectionId>> = vec![Vec::new(); job.cells.len()];
        for (_, attempt) in self.attempts.iter().filter(|(_, attempt)| attempt.job == id) {
            for cell in &attempt.cells {
                asked[*cell].push(attempt.worker);
                in_time[*cell] |= !attempt.is_overdue;
            }
        }
        for cell in job.hub.iter().flat_map(|(_, cells)| cells) {
            in_time[*cell] = true;
        }
        let mut takers = Vec::new();
        let mut for_hub = Vec::new();
        let mut is_waiting = false;
        let mut is_uncovered = false;
        let pending = (0..job.cells.len()).filter(|cell| !in_time[*cell] && !job.cells[*cell].is_settled);
        for cell in pending {
            let holders = self.askable(job, cell, &asked[cell]);
            if holders.is_empty() {
                for_hub.push(cell);
                continue;
            }
            let copies = if job.cells[cell].was_asked { 1 } else { self.config.hedge };
            let free: Vec<_> = holders.into_iter().filter(|w| self.has_free_slot(*w)).take(copies).collect();
            is_waiting |= free.is_empty();
            takers.push((cell, free));
        }
        if !for_hub.is_empty() && (!self.config.hub_compute || job.hub.is_some()) {
            is_waiting = true;
            is_uncovered = !self.config.hub_compute;
            for_hub.clear();
        }
        let shares = deal(takers);
        if let Some(job) = self.jobs.get_mut(&id) {
            job.is_waiting = is_waiting;
            job.uncovered_since = is_uncovered.then(|| job.uncovered_since.unwrap_or(now));
        }
        self.ask_hub(id, for_hub);
        self.ask_workers(now, id, shares);
    }

    /// Those who can be asked for a cell, the best first: holders that serve, have not failed it, and are not at it.
    fn askable(&self, job: &Job, cell: usize, asked: &[ConnectionId]) -> Vec<ConnectionId> {
        let Some(index) = self.catalog.index(job.block(cell)) else { return Vec::new() };
        let tries = if self.config.hub_compute { 1 } else { MAX_TRIES_WITHOUT_HUB };
        let failures =
            |w: ConnectionId| job.cells[cell].failures.iter().filter(|failed| **failed == w).count();
        let mut holders: Vec<_> = self
            .holders
            .of(index)
            .iter()
            .copied()
            .filter(|w| self.is_usable(*w) && !asked.contains(w) && failures(*w) < tries)
            .map(|w| {
                let rank = self.worker(w).and_then(|worker| self.placement.rank(index, worker.id()));
                (failures(w), rank.unwrap_or(usize::MAX), w)
            })
            .collect();
        holders.sort_unstable();
        holders.into_iter().map(|(_, _, w)| w).collect()
    }

    /// Whether a worker may be given work now.
    pub(super) fn is_usable(&self, id: ConnectionId) -> bool {
        self.connections.get(&id).is_some_and(|connection| {
            connection.session.state() == State::Serving
                && connection
                    .worker
                    .as_ref()
                    .is_some_and(|w| w.health.is_healthy() && w.visibility == Visibility::Visible)
        })
    }

    fn has_free_slot(&self, id: ConnectionId) -> bool {
        let out = self.attempts.iter().filter(|(_, attempt)| attempt.worker == id).count();
        self.worker(id).is_some_and(|worker| self.attempts.in_time(id) < worker.slots())
            && out < MAX_ATTEMPTS_PER_WORKER
    }

    fn ask_workers(&mut self, now: Duration, id: JobId, shares: BTreeMap<ConnectionId, Share>) {
        let summary = &self.config.model;
        // Gate, up and down: three matrices of D x F, a multiplication and an addition each.
        let flops_per_pair = 6.0 * f64::from(summary.hidden) * f64::from(summary.inner);
        for (worker_id, Share { cells, is_hedge }) in shares {
            let Some(job) = self.jobs.get_mut(&id) else { return };
            let Some(connection) = self.connections.get_mut(&worker_id) else { continue };
            let Some(worker) = connection.worker.as_mut() else { continue };
            let n_pairs = job.wire.n_pairs(&cells);
            let timeout = worker.timeout(self.config.timeout, n_pairs, n_pairs as f64 * flops_per_pair);
            let dispatch = job.wire.dispatch(&cells, self.config.form);
            let is_retry = !is_hedge && cells.iter().any(|cell| job.cells[*cell].was_asked);
            for cell in &cells {
                job.cells[*cell].was_asked = true;
            }
            let deadline = now + timeout;
            let attempt = self.attempts.insert(Attempt {
                job: id,
                worker: worker_id,
                cells: cells.clone(),
                sent: now,
                deadline,
                is_overdue: false,
            });
            self.to_pump.insert(worker_id);
            if let Err(error) = connection.session.dispatch(now, attempt, &dispatch) {
                warn!(worker = %worker.id(), %error, "a dispatch could not be sent");
                self.attempt_failed(attempt, true);
                continue;
            }
            worker.counts.dispatches += 1;
            self.totals.dispatches += 1;
            self.totals.hedges += u64::from(is_hedge);
            self.totals.retries += u64::from(is_retry);
        }
    }

    fn ask_hub(&mut self, id: JobId, cells: Vec<usize>) {
        let Some(job) = self.jobs.get_mut(&id).filter(|_| !cells.is_empty()) else { return };
        self.last_compute = ComputeId(self.last_compute.0 + 1);
        self.totals.hub_computed += 1;
        self.hub_share.dispatches += 1;
        self.hub_share.rows += job.wire.n_pairs(&cells) as u64;
        let dispatch = job.wire.dispatch(&cells, self.config.form);
        for cell in &cells {
            job.cells[*cell].was_asked = true;
        }
        job.hub = Some((self.last_compute, cells));
        self.actions.push_back(Action::HubCompute(self.last_compute, dispatch));
    }

    /// A worker answered an attempt.
    pub(super) fn answered(&mut self, now: Duration, from: ConnectionId, id: AttemptId, answer: &Answer) {
        let Some(attempt) = self.attempts.get(id).filter(|attempt| attempt.worker == from).cloned() else {
            self.totals.late += 1;
            return;
        };
        let Some(job) = self.jobs.get_mut(&attempt.job) else { return };
        let worth = job.accept(&attempt.cells, self.config.form, answer);
        let n_pairs = job.wire.n_pairs(&attempt.cells);
        if worth == Worth::Invalid {
            warn!(
                connection = from.0,
                attempt = id.0,
                "an answer is not finite or not of the shape asked for"
            );
            self.strike_for_error(from);
            return self.attempt_failed(id, true);
        }
        self.attempts.remove(id);
        if let Some(worker) = self.connections.get_mut(&from).and_then(|c| c.worker.as_mut()) {
            worker.answered(n_pairs, now.saturating_sub(attempt.sent));
            worker.counts.answers += u64::from(worth == Worth::Used);
            worker.counts.rows += if worth == Worth::Used { n_pairs as u64 } else { 0 };
        }
        self.totals.answers += u64::from(worth == Worth::Used);
        self.after_answer(now, attempt.job);
    }

    /// A worker said that it will not answer an attempt.
    pub(super) fn refused(&mut self, from: ConnectionId, id: AttemptId, error: &WireError) {
        let Some(attempt) = self.attempts.get(id).filter(|attempt| attempt.worker == from).cloned() else {
            self.totals.late += 1;
            return;
        };
        debug!(connection = from.0, attempt = id.0, code = ?error.code, message = %error.message, "an attempt failed");
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
            _ => self.strike_for_error(from),
        }
        self.attempt_failed(id, true);
    }

    /// Attempts whose time is up: their cells are asked of others, their answers still taken.
    pub(super) fn expire_attempts(&mut self, now: Duration) {
        for id in self.attempts.expire(now) {
            let Some(attempt) = self.attempts.get(id) else { continue };
            let (job, from) = (attempt.job, attempt.worker);
            self.totals.timeouts += 1;
            self.to_cover.insert(job);
            if let Some(worker) = self.connections.get_mut(&from).and_then(|c| c.worker.as_mut()) {
                worker.counts.timeouts += 1;
                if worker.health.strike() {
                    warn!(worker = %worker.id(), "unhealthy: out until its next heartbeat that answers");
                }
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
                let orphan =
                    |cell: &usize| !job.cells[*cell].is_settled && self.askable(job, *cell, &[]).is_empty();
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
    pub(super) fn attempt_failed(&mut self, id: AttemptId, blame: bool) {
        let Some(attempt) = self.attempts.remove(id) else { return };
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
        let ids: Vec<_> =
            self.attempts.iter().filter(|(_, attempt)| attempt.worker == worker).map(|(id, _)| id).collect();
        for id in ids {
            if let Some(connection) = self.connections.get_mut(&worker) {
                connection.session.cancel(now, id);
                self.to_pump.insert(worker);
            }
            self.attempt_failed(id, false);
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

    fn strike_for_error(&mut self, from: ConnectionId) {
        self.totals.errors += 1;
        if let Some(worker) = self.connections.get_mut(&from).and_then(|c| c.worker.as_mut()) {
            worker.counts.errors += 1;
            if worker.health.strike() {
                warn!(worker = %worker.id(), "unhealthy: out until its next heartbeat that answers");
            }
        }
    }

    /// Ends a job that is settled; else cancels its attempts that are moot and covers what is left.
    fn after_answer(&mut self, now: Duration, id: JobId) {
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
        self.cancel(now, &moot);
        self.to_cover.insert(id);
        self.cover_waiting();
    }

    /// Ends a job and cancels whatever is still out for it.
    pub(super) fn finish(&mut self, id: JobId, now: Duration, result: Result<(), JobError>) {
        let Some(job) = self.jobs.remove(&id) else { return };
        let out: Vec<_> = self
            .attempts
            .iter()
            .filter(|(_, attempt)| attempt.job == id)
            .map(|(attempt, _)| attempt)
            .collect();
        self.cancel(now, &out);
        self.cover_waiting();
        if result.is_ok() {
            self.totals.layers += 1;
            self.layer_latency.record(now.saturating_sub(job.started));
        }
        self.actions.push_back(Action::Finished(id, result.map(|()| job.into_sum())));
    }

    fn cancel(&mut self, now: Duration, attempts: &[AttemptId]) {
        for id in attempts {
            let Some(attempt) = self.attempts.remove(*id) else { continue };
            if let Some(connection) = self.connections.get_mut(&attempt.worker) {
                connection.session.cancel(now, *id);
                self.to_pump.insert(attempt.worker);
            }
        }
    }
}
