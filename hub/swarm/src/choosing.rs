//! Which of those who could answer a cell is asked for it: whoever will be done first, as far as can be told.
//!
//! What counts, in this order: having failed at it before; being fit for a job of so many rows (`tier`); the time until
//! its answer is expected, which is its median for as much as it is given, behind what it is at already, or the timeout
//! while it is late with another (`health`); and the order of the ring, which spreads the work of equals. The hub is one
//! more replica of everything: it is asked when it will be done well before the best worker, or when there is no worker.
//!
//! A worker that has not answered often enough to be known gets its part beside one that is, or beside the hub, and never
//! instead: what it says of itself is no reason to wait for it.

use std::collections::HashMap;
use std::time::Duration;

use moex_protocol::{State, Visibility};

use super::attempts::Load;
use super::job::Job;
use super::tier::{HUB_MARGIN, HUB_YIELDS_WITHIN};
use super::worker::Worker;
use super::{ConnectionId, Swarm};

/// Times one worker is asked for the same cell when there is no hub to fall back on.
const MAX_TRIES_WITHOUT_HUB: usize = 3;
/// Attempts of one worker, overdue ones included, beyond which it is left alone.
const MAX_ATTEMPTS_PER_WORKER: usize = 2 * moex_protocol::limits::MAX_SLOTS as usize;
/// Computations of the hub under way beyond which new workers are waited for: those before were too fast for it.
const MAX_COMPUTES_BESIDE_TRIALS: usize = 4;
/// Two workers within a quarter of each other, or this, are equals: medians of so few samples say no more.
const EQUALS_WITHIN: Duration = Duration::from_micros(500);

/// Who is asked for which cells.
#[derive(Debug, Default)]
pub(super) struct Choice {
    /// Cells with the workers to ask, the best first; with none where all who could be asked are busy.
    pub takers: Vec<(usize, Vec<ConnectionId>)>,
    /// Cells to ask of new workers as well, of whom nobody knows how fast they answer.
    pub trials: Vec<(usize, ConnectionId)>,
    /// Cells for the hub.
    pub for_hub: Vec<usize>,
    /// Of these, whether some have no worker that could be asked at all.
    pub is_uncovered: bool,
}

/// A worker that could be asked for a cell.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    worker: ConnectionId,
    /// Times it has failed at this cell.
    n_failures: usize,
    /// Place among the wanted holders.
    rank: usize,
    is_fit: bool,
    is_free: bool,
    is_measured: bool,
    /// Whether a trial of it is out.
    is_on_trial: bool,
    /// Until its answer.
    expected: Duration,
}

impl Swarm {
    /// Chooses for these cells of a job, in order. `asked`: by cell, those who are at it already.
    pub(super) fn choose(&self, job: &Job, cells: &[usize], asked: &[Vec<ConnectionId>]) -> Choice {
        let loads = self.attempts.load();
        let mut given: HashMap<ConnectionId, usize> = HashMap::new();
        let mut given_hub = 0;
        let mut choice = Choice::default();
        for cell in cells.iter().copied() {
            let n_pairs = job.wire.n_pairs(&[cell]);
            let all = self.candidates(job, cell, &asked[cell], &loads, &given);
            let known: Vec<Candidate> = all.iter().copied().filter(|c| c.is_measured).collect();
            if let Some(new) = self.on_trial(&all, &known) {
                *given.entry(new).or_default() += n_pairs;
                choice.trials.push((cell, new));
            }
            let pool = if known.is_empty() && !self.may_compute_beside() { &all } else { &known };
            let hub = self.hub_expected(given_hub + n_pairs);
            let takers = if self.is_for_hub(pool, hub) { None } else { best_first(pool) };
            match takers {
                Some(takers) => {
                    let copies = if job.cells[cell].was_asked { 1 } else { self.config.hedge.copies() };
                    let takers: Vec<_> = takers.into_iter().take(copies).collect();
                    takers.iter().for_each(|taker| *given.entry(*taker).or_default() += n_pairs);
                    choice.takers.push((cell, takers));
                }
                None => {
                    given_hub += n_pairs;
                    choice.is_uncovered |= all.is_empty();
                    choice.for_hub.push(cell);
                }
            }
        }
        choice
    }

