//! Handles answers from workers and the hub. `endings` handles attempts that end without an answer, and what follows.
//!
//! ```text
//! answer --> of the shape asked for? --no--> the attempt failed: asked elsewhere, a failure of the worker
//!              |yes
//!              +--> not finite: asked elsewhere, and a wrong answer for the auditor
//!              +--> first to an item: it is used; other workers that were asked for the item are told to forget it
//!              +--> not the first: for the auditor to compare with the one that was
//!              +--> every answer is to be checked: withheld until the hub has computed the same, whose result is used
//!              +--> two have to agree: held until another address has answered the same bits (`agreement`)
//! ```

use std::time::Duration;

use moex_protocol::{AttemptId, Block, ErrorCode, Reply, WireError, WorkerId, peer_text};
use tracing::{info, warn};

use super::attempts::Kind;
use super::error::JobError;
use super::hub_replica::HubResult;
use super::job::{Acceptance, HubWork, Source, WorkerAnswer};
use super::parts::Part;
use super::received::Received;
use super::{Dispatcher, Order};
use crate::{ComputeId, ConnectionId, JobId};

/// A timely answer of the right shape. Pass it to [`Dispatcher::accept`].
#[derive(Debug)]
pub(crate) struct ValidAnswer {
    pub job: JobId,
    pub items: Vec<usize>,
    pub answer: WorkerAnswer,
    attempt: AttemptId,
    /// Those of the items that another worker was asked for before.
    copies: Vec<usize>,
    n_bytes: u64,
}

/// An answer that arrived after its attempt was settled or abandoned.
#[derive(Debug)]
pub(crate) enum LateAnswer {
    /// There is nothing to compare it with.
    Incomparable,
    /// To be compared with the answer that was used. [`Dispatcher::answered_since`] is to follow.
    Duplicate { job: JobId, answer: WorkerAnswer, sent: Duration },
    /// A value in it is not finite.
    NotFinite(NotFinite),
}

/// A worker answered with values that are not finite.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NotFinite {
    pub worker: WorkerId,
    /// The first block of its request.
    pub block: Block,
}

/// The hub's result for a job. Pass it to [`Dispatcher::accept_from_hub`].
#[derive(Debug)]
pub(crate) struct HubAnswer {
    pub job: JobId,
    pub parts: Vec<Part>,
    /// Workers' answers that waited for it.
    pub withheld: Vec<WorkerAnswer>,
    is_hedge: bool,
}

impl Dispatcher {
    // The hub's own answers.

    /// The hub computed this. None if no job waits for it.
    pub(crate) fn hub_answered(
        &mut self,
        now: Duration,
        id: ComputeId,
        answer: &HubResult,
    ) -> Option<HubAnswer> {
        let (job_id, work) = self.take_hub_work(id)?;
        let job = self.jobs.get_mut(&job_id)?;
        let parts = answer.finite().and_then(|a| job.layer.read(&work.items, a));
        let Some(parts) = parts else {
            let layer = job.layer.layer;
            self.finish(job_id, now, Err(JobError::NotFinite { layer }));
            return None;
        };
        self.hub.took(job.layer.n_pairs(&work.items), now.saturating_sub(work.sent));
        let withheld = job.take_waiting(&work.items);
        self.record(|recorder| recorder.hub_answered(now, job_id, id));
        Some(HubAnswer { job: job_id, parts, withheld, is_hedge: work.is_hedge })
    }

    /// The hub could not compute this.
    pub(crate) fn hub_failed(&mut self, now: Duration, id: ComputeId, message: String) {
        if let Some((job_id, _)) = self.take_hub_work(id)
            && let Some(job) = self.jobs.get(&job_id)
        {
            let layer = job.layer.layer;
            self.finish(job_id, now, Err(JobError::Hub { layer, message }));
        }
    }

    fn take_hub_work(&mut self, id: ComputeId) -> Option<(JobId, HubWork)> {
        let (job_id, job) =
            self.jobs.iter_mut().find(|(_, job)| job.hub.as_ref().is_some_and(|work| work.id == id))?;
        Some((*job_id, job.hub.take()?))
    }

    /// Uses the hub's result for a job, also in place of workers' answers.
    pub(crate) fn accept_from_hub(&mut self, now: Duration, answer: HubAnswer) {
        let HubAnswer { job: id, parts, is_hedge, .. } = answer;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let settled = job.accept_from_hub(parts);
        self.counts.hedge_wins += u64::from(is_hedge && !settled.is_empty());
        self.after_answer(now, id);
    }

