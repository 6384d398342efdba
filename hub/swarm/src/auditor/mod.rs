//! The auditor: detects workers that return wrong results, and quarantines them.
//!
//! An answer is compared in three ways, none of which a worker can tell from its ordinary work: answers that arrive twice
//! are compared with each other; one answer in `check_every`, drawn at random, is computed by the hub as well; and where
//! two workers disagree, the hub computes the same items and decides. With int8 activations answers are compared bit by bit,
//! since honest workers give the hub's own; in f32 up to what honest kernels differ by. A worker that was wrong
//! [`MAX_STRIKES`] times is quarantined by its id: its session ends, its joins are refused, and what it settled of layers in
//! flight is discarded.
//!
//! With [`Verify::Blocking`](crate::Verify) a layer's answers are checked as well, by whoever sums them and before a token
//! depends on them; what failed there and differs from the hub's own is a proof, and one is enough ([`crate::Swarm::caught`]).
//!
//! Limits: with [`Verify::Audit`](crate::Verify) a wrong answer that was used cannot be undone once its layer is finished, so
//! a token may be wrong before the worker is found out; the engine learns of it with the first wrong answer found, whether or
//! not that one was used, and drops what it has computed. With
//! `check_every` 1 no answer is used before the hub agrees, and the hub computes everything. A quarantined worker may come
//! back under another id; the join token is what keeps strangers out. Without hub compute nobody decides a disagreement: then
//! a worker that disagrees with two others is quarantined, which is right as long as wrong workers are fewer than honest ones.
//!
//! In: answers, and what they are to be compared with. Out: [`Finding`]s, which the swarm carries out in order. The
//! auditor knows neither connections nor what is in flight.

mod compare;
mod proofs;
mod register;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use moex_protocol::WorkerId;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use tracing::info;

pub use self::compare::TOLERANCE_NMSE;
pub(crate) use self::compare::difference;
pub use self::register::{Evidence, MAX_STRIKES, Quarantined};

use self::compare::{Comparison, compare};
use self::proofs::Proofs;
use self::register::StrikeRegister;
use super::dispatcher::{EncodedLayer, Part, Source, Winner, WorkerAnswer};
use super::{ComputeId, JobId, SwarmConfig, Verify};

/// Checks under way at a time; beyond it answers go unchecked, and disputes undecided.
const MAX_CHECKS: usize = 32;

/// Comparison, checks and quarantine. See the [module's description](self).
#[derive(Debug)]
pub(crate) struct Auditor {
    config: Arc<SwarmConfig>,
    /// Draws the answers to check.
    random: Xoshiro256PlusPlus,
    /// Checks under way, by the computation that decides them.
    checks: BTreeMap<ComputeId, Check>,
    register: StrikeRegister,
    proofs: Proofs,
    counts: AuditCounts,
}

/// What the hub computes to see which answers are right.
#[derive(Debug)]
pub(crate) struct Check {
    pub job: JobId,
    pub layer: Arc<EncodedLayer>,
    pub items: Vec<usize>,
    pub answers: Vec<WorkerAnswer>,
    pub sent: Duration,
}

/// What the auditor has found.
#[derive(Debug)]
pub(crate) enum Finding {
    /// A worker's answer was wrong: a strike.
    Wrong { worker: WorkerId, evidence: Evidence },
    /// The same, of a job that may still be in flight: what the worker settled of it is discarded first.
    WrongAndUsed { worker: WorkerId, job: JobId, evidence: Evidence },
    /// The hub agrees with a worker's answer to so many work items and pairs, which was withheld.
    Confirmed { worker: WorkerId, n_items: usize, n_pairs: usize },
    /// The hub agrees with a worker's answer to so many work items, which was used unchecked.
    True { worker: WorkerId, n_items: usize },
    /// Two workers disagree: the hub is to compute the same and decide.
    Disputed { job: JobId, items: Vec<usize>, answers: Vec<WorkerAnswer> },
}

/// Counts since the start. [`super::Totals`] says what each is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AuditCounts {
    pub compared: u64,
    pub checks: u64,
    pub mismatches: u64,
    pub doubts: u64,
    pub quarantined: u64,
}

impl Auditor {
    /// An auditor that suspects nobody.
    pub(crate) fn new(config: Arc<SwarmConfig>) -> Self {
        Self {
            random: Xoshiro256PlusPlus::seed_from_u64(config.seed),
            proofs: Proofs::new(config.probation.items),
            config,
            checks: BTreeMap::new(),
            register: StrikeRegister::default(),
            counts: AuditCounts::default(),
        }
    }

    pub(crate) fn counts(&self) -> AuditCounts {
        self.counts
    }

    /// Whether this worker's joins are refused.
    pub(crate) fn is_quarantined(&self, worker: WorkerId) -> bool {
        self.register.is_quarantined(worker)
    }

    /// The workers in quarantine, the first first.
    pub(crate) fn quarantined(&self) -> impl Iterator<Item = &Quarantined> {
        self.register.quarantined()
    }

    // Checks.

    /// Draws whether an answer is checked.
    pub(crate) fn draws_check(&mut self) -> bool {
        self.config.hub_compute
            && self.config.check_every > 0
            && self.random.random::<u64>() % u64::from(self.config.check_every) == 0
    }

    /// Whether one more check may be under way.
    pub(crate) fn may_check(&self) -> bool {
        self.checks.len() < MAX_CHECKS
    }

    /// The hub was asked to compute a check.
    pub(crate) fn check_started(&mut self, id: ComputeId, check: Check) {
        self.counts.checks += 1;
        self.checks.insert(id, check);
    }

    /// The check that a computation of the hub was for, which has ended.
    pub(crate) fn take_check(&mut self, id: ComputeId) -> Option<Check> {
        self.checks.remove(&id)
    }

