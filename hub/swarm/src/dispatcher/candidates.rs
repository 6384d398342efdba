//! Chooses the worker for each work item: the one expected to answer first.
//!
//! The criteria, in order: whether a worker has failed at the item; whether its `tier` fits a job of this many rows;
//! its expected time to answer, which is its median for this size, after its current work, or the timeout while it is
//! late (`health`); and the order of the ring, which spreads work among equals. The hub is one more replica of every
//! block: it is used when it would be done well before the best worker, or if there is no worker.
//!
//! A worker with too few answers to be measured works in parallel with a known worker or the hub, never instead of one:
//! nothing waits for it on the basis of its own claims.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::asked_workers::AskedWorkers;
use super::attempts::{AttemptTable, Load};
use super::hub_replica::HubReplica;
use super::job::Job;
use super::tier::{HUB_MARGIN, HUB_YIELDS_WITHIN};
use super::workers::Workers;
use crate::fleet::Fleet;
use crate::{ConnectionId, SwarmConfig};

/// Times one worker is asked for the same item if the hub does not compute.
const MAX_TRIES_WITHOUT_HUB: usize = 3;
/// Attempts at one worker, overdue ones included, beyond which it gets no more.
const MAX_ATTEMPTS_PER_WORKER: usize = 2 * moex_protocol::limits::MAX_SLOTS as usize;
/// Computations of the hub in progress beyond which it is not used beside new workers: it is too slow for more.
const MAX_COMPUTES_BESIDE_TRIALS: usize = 4;
/// Two workers whose medians differ by less than a quarter, or than this, are equal: so few samples are not more
/// precise.
const EQUALS_WITHIN: Duration = Duration::from_micros(500);

/// The workers for a set of work items.
#[derive(Debug, Default)]
pub(super) struct Choice {
    /// Items with their workers, the best first; fewer than are needed where possible workers are busy.
    pub candidates: Vec<(usize, Vec<ConnectionId>)>,
    /// Items to send to new workers as well, whose speed is not known yet.
    pub trials: Vec<(usize, ConnectionId)>,
    /// Items for the hub.
    pub for_hub: Vec<usize>,
    /// Whether some item needs a worker that is busy.
    pub is_short: bool,
    /// Whether some item has no possible worker at all.
    pub is_uncovered: bool,
}

/// A possible worker for a work item.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    worker: ConnectionId,
    /// Times it failed at this item.
    n_failures: usize,
    /// Place among the wanted holders.
    rank: usize,
    is_fit: bool,
    is_free: bool,
    is_measured: bool,
    /// Whether a trial of it is in flight.
    is_on_trial: bool,
    /// Expected time to its answer.
    expected: Duration,
}

/// Everything that a choice depends on.
#[derive(Clone, Copy)]
pub(super) struct Chooser<'a> {
    pub config: &'a SwarmConfig,
    pub fleet: &'a Fleet,
    pub workers: &'a Workers,
    pub attempts: &'a AttemptTable,
    pub hub: &'a HubReplica,
}