    /// Uses the hub's check of an answer to a job, if the job is still in flight.
    pub(crate) fn accept_check(&mut self, now: Duration, id: JobId, parts: Vec<Part>) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.accept_from_hub(parts);
        }
        self.after_answer(now, id);
    }

    // Workers' answers.

    /// Whether an attempt at this worker is in flight.
    pub(crate) fn is_out(&self, from: ConnectionId, id: AttemptId) -> bool {
        self.attempts.get(id).is_some_and(|attempt| attempt.worker == from)
    }

    /// A worker answered an attempt in flight. None if the answer cannot be used, or not yet.
    pub(crate) fn answered(
        &mut self,
        now: Duration,
        from: ConnectionId,
        id: AttemptId,
        received: Received<'_>,
    ) -> Option<ValidAnswer> {
        let attempt = self.attempts.get(id)?;
        let job = self.jobs.get(&attempt.job)?;
        let is_asked_for = matches!(received, Received::Digests(_)) == (attempt.reply == Reply::Digests);
        let parts = received.read(&job.layer, &attempt.items, id);
        let Some(parts) = parts.filter(|_| is_asked_for) else {
            warn!(connection = from.0, attempt = id.0, "an answer has the wrong shape");
            self.worker_failed(now, from);
            self.attempt_failed(now, id, true);
            return None;
        };
        let n_pairs = job.layer.n_pairs(&attempt.items);
        let attempt = self.attempts.remove(id)?;
        let worker = self.workers.id(from)?;
        self.workers.end_probe(from, |probe| probe == id);
        self.workers.timed(from, attempt.kind, n_pairs, now.saturating_sub(attempt.sent));
        self.answered_since(from, attempt.sent);
        self.classify(from);
        let n_bytes = received.n_bytes();
        let answer = WorkerAnswer { worker, parts };
        if self.config.checks_everything() {
            self.record(|recorder| recorder.answered(now, attempt.job, id, n_bytes, 0));
            self.jobs.get_mut(&attempt.job)?.withheld.push(answer);
            self.to_cover.insert(attempt.job);
            self.cover_waiting();
            return None;
        }
        let (job, items, copies) = (attempt.job, attempt.items, attempt.copies);
        Some(ValidAnswer { job, items, answer, attempt: id, copies, n_bytes })
    }

    /// Uses a valid answer. Returns the parts whose items were settled before, for the auditor to compare;
    /// [`Self::after_answer`] is to follow.
    pub(crate) fn accept(&mut self, now: Duration, valid: ValidAnswer) -> WorkerAnswer {
        let ValidAnswer { job: id, answer: WorkerAnswer { worker, parts }, attempt, copies, n_bytes, .. } =
            valid;
        let host = self.workers.by_id_mut(worker).map(|worker| worker.host().clone());
        let host = host.filter(|_| self.config.wants_agreement());
        let Acceptance { settled, agreed, redundant } = match (self.jobs.get_mut(&id), &host) {
            (None, _) => Acceptance::default(),
            (Some(job), None) => job.accept(Source::Worker(worker), parts),
            (Some(job), Some(host)) => job.accept_if_agreed(worker, host, parts),
        };
        let n_pairs = |items: &[usize]| self.jobs.get(&id).map_or(0, |job| job.layer.n_pairs(items));
        let mut credits = vec![(worker, settled.len(), n_pairs(&settled))];
        credits.extend(agreed.iter().map(|(other, item)| (*other, 1, n_pairs(&[*item]))));
        credits
            .into_iter()
            .filter(|(_, n, _)| *n > 0)
            .for_each(|(to, n, n_pairs)| self.credit(to, n, n_pairs));
        self.record(|recorder| recorder.answered(now, id, attempt, n_bytes, settled.len()));
        let is_win = agreed.is_empty() && copies.iter().any(|copy| settled.contains(copy));
        self.counts.hedge_wins += u64::from(is_win);
        WorkerAnswer { worker, parts: redundant }
    }

    /// Counts a worker's answer that was used, or that the hub confirmed.
    pub(crate) fn credit(&mut self, worker: WorkerId, n_items: usize, n_pairs: usize) {
        if let Some(performance) = self.workers.by_id_mut(worker) {
            performance.counts.answers += 1;
            performance.counts.rows += n_pairs as u64;
            self.orders.push_back(Order::Credit { worker, n_items });
        }
        self.counts.answers += 1;
    }

    /// A worker answered with values that are not finite; honest workers report instead that they cannot compute. None
    /// if its request is not known any more.
    pub(crate) fn not_finite(
        &mut self,
        now: Duration,
        from: ConnectionId,
        id: AttemptId,
    ) -> Option<NotFinite> {
        let attempt = self.attempts.get(id).filter(|attempt| attempt.worker == from);
        let asked = attempt.map(|attempt| (attempt.job, attempt.items.first().copied()));
        let asked = asked.or_else(|| {
            let abandoned = self.late_answers.take(id, from)?;
            Some((abandoned.job, abandoned.items.first().copied()))
        });
        self.workers.end_probe(from, |probe| probe == id);
        let block = asked.and_then(|(job, item)| Some(self.layer_of(job)?.block(item?)));
        self.attempt_failed(now, id, true);
        let worker = self.workers.id(from);
        worker.zip(block).map(|(worker, block)| NotFinite { worker, block })
    }

    /// A worker answered an attempt that was settled or abandoned.
    pub(crate) fn answered_late(
        &mut self,
        now: Duration,
        from: ConnectionId,
        id: AttemptId,
        received: Received<'_>,
    ) -> LateAnswer {
        let Some(abandoned) = self.late_answers.take(id, from) else {
            self.counts.late += 1;
            return LateAnswer::Incomparable;
        };
        self.record(|recorder| recorder.late(now, id));
        self.counts.late += u64::from(abandoned.kind != Kind::Probe);
        let Some(worker) = self.workers.id(from) else { return LateAnswer::Incomparable };
        if !abandoned.is_timed {
            let latency = now.saturating_sub(abandoned.sent);
            self.workers.end_probe(from, |probe| probe == id);
            self.workers.timed(from, abandoned.kind, abandoned.n_pairs, latency);
        }
        self.classify(from);
        let Some(layer) = self.layer_of(abandoned.job) else {
            // Too late to compare, but still an answer.
            self.answered_since(from, abandoned.sent);
            return LateAnswer::Incomparable;
        };
        // The session already scanned answers that were in time.
        if matches!(received, Received::Answer(answer) if answer.has_non_finite()) {
            let block = abandoned.items.first().map(|item| layer.block(*item));
            return block.map_or(LateAnswer::Incomparable, |block| {
                LateAnswer::NotFinite(NotFinite { worker, block })
            });
        }
        match received.read(layer, &abandoned.items, id) {
            Some(parts) => {
                let answer = WorkerAnswer { worker, parts };
                LateAnswer::Duplicate { job: abandoned.job, answer, sent: abandoned.sent }
            }
            None => LateAnswer::Incomparable,
        }
    }

    /// A worker gave a valid answer to a request sent at `sent`: it may be healthy again.
    pub(crate) fn answered_since(&mut self, from: ConnectionId, sent: Duration) {
        let Some(worker) = self.workers.get_mut(from) else { return };
        if worker.health.answered(sent) {
            info!(worker = worker.id().short(), "healthy again");
            self.cover_waiting();
        }
    }

    /// A worker refused an attempt.
    pub(crate) fn refused(&mut self, now: Duration, from: ConnectionId, id: AttemptId, error: &WireError) {
        let Some(attempt) = self.attempts.get(id).filter(|attempt| attempt.worker == from).cloned() else {
            self.counts.late += 1;
            self.workers.end_probe(from, |probe| probe == id);
            if !matches!(error.code, ErrorCode::Preempted | ErrorCode::Draining | ErrorCode::NotResident) {
                self.worker_failed(now, from);
            }
            return;
        };
        let said = peer_text(&error.message);
        info!(connection = from.0, attempt = id.0, code = ?error.code, message = %said, "an attempt failed");
        match error.code {
            // Its queue was full, which is not the worker's fault.
            ErrorCode::Preempted | ErrorCode::Draining => {
                self.counts.errors += 1;
            }
            // It does not name the block; it reports its resident blocks at once.
            ErrorCode::NotResident => {
                self.counts.errors += 1;
                let blocks = self
                    .jobs
                    .get(&attempt.job)
                    .map_or(Vec::new(), |job| attempt.items.iter().map(|item| job.block(*item)).collect());
                self.orders.push_back(Order::NotResident { at: from, blocks });
            }
            _ => self.worker_failed(now, from),
        }
        self.attempt_failed(now, id, true);
    }
}
