//! Counts the true answers of each worker's key, until they are enough to trust it with more of the model.

use std::collections::{HashMap, HashSet, VecDeque};

use moex_protocol::WorkerId;

/// Keys remembered that have given enough true answers, and separately those that have not; of each the oldest are
/// forgotten first. So many new keys push out none that has proven itself.
const MAX_REMEMBERED: usize = 4096;

/// The keys that have given true answers.
#[derive(Debug)]
pub(super) struct Proofs {
    /// Work items that a key has to answer truly.
    needed: u64,
    counts: HashMap<WorkerId, u64>,
    counted: VecDeque<WorkerId>,
    proven: HashSet<WorkerId>,
    order: VecDeque<WorkerId>,
}

impl Proofs {
    pub(super) fn new(needed: u64) -> Self {
        let (counts, proven) = (HashMap::new(), HashSet::new());
        Self { needed, counts, counted: VecDeque::new(), proven, order: VecDeque::new() }
    }

    /// A worker answered so many work items truly. True if that proves its key.
    pub(super) fn answered_truly(&mut self, worker: WorkerId, n_items: usize) -> bool {
        if self.proven.contains(&worker) {
            return false;
        }
        if !self.counts.contains_key(&worker) {
            if self.counted.len() == MAX_REMEMBERED
                && let Some(oldest) = self.counted.pop_front()
            {
                self.counts.remove(&oldest);
            }
            self.counted.push_back(worker);
        }
        let count = self.counts.entry(worker).or_default();
        *count += n_items as u64;
        if *count < self.needed {
            return false;
        }
        self.forget(worker);
        if self.order.len() == MAX_REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.proven.remove(&oldest);
        }
        self.order.push_back(worker);
        self.proven.insert(worker)
    }

    /// A worker answered wrong: nothing it has answered counts.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        if self.counts.remove(&worker).is_some() {
            self.counted.retain(|counted| *counted != worker);
        }
        if self.proven.remove(&worker) {
            self.order.retain(|proven| *proven != worker);
        }
    }

    pub(super) fn is_proven(&self, worker: WorkerId) -> bool {
        self.proven.contains(&worker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_proven_once_and_a_wrong_answer_ends_that() {
        let mut proofs = Proofs::new(10);
        let worker = WorkerId(1);
        assert!(!proofs.answered_truly(worker, 9) && !proofs.is_proven(worker));
        proofs.forget(worker);
        assert!(!proofs.answered_truly(worker, 9), "it begins again");
        assert!(proofs.answered_truly(worker, 1) && proofs.is_proven(worker));
        assert!(!proofs.answered_truly(worker, 100), "no news");
        proofs.forget(worker);
        assert!(!proofs.is_proven(worker));
    }

    #[test]
    fn what_is_remembered_is_bounded_and_new_keys_push_out_no_proven_one() {
        let mut proofs = Proofs::new(2);
        proofs.answered_truly(WorkerId(0), 2);
        for id in 1..3 * MAX_REMEMBERED as u128 {
            proofs.answered_truly(WorkerId(id), 1);
        }
        assert!(proofs.is_proven(WorkerId(0)));
        assert_eq!((proofs.counts.len(), proofs.counted.len()), (MAX_REMEMBERED, MAX_REMEMBERED));
        for id in 1..2 * MAX_REMEMBERED as u128 {
            proofs.answered_truly(WorkerId(id << 64), 2);
        }
        assert!(!proofs.is_proven(WorkerId(0)));
        assert_eq!((proofs.proven.len(), proofs.order.len()), (MAX_REMEMBERED, MAX_REMEMBERED));
    }
}
