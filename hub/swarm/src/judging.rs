//! Answers against each other and against the hub, and what follows: see `trust` for the rules.

use std::time::Duration;

use moex_protocol::{Answer, ErrorCode, WorkerId};
use rand::RngExt;
use tracing::{info, warn};

use super::combine::Part;
use super::job::{Claim, Source};
use super::plan::WireJob;
use super::trust::{Evidence, compare};
use super::{Action, ComputeId, ConnectionId, JobId, Swarm};

/// Checks under way at a time; beyond it answers go unchecked, and disputes undecided.
const MAX_CHECKS: usize = 32;

/// Something the hub computes to see who told the truth.
#[derive(Debug)]
pub(super) struct Check {
    job: JobId,
    wire: WireJob,
    cells: Vec<usize>,
    claims: Vec<Claim>,
    sent: Duration,
}

impl Swarm {
    /// Draws whether an answer is checked.
    pub(super) fn is_to_be_checked(&mut self) -> bool {
        self.config.hub_compute
            && self.config.check_every > 0
            && self.random.random::<u64>() % u64::from(self.config.check_every) == 0
    }

    /// Has the hub compute what these claim of a job in flight, or just over.
    pub(super) fn check(&mut self, now: Duration, job: JobId, cells: Vec<usize>, claims: Vec<Claim>) {
        let Some(wire) = self.wire_of(job).cloned().filter(|_| self.checks.len() < MAX_CHECKS) else {
            return;
        };
        self.last_compute = ComputeId(self.last_compute.0 + 1);
        self.n_computing += 1;
        self.totals.checks += 1;
        self.actions
            .push_back(Action::HubCompute(self.last_compute, wire.dispatch(&cells, self.config.form)));
        self.checks.insert(self.last_compute, Check { job, wire, cells, claims, sent: now });
    }

    /// The hub has computed a check.
    pub(super) fn checked(&mut self, now: Duration, check: Check, answer: &Answer) {
        let Check { job, wire, cells, claims, sent } = check;
        let Some(truth) = wire.read(&cells, self.config.form, answer) else { return };
        self.hub_latencies.record(wire.n_pairs(&cells), now.saturating_sub(sent));
        for Claim { worker, parts } in claims {
            let (n_compared, first) = compare(&parts, &truth.iter().collect::<Vec<_>>());
            self.totals.compared += n_compared as u64;
            let Some((cell, nmse)) = first else { continue };
            self.take_back(worker, job);
            self.offence(now, worker, evidence(&wire, cell, nmse, None));
        }
        if let Some(job) = self.jobs.get_mut(&job) {
            job.accept_own(truth);
        }
        self.after_answer(now, job);
    }

