//! Remembers which workers answered wrong, and quarantines those that did so too often.

use std::collections::VecDeque;

use moex_protocol::{Block, ExpertId, LayerId, WorkerId};
use serde::{Deserialize, Serialize};

/// Wrong answers that put a worker into quarantine where they may have been used, and disagreements with others where the hub
/// does not decide. One may be a cosmic ray.
pub const MAX_STRIKES: usize = 2;
/// Workers remembered with strikes, and separately in quarantine; the oldest are forgotten first.
const MAX_REMEMBERED: usize = 1024;

/// A wrong answer, and how it was found out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// The layer.
    pub layer: LayerId,
    /// The first expert whose rows differ.
    pub expert: ExpertId,
    /// By how much: the squared error as a part of the squared values. Infinity is written as the largest number.
    pub nmse: f64,
    /// The worker whose answer it was compared with; none if it was the hub's.
    pub against: Option<WorkerId>,
}

impl Evidence {
    /// A worker answered for this block with values that are not finite.
    pub(crate) fn not_finite(block: Block) -> Self {
        Self { layer: block.layer, expert: block.expert, nmse: f64::MAX, against: None }
    }
}

/// A worker that is refused for wrong answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quarantined {
    /// Its id.
    pub id: WorkerId,
    /// Where it connected from.
    pub address: String,
    /// Its wrong answers.
    pub evidence: Vec<Evidence>,
}

/// The strikes of each worker.
#[derive(Debug, Default)]
pub(super) struct StrikeRegister {
    suspects: VecDeque<(WorkerId, Vec<Evidence>)>,
    quarantined: VecDeque<Quarantined>,
}

impl StrikeRegister {
    /// A worker answered wrong. True if it is quarantined by this: if the hub's own answers differ from `max_strikes` of its, or
    /// those of [`MAX_STRIKES`] others.
    pub(super) fn strike(
        &mut self,
        worker: WorkerId,
        address: &str,
        evidence: Evidence,
        max_strikes: usize,
    ) -> bool {
        if self.is_quarantined(worker) {
            return false;
        }
        // A dispute that the hub cannot decide counts once for each opponent.
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
        // Differences from the hub's answers and from peers' are counted apart: one kind has to suffice by itself.
        let n_by_hub = held.iter().filter(|evidence| evidence.against.is_none()).count();
        if n_by_hub < max_strikes && held.len() - n_by_hub < MAX_STRIKES {
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
    use super::*;

    fn evidence(against: Option<u128>) -> Evidence {
        let against = against.map(WorkerId);
        Evidence { layer: LayerId(3), expert: ExpertId(42), nmse: 1.0, against }
    }

    #[test]
    fn two_strikes_are_a_quarantine_and_a_peer_counts_once() {
        let mut register = StrikeRegister::default();
        let worker = WorkerId(7);
        assert!(!register.strike(worker, "here", evidence(None), MAX_STRIKES));
        assert!(!register.is_quarantined(worker));
        assert!(register.strike(worker, "here", evidence(None), MAX_STRIKES));
        assert!(
            register.is_quarantined(worker) && !register.strike(worker, "here", evidence(None), MAX_STRIKES)
        );
        assert_eq!(register.quarantined().next().unwrap().evidence.len(), 2);

        let strict = WorkerId(9);
        assert!(!register.strike(strict, "here", evidence(Some(1)), 1), "a peer's word is no proof");
        assert!(register.strike(strict, "here", evidence(None), 1), "the hub's is");

        let other = WorkerId(8);
        assert!(!register.strike(other, "there", evidence(Some(1)), MAX_STRIKES));
        assert!(!register.strike(other, "there", evidence(Some(1)), MAX_STRIKES), "the same opponent");
        assert!(!register.strike(other, "there", evidence(None), MAX_STRIKES), "another kind of proof");
        assert!(register.strike(other, "there", evidence(Some(2)), MAX_STRIKES));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut register = StrikeRegister::default();
        for id in 0..3 * MAX_REMEMBERED as u128 {
            register.strike(WorkerId(id), "", evidence(None), MAX_STRIKES);
            register.strike(WorkerId(id), "", evidence(None), MAX_STRIKES);
            register.strike(WorkerId(u128::MAX - id), "", evidence(None), MAX_STRIKES);
        }
        assert_eq!((register.suspects.len(), register.quarantined.len()), (MAX_REMEMBERED, MAX_REMEMBERED));
    }
}