    /// The new worker that a cell is tried with, if it would be asked for it were it known, and somebody else can be.
    fn on_trial(&self, all: &[Candidate], known: &[Candidate]) -> Option<ConnectionId> {
        if known.is_empty() && !self.may_compute_beside() {
            return None;
        }
        let first = best_first(all)?.first().copied()?;
        let is_new = |c: &&Candidate| c.worker == first && c.is_fit && !c.is_measured && !c.is_on_trial;
        all.iter().find(is_new).map(|candidate| candidate.worker)
    }

    /// Whether the hub can be asked for what new workers are tried with.
    fn may_compute_beside(&self) -> bool {
        self.config.hub_compute && self.n_computing < MAX_COMPUTES_BESIDE_TRIALS
    }

    /// Whether there is a worker that could be asked for a cell.
    pub(super) fn is_askable(&self, job: &Job, cell: usize) -> bool {
        !self.candidates(job, cell, &[], &HashMap::new(), &HashMap::new()).is_empty()
    }

    /// Whether a worker may be given work now: healthy, or, where nobody could stand in for it, at least alive.
    pub(super) fn is_usable(&self, id: ConnectionId) -> bool {
        let is_asked = |worker: &Worker| {
            worker.health.is_healthy() || (!self.config.hub_compute && worker.health.is_last_resort())
        };
        self.is_present(id) && self.worker(id).is_some_and(is_asked)
    }

    /// Whether a worker's session could carry work now.
    pub(super) fn is_present(&self, id: ConnectionId) -> bool {
        self.connections.get(&id).is_some_and(|connection| {
            connection.session.state() == State::Serving
                && connection.worker.as_ref().is_some_and(|w| w.visibility == Visibility::Visible)
        })
    }

    /// Floating-point operations of one (row, expert) pair.
    pub(super) fn flops_per_pair(&self) -> f64 {
        // Gate, up and down: three matrices of D x F, a multiplication and an addition each.
        6.0 * f64::from(self.config.model.hidden) * f64::from(self.config.model.inner)
    }

    /// Holders that serve, have not failed the cell, and are not at it.
    fn candidates(
        &self,
        job: &Job,
        cell: usize,
        asked: &[ConnectionId],
        loads: &HashMap<ConnectionId, Load>,
        given: &HashMap<ConnectionId, usize>,
    ) -> Vec<Candidate> {
        let Some(index) = self.catalog.index(job.block(cell)) else { return Vec::new() };
        let tries = if self.config.hub_compute { 1 } else { MAX_TRIES_WITHOUT_HUB };
        let failures = &job.cells[cell].failures;
        let candidate = |id: &ConnectionId| {
            let n_failures = failures.iter().filter(|failed| *failed == id).count();
            if asked.contains(id) || n_failures >= tries || !self.is_usable(*id) {
                return None;
            }
            let worker = self.worker(*id)?;
            let load = loads.get(id).copied().unwrap_or_default();
            let n_pairs = job.wire.n_pairs(&[cell]) + given.get(id).copied().unwrap_or(0);
            let is_late = worker.health.is_late();
            let mut expected = worker.expected(n_pairs, n_pairs as f64 * self.flops_per_pair());
            if is_late {
                // It owes an answer already: nobody knows for how long.
                expected = expected.max(self.config.timeout);
            }
            Some(Candidate {
                worker: *id,
                // The last resort comes after everybody.
                n_failures: if worker.health.is_healthy() { n_failures } else { usize::MAX },
                rank: self.placement.rank(index, worker.id()).unwrap_or(usize::MAX),
                is_fit: worker.tier.takes(job.wire.n_rows),
                is_free: load.n_in_time < worker.slots() && load.n_out < MAX_ATTEMPTS_PER_WORKER,
                is_measured: worker.is_measured(),
                is_on_trial: worker.probe.is_some(),
                expected: expected.saturating_mul(1 + load.n_in_time as u32),
            })
        };
        self.holders.of(index).iter().filter_map(candidate).collect()
    }