impl Chooser<'_> {
    /// Chooses for these items of a job, in order. `asked`: for each item, the workers that already work on it.
    pub(super) fn choose(self, job: &Job, items: &[usize], asked: &AskedWorkers) -> Choice {
        let loads = self.attempts.load();
        let mut given: HashMap<ConnectionId, usize> = HashMap::new();
        let mut given_hub = 0;
        let mut choice = Choice::default();
        for item in items.iter().copied() {
            let n_pairs = job.layer.n_pairs(&[item]);
            let all = self.candidates(job, item, &asked.by[item], &loads, &given);
            let known: Vec<Candidate> = all.iter().copied().filter(|c| c.is_measured).collect();
            if let Some(new) = self.on_trial(&all, &known) {
                *given.entry(new).or_default() += n_pairs;
                choice.trials.push((item, new));
            }
            let pool = if known.is_empty() && !self.may_compute_beside() { &all } else { &known };
            let hub = self.hub.expected(given_hub + n_pairs);
            let needed = asked.missing(self.config, job, item).max(1);
            let is_for_hub = self.n_hosts(pool) < needed || self.is_for_hub(pool, hub);
            let chosen = if is_for_hub { None } else { best_first(pool) };
            match chosen {
                Some(chosen) => {
                    let chosen = if needed > 1 { self.one_a_host(chosen) } else { chosen };
                    let copies = if job.items[item].was_asked { 1 } else { self.config.hedge.copies() };
                    let chosen: Vec<_> = chosen.into_iter().take(copies.max(needed)).collect();
                    choice.is_short |= chosen.len() < needed;
                    chosen.iter().for_each(|worker| *given.entry(*worker).or_default() += n_pairs);
                    choice.candidates.push((item, chosen));
                }
                None => {
                    given_hub += n_pairs;
                    choice.is_uncovered |= all.is_empty();
                    choice.for_hub.push(item);
                }
            }
        }
        choice
    }

    /// Whether a work item has a possible worker.
    pub(super) fn is_askable(self, job: &Job, item: usize) -> bool {
        !self.candidates(job, item, &[], &HashMap::new(), &HashMap::new()).is_empty()
    }

    /// Whether a worker may get work now: it is healthy or, if nobody can replace it, at least alive.
    pub(super) fn is_usable(self, id: ConnectionId) -> bool {
        self.workers.is_usable(self.fleet, id, self.config.hub_compute)
    }

    /// The new worker to try an item with, if it ranks best and someone else can compute the item too.
    fn on_trial(self, all: &[Candidate], known: &[Candidate]) -> Option<ConnectionId> {
        if known.is_empty() && !self.may_compute_beside() {
            return None;
        }
        let first = best_first(all)?.first().copied()?;
        let is_new = |c: &&Candidate| c.worker == first && c.is_fit && !c.is_measured && !c.is_on_trial;
        all.iter().find(is_new).map(|candidate| candidate.worker)
    }

    /// The first worker of each address.
    fn one_a_host(self, workers: Vec<ConnectionId>) -> Vec<ConnectionId> {
        let mut hosts = BTreeSet::new();
        workers
            .into_iter()
            .filter(|id| self.workers.get(*id).is_some_and(|w| hosts.insert(w.host())))
            .collect()
    }

    /// Addresses of these workers; one is enough where one answer is.
    fn n_hosts(self, all: &[Candidate]) -> usize {
        if !self.config.wants_agreement() {
            return 1;
        }
        self.one_a_host(all.iter().map(|candidate| candidate.worker).collect()).len()
    }

    /// Whether the hub can compute items in parallel with new workers.
    fn may_compute_beside(self) -> bool {
        self.config.hub_compute && self.hub.n_computing() < MAX_COMPUTES_BESIDE_TRIALS
    }

    /// Holders that serve, have not failed at the item, and are not working on it; where two addresses have to agree, of
    /// addresses that nobody else works on it at.
    fn candidates(
        self,
        job: &Job,
        item: usize,
        asked: &[ConnectionId],
        loads: &HashMap<ConnectionId, Load>,
        given: &HashMap<ConnectionId, usize>,
    ) -> Vec<Candidate> {
        let Some(index) = self.fleet.catalog().index(job.block(item)) else { return Vec::new() };
        let tries = if self.config.hub_compute { 1 } else { MAX_TRIES_WITHOUT_HUB };
        let failures = &job.items[item].failures;
        let asked_hosts = asked.iter().filter_map(|id| Some(self.workers.get(*id)?.host()));
        let hosts = asked_hosts.chain(job.held_of(item).map(|held| &held.host));
        let hosts: Vec<_> = hosts.filter(|_| self.config.wants_agreement()).collect();
        let candidate = |id: &ConnectionId| {
            let n_failures = failures.iter().filter(|failed| *failed == id).count();
            if asked.contains(id) || n_failures >= tries || !self.is_usable(*id) {
                return None;
            }
            let worker = self.workers.get(*id).filter(|worker| !hosts.contains(&worker.host()))?;
            let load = loads.get(id).copied().unwrap_or_default();
            let n_pairs = job.layer.n_pairs(&[item]) + given.get(id).copied().unwrap_or(0);
            let is_late = worker.health.is_late();
            let mut expected = worker.expected(n_pairs, n_pairs as f64 * self.config.flops_per_pair());
            if is_late {
                // It already owes an answer, and may for long.
                expected = expected.max(self.config.timeout);
            }
            Some(Candidate {
                worker: *id,
                // The last resort comes after all others.
                n_failures: if worker.health.is_healthy() { n_failures } else { usize::MAX },
                rank: self.fleet.rank(index, worker.id()).unwrap_or(usize::MAX),
                is_fit: worker.tier().takes(job.layer.n_rows),
                is_free: load.n_in_time < worker.input_slots() && load.n_out < MAX_ATTEMPTS_PER_WORKER,
                is_measured: worker.is_measured(),
                is_on_trial: worker.probe.is_some(),
                expected: expected.saturating_mul(1 + load.n_in_time as u32),
            })
        };
        self.fleet.holders(index).iter().filter_map(candidate).collect()
    }

    /// Whether the hub should compute an item instead of these workers.
    fn is_for_hub(self, all: &[Candidate], hub: Option<Duration>) -> bool {
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

/// The free candidates in order of preference: the fitting ones, or the others if none fits.
fn best_first(all: &[Candidate]) -> Option<Vec<ConnectionId>> {
    let any_fit = all.iter().any(|candidate| candidate.is_fit);
    let mut free: Vec<&Candidate> = all.iter().filter(|c| c.is_fit == any_fit && c.is_free).collect();
    let best = free.iter().map(|candidate| candidate.expected).min().unwrap_or_default();
    let near = best.saturating_mul(5) / 4 + EQUALS_WITHIN;
    free.sort_by_key(|candidate| {
        // An unmeasured worker gets its chance to be measured.
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
