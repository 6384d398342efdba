//! Agreement: what a worker answered is held until a worker at another address has answered the same bits.
//!
//! ```text
//! part --> is another answer to its item held? --no, or of the same address--> held, until there is one
//!            |yes, with the same bits: the item is settled
//!            |yes, with others: disputed; the hub computes the item, and who answered otherwise was wrong
//! ```
//!
//! One of the two may be a digest of the rows (`replies` chooses whose): it agrees with rows of which it is the digest. Two
//! digests say nothing about each other, and wait for rows.

use std::sync::Arc;

use moex_protocol::WorkerId;

use super::job::{Acceptance, Job, PendingAnswer, Source, Winner, WorkerAnswer};
use super::parts::Part;

impl Job {
    /// As [`Job::accept`], of a worker whose answers settle nothing by themselves.
    pub(super) fn accept_if_agreed(
        &mut self,
        worker: WorkerId,
        host: &Arc<str>,
        parts: Vec<Part>,
    ) -> Acceptance {
        let mut acceptance = Acceptance::default();
        for part in parts {
            let item = part.item;
            if self.items[item].is_settled {
                acceptance.redundant.push(part);
                continue;
            }
            let has_bits = |held: &PendingAnswer| held.part.has_bits_of(&part);
            let differs = self.held_of(item).any(|held| has_bits(held) == Some(false));
            let agrees = self.held_of(item).any(|held| held.host != *host && has_bits(held) == Some(true));
            self.items[item].is_disputed |= differs;
            self.held.push(PendingAnswer { worker, host: host.clone(), part });
            if !agrees || self.items[item].is_disputed {
                continue;
            }
            let mut used = None;
            for PendingAnswer { worker: its, part, .. } in
                self.held.extract_if(.., |held| held.part.item == item)
            {
                if its != worker {
                    acceptance.agreed.push((its, item));
                }
                if !part.is_digest() {
                    used = Some(Winner { source: Source::Worker(its), part });
                }
            }
            // There are rows: two digests do not agree.
            if let Some(used) = used {
                acceptance.settled.push(item);
                self.items[item].is_settled = true;
                self.push_winner(used);
            }
        }
        acceptance
    }

    /// The answers held for an item.
    pub(super) fn held_of(&self, item: usize) -> impl Iterator<Item = &PendingAnswer> {
        self.held.iter().filter(move |held| held.part.item == item)
    }

    /// Whether an answer with rows is held for an item.
    pub(super) fn holds_rows(&self, item: usize) -> bool {
        self.held_of(item).any(|held| !held.part.is_digest())
    }

    /// Takes the answers that wait for the hub to compute these items.
    pub(super) fn take_waiting(&mut self, items: &[usize]) -> Vec<WorkerAnswer> {
        let is_known = |answer: &WorkerAnswer| answer.parts.iter().all(|part| items.contains(&part.item));
        let mut waiting: Vec<WorkerAnswer> =
            self.withheld.extract_if(.., |answer| is_known(answer)).collect();
        let held = self.held.extract_if(.., |held| items.contains(&held.part.item));
        waiting.extend(held.map(|held| WorkerAnswer { worker: held.worker, parts: vec![held.part] }));
        waiting
    }
}
