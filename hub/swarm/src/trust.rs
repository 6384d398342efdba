//! Who answered what nobody else would have, how that is found out, and what it costs.
//!
//! Three ways to find out, none of which a worker can tell from its ordinary work: answers that arrive twice are compared;
//! one attempt in `check_every`, drawn at random, is computed by the hub as well; and where two workers disagree, the hub
//! computes it and decides. A worker found out [`MAX_OFFENCES`] times is quarantined by its id: its connection ends, its
//! joins are refused, and what it contributed to layers still in flight is taken back.
//!
//! What this does not do: a wrong answer that has won cannot be undone for a layer that is over, so a token may be wrong
//! before its cause is found. With `check_every` 1 no answer is used before the hub agrees, at the price of the hub
//! computing everything. A quarantined worker may come back under another id: the join token is what keeps strangers out.
//! Without hub compute a disagreement has no judge: then a worker that disagrees with two others is the one to go, which
//! is right as long as liars do not outnumber the honest.

use std::collections::VecDeque;

use moex_protocol::{ExpertId, LayerId, WorkerId};
use serde::{Deserialize, Serialize};

use super::combine::Part;

/// Two honest answers differ by less, as sum((a - b)^2) / sum(b^2). The largest honest differences: results rounded to f16
/// 1e-7, to bf16 5e-6; f16 arithmetic on a GPU 1e-6; activations quantised to int8 before each of two products 1.5e-4, and
/// results in int8 on the wire 1e-4. A wrong expert, row or gate is off by 0.1 and more.
pub const TOLERANCE_NMSE: f64 = 1e-3;
/// Below this root of the mean square a difference is rounding, however small the values: the least f16 is 6e-8.
const ROUNDING_RMS: f64 = 2e-7;
/// Answers found wrong that make a quarantine. One may be a cosmic ray.
pub const MAX_OFFENCES: usize = 2;
/// Workers remembered with offences, and separately in quarantine; the oldest are forgotten first.
const MAX_REMEMBERED: usize = 1024;

/// A wrong answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// The layer.
    pub layer: LayerId,
    /// The first expert whose rows differ.
    pub expert: ExpertId,
    /// By how much; beyond every number is written as the largest one.
    pub nmse: f64,
    /// Whose answer it was compared with; none is the hub's.
    pub against: Option<WorkerId>,
}

/// A worker that is not asked any more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quarantined {
    /// Its id.
    pub id: WorkerId,
    /// Where it connected from.
    pub address: String,
    /// What it was found out by.
    pub evidence: Vec<Evidence>,
}

/// NMSE of `claim` beside `truth`, (rows, D) each, if it is beyond what honest kernels differ by.
pub(super) fn differs(claim: &[f32], truth: &[f32]) -> Option<f64> {
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
    let pairs = claim.iter().zip(truth);
    let error = square(&mut pairs.map(|(claim, truth)| f64::from(*claim) - f64::from(*truth)));
    let power = square(&mut truth.iter().map(|value| f64::from(*value)));
    let rounding = ROUNDING_RMS * ROUNDING_RMS * truth.len() as f64;
    (claim.len() != truth.len() || error > TOLERANCE_NMSE * power + rounding)
        .then(|| (error / power).min(f64::MAX))
}

/// The first part of `claim` that differs from one of `truth` for the same cells, and by how much; and how many there were
/// to compare. Sums over different experts cannot be compared.
pub(super) fn compare<'a>(
    claim: impl IntoIterator<Item = &'a Part>,
    truth: &[&Part],
) -> (usize, Option<(usize, f64)>) {
    let mut n_compared = 0;
    let mut first = None;
    for part in claim {
        if let Some(other) = truth.iter().find(|other| other.cells == part.cells) {
            n_compared += 1;
            if let Some(nmse) = differs(&part.values(), &other.values()) {
                first = first.or(part.cells.first().map(|cell| (*cell, nmse)));
            }
        }
    }
    (n_compared, first)
}

/// What is held against whom.
#[derive(Debug, Default)]
pub(super) struct Register {
    suspects: VecDeque<(WorkerId, Vec<Evidence>)>,
    quarantined: VecDeque<Quarantined>,
}