    /// When the hub would have computed so many more pairs, as far as it was ever measured.
    fn hub_expected(&self, n_pairs: usize) -> Option<Duration> {
        Some(self.hub_latencies.expected(n_pairs)?.saturating_mul(1 + self.n_computing as u32))
    }

    /// Whether a cell that these could be asked for is the hub's instead.
    fn is_for_hub(&self, all: &[Candidate], hub: Option<Duration>) -> bool {
        let best = |is_fit| all.iter().filter(|c| c.is_fit == is_fit).map(|c| c.expected).min();
        match (best(true), best(false)) {
            (None, None) => true,
            _ if !self.config.hub_compute => false,
            (Some(fit), _) => {
                fit > HUB_YIELDS_WITHIN && hub.is_some_and(|hub| hub.saturating_mul(HUB_MARGIN) < fit)
            }
            (None, Some(unfit)) => hub.is_none_or(|hub| hub <= unfit),
        }
    }
}

/// The free ones, in the order in which to ask them: of those that are fit, or of the others if none is.
fn best_first(all: &[Candidate]) -> Option<Vec<ConnectionId>> {
    let any_fit = all.iter().any(|candidate| candidate.is_fit);
    let mut free: Vec<&Candidate> = all.iter().filter(|c| c.is_fit == any_fit && c.is_free).collect();
    let best = free.iter().map(|candidate| candidate.expected).min().unwrap_or_default();
    let near = best.saturating_mul(5) / 4 + EQUALS_WITHIN;
    free.sort_by_key(|candidate| {
        // Whoever has not been measured yet gets its chance to be.
        let is_near = candidate.expected <= near || !candidate.is_measured;
        let order = if is_near { Duration::ZERO } else { candidate.expected };
        (candidate.n_failures, !is_near, order, candidate.rank, candidate.worker)
    });
    (!all.is_empty()).then(|| free.into_iter().map(|candidate| candidate.worker).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(worker: u64, expected_millis: u64) -> Candidate {
        Candidate {
            worker: ConnectionId(worker),
            n_failures: 0,
            rank: worker as usize,
            is_fit: true,
            is_free: true,
            is_measured: true,
            is_on_trial: false,
            expected: Duration::from_millis(expected_millis),
        }
    }

    fn order(all: &[Candidate]) -> Vec<u64> {
        best_first(all).unwrap().into_iter().map(|worker| worker.0).collect()
    }

    #[test]
    fn equals_go_by_the_ring_and_the_others_by_time() {
        assert_eq!(order(&[candidate(2, 10), candidate(1, 11), candidate(3, 9)]), [1, 2, 3]);
        assert_eq!(order(&[candidate(1, 80), candidate(2, 10), candidate(3, 40)]), [2, 3, 1]);
    }

    #[test]
    fn who_failed_comes_last_and_who_is_new_gets_a_chance() {
        let failed = Candidate { n_failures: 1, ..candidate(1, 1) };
        let new = Candidate { is_measured: false, ..candidate(2, 500) };
        assert_eq!(order(&[failed, new, candidate(3, 10)]), [2, 3, 1]);
    }

    #[test]
    fn the_unfit_are_asked_when_there_is_nobody_else_and_the_busy_never() {
        let unfit = Candidate { is_fit: false, ..candidate(1, 1) };
        let busy = Candidate { is_free: false, ..candidate(2, 1) };
        assert_eq!(order(&[unfit, candidate(3, 500)]), [3]);
        assert_eq!(order(&[unfit]), [1]);
        assert_eq!(order(&[unfit, busy]), [0; 0], "it waits for the fit one");
        assert_eq!(best_first(&[]), None);
    }
}