    /// Compares the answers of a check with what the hub computed.
    pub(crate) fn decide(&mut self, check: Check, truth: &[Part]) -> Vec<Finding> {
        let Check { job, layer, answers, .. } = check;
        let truth: Vec<&Part> = truth.iter().collect();
        let mut findings = Vec::new();
        for WorkerAnswer { worker, parts } in answers {
            findings.push(match self.compare(&parts, &truth).first_difference {
                Some((item, nmse)) => {
                    let evidence = evidence(&layer, item, nmse, None);
                    Finding::WrongAndUsed { worker, job, evidence }
                }
                None => Finding::True { worker, n_items: parts.len() },
            });
        }
        findings
    }

    /// Compares answers that were withheld until the hub had computed the same.
    pub(crate) fn decide_withheld(
        &mut self,
        layer: &EncodedLayer,
        withheld: Vec<WorkerAnswer>,
        truth: &[Part],
    ) -> Vec<Finding> {
        let truth: Vec<&Part> = truth.iter().collect();
        let mut findings = Vec::new();
        for WorkerAnswer { worker, parts } in withheld {
            self.counts.checks += 1;
            findings.push(match self.compare(&parts, &truth).first_difference {
                Some((item, nmse)) => Finding::Wrong { worker, evidence: evidence(layer, item, nmse, None) },
                None => {
                    let items: Vec<usize> = parts.iter().map(|part| part.item).collect();
                    Finding::Confirmed { worker, n_items: items.len(), n_pairs: layer.n_pairs(&items) }
                }
            });
        }
        findings
    }

    /// Compares the workers' answers that a job has used with what the hub computed for it.
    pub(crate) fn review(
        &mut self,
        job: JobId,
        layer: &EncodedLayer,
        winners: &[Winner],
        truth: &[Part],
    ) -> Vec<Finding> {
        let truth: Vec<&Part> = truth.iter().collect();
        let mut findings = Vec::new();
        for winner in winners {
            let Source::Worker(worker) = winner.source else { continue };
            if let Some((item, nmse)) = self.compare([&winner.part], &truth).first_difference {
                let evidence = evidence(layer, item, nmse, None);
                findings.push(Finding::WrongAndUsed { worker, job, evidence });
            }
        }
        findings
    }

    /// Compares an answer that came second with what was used.
    pub(crate) fn cross_check(
        &mut self,
        job: JobId,
        layer: &EncodedLayer,
        winners: &[Winner],
        answer: &WorkerAnswer,
    ) -> Vec<Finding> {
        let used: Vec<&Part> = winners.iter().map(|winner| &winner.part).collect();
        let Some((item, nmse)) = self.compare(&answer.parts, &used).first_difference else {
            return Vec::new();
        };
        let Some(winner) = winners.iter().find(|winner| winner.part.item == item) else {
            return Vec::new();
        };
        let Some(part) = answer.parts.iter().find(|part| part.item == item) else {
            return Vec::new();
        };
        let worker = answer.worker;
        let evidence = |against| evidence(layer, item, nmse, against);
        match winner.source {
            Source::Hub => vec![Finding::Wrong { worker, evidence: evidence(None) }],
            Source::Worker(other) if self.config.hub_compute => {
                self.counts.mismatches += 1;
                info!(
                    worker = worker.short(),
                    other = other.short(),
                    nmse,
                    "two workers disagree: the hub decides"
                );
                let answers = vec![
                    WorkerAnswer { worker: other, parts: vec![winner.part.clone()] },
                    WorkerAnswer { worker, parts: vec![part.clone()] },
                ];
                vec![Finding::Disputed { job, items: vec![item], answers }]
            }
            Source::Worker(other) => vec![
                Finding::Wrong { worker, evidence: evidence(Some(other)) },
                Finding::Wrong { worker: other, evidence: evidence(Some(worker)) },
            ],
        }
    }

    // Who has proven itself.

    /// The hub has checked so many work items that a worker answered, and they are true. True if that proves its key.
    pub(crate) fn answered_truly(&mut self, worker: WorkerId, n_items: usize) -> bool {
        self.proofs.answered_truly(worker, n_items)
    }

    /// Whether a worker's key has proven itself.
    pub(crate) fn is_proven(&self, worker: WorkerId) -> bool {
        self.proofs.is_proven(worker)
    }

    // Strikes.

    /// Counts a wrong answer against its worker, which has to prove itself again. True if the worker is quarantined by it.
    pub(crate) fn strike(&mut self, worker: WorkerId, address: &str, evidence: Evidence) -> bool {
        self.counts.mismatches += 1;
        // Other answers of this worker were used as they came, and nobody knows which of them were wrong.
        let uses_unchecked = self.config.verify == Verify::Audit && !self.config.checks_everything();
        self.counts.doubts += u64::from(uses_unchecked);
        self.proofs.forget(worker);
        let max_strikes = if self.config.wants_products() { 1 } else { MAX_STRIKES };
        let is_quarantined = self.register.strike(worker, address, evidence, max_strikes);
        self.counts.quarantined += u64::from(is_quarantined);
        is_quarantined
    }

    fn compare<'a>(&mut self, answer: impl IntoIterator<Item = &'a Part>, truth: &[&Part]) -> Comparison {
        let comparison = compare(answer, truth, self.config.is_exact());
        self.counts.compared += comparison.n_compared as u64;
        comparison
    }
}

/// That a worker's answer for an item was off by `nmse`.
fn evidence(layer: &EncodedLayer, item: usize, nmse: f64, against: Option<WorkerId>) -> Evidence {
    let block = layer.block(item);
    Evidence { layer: block.layer, expert: block.expert, nmse, against }
}