impl Register {
    /// A worker answered wrong. True if that makes it one too many, and it is quarantined now.
    pub(super) fn offence(&mut self, worker: WorkerId, address: &str, evidence: Evidence) -> bool {
        if self.is_quarantined(worker) {
            return false;
        }
        // A dispute without a judge counts once for each opponent.
        let is_known = |known: &Evidence| evidence.against.is_some() && known.against == evidence.against;
        let at = match self.suspects.iter().position(|(suspect, _)| *suspect == worker) {
            Some(at) => at,
            None => {
                if self.suspects.len() == MAX_REMEMBERED {
                    self.suspects.pop_front();
                }
                self.suspects.push_back((worker, Vec::new()));
                self.suspects.len() - 1
            }
        };
        let held = &mut self.suspects[at].1;
        if held.iter().any(is_known) {
            return false;
        }
        held.push(evidence);
        // The hub's word and a peer's are of two kinds: each has to suffice by itself.
        let n_by_hub = held.iter().filter(|evidence| evidence.against.is_none()).count();
        if n_by_hub.max(held.len() - n_by_hub) < MAX_OFFENCES {
            return false;
        }
        if let Some((_, evidence)) = self.suspects.remove(at) {
            if self.quarantined.len() == MAX_REMEMBERED {
                self.quarantined.pop_front();
            }
            self.quarantined.push_back(Quarantined { id: worker, address: address.to_owned(), evidence });
        }
        true
    }

    pub(super) fn is_quarantined(&self, worker: WorkerId) -> bool {
        self.quarantined.iter().any(|quarantined| quarantined.id == worker)
    }

    pub(super) fn quarantined(&self) -> impl Iterator<Item = &Quarantined> {
        self.quarantined.iter()
    }
}

#[cfg(test)]
mod tests {
    use half::f16;
    use proptest::prelude::*;

    use super::*;

    fn evidence(against: Option<u128>) -> Evidence {
        let against = against.map(WorkerId);
        Evidence { layer: LayerId(3), expert: ExpertId(42), nmse: 1.0, against }
    }

    proptest! {
        #[test]
        fn rounding_is_no_offence_and_a_wrong_gate_is(
            values in proptest::collection::vec(-3.0f32..3.0, 64), scale in -24i32..8,
        ) {
            let truth: Vec<f32> = values.iter().map(|v| f16::from_f32(v * (scale as f32).exp2()).to_f32()).collect();
            let claim: Vec<f32> = truth.iter().map(|v| f16::from_f32(v * 1.0009).to_f32()).collect();
            prop_assert_eq!(differs(&claim, &truth), None);
            let rms = (truth.iter().map(|v| v * v).sum::<f32>() / 64.0).sqrt();
            let wrong: Vec<f32> = truth.iter().map(|v| v * 1.5).collect();
            prop_assert!(rms < 1e-6 || differs(&wrong, &truth).is_some());
        }
    }

    #[test]
    fn values_where_there_are_none_differ() {
        assert_eq!(differs(&[0.0; 4], &[0.0; 4]), None);
        assert_eq!(differs(&[1.0; 4], &[0.0; 4]), Some(f64::MAX));
        assert!(differs(&[0.0; 4], &[1.0; 4]).is_some() && differs(&[1.0; 3], &[1.0; 4]).is_some());
        assert!(differs(&[1e30; 4], &[1.0; 4]).is_some());
    }

    #[test]
    fn two_offences_are_a_quarantine_and_a_peer_counts_once() {
        let mut register = Register::default();
        let worker = WorkerId(7);
        assert!(!register.offence(worker, "here", evidence(None)));
        assert!(!register.is_quarantined(worker));
        assert!(register.offence(worker, "here", evidence(None)));
        assert!(register.is_quarantined(worker) && !register.offence(worker, "here", evidence(None)));
        assert_eq!(register.quarantined().next().unwrap().evidence.len(), 2);

        let other = WorkerId(8);
        assert!(!register.offence(other, "there", evidence(Some(1))));
        assert!(!register.offence(other, "there", evidence(Some(1))), "the same opponent");
        assert!(!register.offence(other, "there", evidence(None)), "another kind of proof");
        assert!(register.offence(other, "there", evidence(Some(2))));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut register = Register::default();
        for id in 0..3 * MAX_REMEMBERED as u128 {
            register.offence(WorkerId(id), "", evidence(None));
            register.offence(WorkerId(id), "", evidence(None));
            register.offence(WorkerId(u128::MAX - id), "", evidence(None));
        }
        assert_eq!((register.suspects.len(), register.quarantined.len()), (MAX_REMEMBERED, MAX_REMEMBERED));
    }
}