    /// Compares the answers that waited for the hub to compute `cells`. What the hub computed is used in their stead.
    pub(super) fn settle_withheld(&mut self, now: Duration, id: JobId, cells: &[usize], truth: &[Part]) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let wire = job.wire.clone();
        let is_known =
            |claim: &Claim| claim.parts.iter().flat_map(|part| &part.cells).all(|cell| cells.contains(cell));
        let (known, unknown): (Vec<Claim>, Vec<Claim>) =
            std::mem::take(&mut job.withheld).into_iter().partition(is_known);
        job.withheld = unknown;
        for Claim { worker, parts } in known {
            self.totals.checks += 1;
            let (n_compared, first) = compare(&parts, &truth.iter().collect::<Vec<_>>());
            self.totals.compared += n_compared as u64;
            match first {
                Some((cell, nmse)) => self.offence(now, worker, evidence(&wire, cell, nmse, None)),
                // Sums over other experts than the hub summed cannot be checked.
                None if n_compared < parts.len() => {}
                None => {
                    let cells = parts.iter().flat_map(|part| &part.cells).copied().collect::<Vec<_>>();
                    self.credit(worker, wire.n_pairs(&cells));
                }
            }
        }
    }

    /// Compares what workers have won of a job with what the hub computed of it.
    pub(super) fn weigh_winners(&mut self, now: Duration, id: JobId, truth: &[Part]) {
        let Some(job) = self.jobs.get(&id) else { return };
        let truth: Vec<&Part> = truth.iter().collect();
        let mut lies = Vec::new();
        for winner in job.winners() {
            let Source::Worker(worker) = winner.source else { continue };
            let (n_compared, first) = compare([&winner.part], &truth);
            self.totals.compared += n_compared as u64;
            lies.extend(first.map(|(cell, nmse)| (worker, evidence(&job.wire, cell, nmse, None))));
        }
        for (worker, evidence) in lies {
            self.take_back(worker, id);
            self.offence(now, worker, evidence);
        }
    }

    /// Compares what came second with what won.
    pub(super) fn confront(&mut self, now: Duration, id: JobId, worker: WorkerId, parts: &[Part]) {
        let job = self.jobs.get(&id).map(|job| (&job.wire, job.winners()));
        let over = || self.afterlife.over(id).map(|over| (&over.wire, over.winners.as_slice()));
        let Some((wire, winners)) = job.or_else(over) else { return };
        let (n_compared, first) =
            compare(parts, &winners.iter().map(|winner| &winner.part).collect::<Vec<_>>());
        self.totals.compared += n_compared as u64;
        let Some((cell, nmse)) = first else { return };
        let Some(winner) = winners.iter().find(|winner| winner.part.cells.contains(&cell)).cloned() else {
            return;
        };
        let Some(part) = parts.iter().find(|part| part.cells == winner.part.cells).cloned() else { return };
        let evidence = |against| evidence(wire, cell, nmse, against);
        match winner.source {
            Source::Hub => {
                let evidence = evidence(None);
                self.offence(now, worker, evidence);
            }
            Source::Worker(other) if self.config.hub_compute => {
                self.totals.mismatches += 1;
                info!(
                    worker = worker.short(),
                    other = other.short(),
                    nmse,
                    "two workers disagree: the hub decides"
                );
                let claims = vec![
                    Claim { worker: other, parts: vec![winner.part.clone()] },
                    Claim { worker, parts: vec![part] },
                ];
                self.check(now, id, winner.part.cells, claims);
            }
            Source::Worker(other) => {
                let (one, two) = (evidence(Some(other)), evidence(Some(worker)));
                self.offence(now, worker, one);
                self.offence(now, other, two);
            }
        }
    }

    /// A worker answered wrong: written down, and quarantined if it is one time too many.
    pub(super) fn offence(&mut self, now: Duration, worker: WorkerId, evidence: Evidence) {
        let connection = self.by_id.get(&worker).copied();
        let address = connection.and_then(|id| self.connections.get(&id)).map(|c| c.address.clone());
        let address = address.unwrap_or_else(|| "gone".to_owned());
        let Evidence { layer, expert, nmse, against } = evidence;
        let beside = against.map_or_else(|| "the hub's".to_owned(), |other| format!("{}'s", other.short()));
        warn!(worker = worker.short(), address, %layer, %expert, nmse, "a wrong answer beside {beside}");
        self.totals.mismatches += 1;
        if let Some(connection) = connection {
            self.strike_for_error(now, connection);
        }
        if !self.register.offence(worker, &address, evidence) {
            return;
        }
        warn!(
            worker = worker.short(),
            address, "quarantined: its answers differ beyond what honest kernels do"
        );
        self.totals.quarantined += 1;
        let jobs: Vec<_> = self.jobs.keys().copied().collect();
        jobs.into_iter().for_each(|job| self.take_back(worker, job));
        if let Some(id) = connection {
            self.turn_out(now, id, ErrorCode::SelfTest, QUARANTINED);
        }
    }

    /// Opens again what a worker settled of a job in flight.
    fn take_back(&mut self, worker: WorkerId, job: JobId) {
        let connection = self.by_id.get(&worker).copied();
        let Some(in_flight) = self.jobs.get_mut(&job) else { return };
        let cells = in_flight.retract(worker);
        for cell in cells {
            in_flight.cells[cell].failures.extend(connection);
        }
        self.to_cover.insert(job);
    }

    /// Ends a worker's session with an ERROR; what it was asked goes to others at once.
    pub(super) fn turn_out(&mut self, now: Duration, id: ConnectionId, code: ErrorCode, message: &str) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.session.reject(now, code, message);
            self.to_pump.insert(id);
        }
        self.abandon(now, id);
    }

    /// Finds a worker's tier anew.
    pub(super) fn judge(&mut self, id: ConnectionId) {
        let hub = self.config.hub_compute.then_some(&self.hub_latencies);
        let Some(worker) = self.connections.get_mut(&id).and_then(|c| c.worker.as_mut()) else { return };
        if worker.judge(hub) {
            let reason = worker.reason().unwrap_or_default();
            info!(worker = worker.id().short(), tier = ?worker.tier, reason, "used for something else now");
        }
    }
}

/// What a quarantined worker is told.
pub(super) const QUARANTINED: &str =
    "this worker's results differ from the hub's: its GPU or driver computes wrong";

/// That a worker's answer for `cell` was off by `nmse`.
pub(super) fn evidence(wire: &WireJob, cell: usize, nmse: f64, against: Option<WorkerId>) -> Evidence {
    Evidence { layer: wire.layer, expert: wire.calls[cell].expert, nmse, against }
}
