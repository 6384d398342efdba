//! The blocks that one worker holds, loads and should hold, and the next step towards that.
//!
//! Blocks are requested in windows, in the order that raises coverage fastest. A block is dropped once its new holders
//! have reported it; the memory budget bounds resident and loading blocks together.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use super::catalog::BlockIndex;
use super::expert_load::ExpertLoad;
use super::load_failures::LoadFailures;
use crate::ConnectionId;

/// Maximum blocks requested and not reported yet: later windows adapt to the coverage.
const MAX_LOADING: usize = 512;

/// The workers that have reported each block resident, by block index.
#[derive(Debug, Default)]
pub(super) struct Holders(Vec<Vec<ConnectionId>>);

impl Holders {
    pub(super) fn new(n_blocks: usize) -> Self {
        Self(vec![Vec::new(); n_blocks])
    }

    pub(super) fn of(&self, index: BlockIndex) -> &[ConnectionId] {
        self.0.get(index.0 as usize).map_or(&[], Vec::as_slice)
    }

    fn add(&mut self, index: BlockIndex, worker: ConnectionId) {
        let holders = &mut self.0[index.0 as usize];
        if !holders.contains(&worker) {
            holders.push(worker);
        }
    }

    fn remove(&mut self, index: BlockIndex, worker: ConnectionId) {
        self.0[index.0 as usize].retain(|holder| *holder != worker);
    }
}

/// State of a block that a worker was told to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockState {
    Loading,
    Resident,
}

/// One worker's blocks.
#[derive(Debug)]
pub(crate) struct Residency {
    worker: ConnectionId,
    /// Blocks that fit the memory budget.
    capacity: usize,
    blocks: BTreeMap<BlockIndex, BlockState>,
    n_loading: usize,
    /// By block: its rank among the wanted holders.
    wanted: BTreeMap<BlockIndex, usize>,
    failures: LoadFailures,
    epoch: u64,
}

/// Blocks to load, in order, and blocks to drop.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ResidencyStep {
    pub hold: Vec<BlockIndex>,
    pub drop: Vec<BlockIndex>,
}

impl ResidencyStep {
    pub(super) fn is_empty(&self) -> bool {
        self.hold.is_empty() && self.drop.is_empty()
    }
}

impl Residency {
    pub(super) fn new(worker: ConnectionId, capacity: usize) -> Self {
        let (blocks, wanted, failures) = (BTreeMap::new(), BTreeMap::new(), LoadFailures::default());
        Self { worker, capacity, blocks, n_loading: 0, wanted, failures, epoch: 0 }
    }

    /// Sets the blocks that the worker should hold, with its rank for each. True if they changed.
    pub(super) fn want(&mut self, wanted: impl IntoIterator<Item = (BlockIndex, usize)>) -> bool {
        let wanted = wanted.into_iter().collect();
        let before = std::mem::replace(&mut self.wanted, wanted);
        before != self.wanted
    }

    /// Whether it holds blocks temporarily, until other workers hold them.
    pub(super) fn stands_in(&self) -> bool {
        self.blocks.keys().any(|block| !self.wanted.contains_key(block))
    }

    /// The next step. It loads blocks that no worker holds first, then first replicas, and among these the most used
    /// blocks. `is_replaced(block)`: the workers that should hold it instead of this one do. `may_uncover`: the hub
    /// computes uncovered blocks, so that a swap between two full workers may begin with a drop.
    pub(super) fn next_step(
        &mut self,
        now: Duration,
        holders: &mut Holders,
        expert_load: &ExpertLoad,
        is_replaced: impl Fn(BlockIndex, &Holders) -> bool,
        may_uncover: bool,
    ) -> ResidencyStep {
        let mut step = ResidencyStep::default();
        let unwanted: Vec<(BlockIndex, BlockState)> =
            self.blocks.iter().filter(|(b, _)| !self.wanted.contains_key(b)).map(|(b, h)| (*b, *h)).collect();
        for (block, held) in &unwanted {
            if *held == BlockState::Loading || is_replaced(*block, holders) {
                self.forget(*block, holders);
                step.drop.push(*block);
            }
        }
        if self.n_loading > MAX_LOADING / 2 {
            return step;
        }
        let mut lacking: Vec<(bool, usize, Reverse<u32>, BlockIndex)> = self
            .wanted
            .iter()
            .filter(|(block, _)| !self.blocks.contains_key(block) && self.failures.may_ask(**block, now))
            .map(|(block, rank)| {
                (!holders.of(*block).is_empty(), *rank, expert_load.most_used_first(*block), *block)
            })
            .collect();
        lacking.sort_unstable();
        let n = lacking.len().min(MAX_LOADING - self.n_loading);
        // Two full workers that want each other's blocks would wait forever: drop blocks that another worker holds too.
        for (block, _) in unwanted {
            if self.blocks.len() + n <= self.capacity {
                break;
            }
            if self.blocks.contains_key(&block) && (may_uncover || holders.of(block).len() > 1) {
                self.forget(block, holders);
                step.drop.push(block);
            }
        }
        let room = self.capacity.saturating_sub(self.blocks.len());
        step.hold = lacking.into_iter().take(n.min(room)).map(|(.., block)| block).collect();
        for block in &step.hold {
            self.blocks.insert(*block, BlockState::Loading);
        }
        self.n_loading += step.hold.len();
        step
    }

    /// The worker has loaded this block. False if it was not requested, or has been dropped since.
    pub(super) fn loaded(&mut self, block: BlockIndex, holders: &mut Holders) -> bool {
        match self.blocks.get_mut(&block) {
            Some(held @ BlockState::Loading) => {
                *held = BlockState::Resident;
                self.n_loading -= 1;
                self.failures.loaded(block);
                holders.add(block, self.worker);
                true
            }
            Some(BlockState::Resident) | None => false,
        }
    }

    /// The worker could not load this block. True if it loses blocks by that.
    pub(super) fn failed(&mut self, now: Duration, block: BlockIndex, holders: &mut Holders) -> bool {
        if self.blocks.get(&block) != Some(&BlockState::Loading) {
            return false;
        }
        self.forget(block, holders);
        self.failures.failed(block, now)
    }

    /// Whether a barred worker may load blocks again from now on.
    pub(super) fn may_load_again(&mut self, now: Duration) -> bool {
        self.failures.end_bar(now)
    }

    /// Whether a failed load may be retried now.
    pub(super) fn has_retry_due(&self, now: Duration) -> bool {
        self.failures.has_due(now)
    }

    /// The worker does not hold this block.
    pub(super) fn forget(&mut self, block: BlockIndex, holders: &mut Holders) {
        if self.blocks.remove(&block) == Some(BlockState::Loading) {
            self.n_loading -= 1;
        }
        holders.remove(block, self.worker);
    }

    /// The worker has left.
    pub(super) fn clear(&mut self, holders: &mut Holders) {
        for block in std::mem::take(&mut self.blocks).into_keys() {
            holders.remove(block, self.worker);
        }
        self.n_loading = 0;
    }

    /// Counts the messages that change what the worker holds.
    pub(super) fn next_epoch(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch
    }

    /// The lost ones among all blocks: loading them, or any blocks, failed too often.
    pub(super) fn lost(&self, all: impl Iterator<Item = BlockIndex>) -> HashSet<BlockIndex> {
        let is_lost = |block: &BlockIndex| {
            let is_resident = self.blocks.get(block) == Some(&BlockState::Resident);
            !is_resident && (self.failures.is_barred() || self.failures.has_lost(*block))
        };
        if self.failures.is_clean() { HashSet::new() } else { all.filter(is_lost).collect() }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn n_wanted(&self) -> usize {
        self.wanted.len()
    }

    pub(crate) fn n_resident(&self) -> usize {
        self.blocks.len() - self.n_loading
    }

    /// Whether the block is resident or being loaded.
    pub(super) fn holds(&self, block: BlockIndex) -> bool {
        self.blocks.contains_key(&block)
    }

    pub(super) fn wants(&self, block: BlockIndex) -> bool {
        self.wanted.contains_key(&block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: usize = 2_000;
    const NOW: Duration = Duration::from_secs(100);

    fn indices(range: std::ops::Range<u32>) -> impl Iterator<Item = BlockIndex> {
        range.map(BlockIndex)
    }

    fn never(_: BlockIndex, _: &Holders) -> bool {
        false
    }

    #[test]
    fn what_nobody_holds_comes_first_then_first_replicas() {
        let mut holders = Holders::new(N);
        let mut residency = Residency::new(ConnectionId(1), 10);
        holders.add(BlockIndex(0), ConnectionId(2));
        residency.want([(BlockIndex(0), 0), (BlockIndex(1), 1), (BlockIndex(2), 0)]);
        let step = residency.next_step(NOW, &mut holders, &ExpertLoad::new(N), never, false);
        assert_eq!(step.hold, [BlockIndex(2), BlockIndex(1), BlockIndex(0)]);
        assert!(residency.next_step(NOW, &mut holders, &ExpertLoad::new(N), never, false).is_empty());
    }

    #[test]
    fn hot_blocks_come_first_among_equals() {
        let mut expert_load = ExpertLoad::new(N);
        expert_load.count([(BlockIndex(2), 5), (BlockIndex(1), 3), (BlockIndex(3), 9)]);
        let mut residency = Residency::new(ConnectionId(1), 10);
        residency.want((0..3).map(|block| (BlockIndex(block), 0)).chain([(BlockIndex(3), 1)]));
        let step = residency.next_step(NOW, &mut Holders::new(N), &expert_load, never, false);
        assert_eq!(step.hold, [2, 1, 0, 3].map(BlockIndex));
    }

    #[test]
    fn loads_go_in_windows_within_the_budget() {
        let mut holders = Holders::new(N);
        let mut residency = Residency::new(ConnectionId(1), 700);
        residency.want(indices(0..1_000).map(|block| (block, 0)));
        let first = residency.next_step(NOW, &mut holders, &ExpertLoad::new(N), never, false).hold;
        assert_eq!(first.len(), MAX_LOADING);
        for block in &first[..300] {
            assert!(residency.loaded(*block, &mut holders));
        }
        assert_eq!(
            residency.next_step(NOW, &mut holders, &ExpertLoad::new(N), never, false).hold.len(),
            700 - MAX_LOADING
        );
        assert_eq!((residency.n_resident(), holders.of(first[0])), (300, &[ConnectionId(1)][..]));
    }

    #[test]
    fn a_block_is_dropped_only_when_its_new_holder_has_it() {
        let mut holders = Holders::new(N);
        let mut residency = Residency::new(ConnectionId(1), 10);
        residency.want([(BlockIndex(7), 0)]);
        residency.next_step(NOW, &mut holders, &ExpertLoad::new(N), never, false);
        residency.loaded(BlockIndex(7), &mut holders);
        residency.want(std::iter::empty());
        assert!(residency.next_step(NOW, &mut holders, &ExpertLoad::new(N), never, false).is_empty());
        let step = residency.next_step(NOW, &mut holders, &ExpertLoad::new(N), |_, _| true, false);
        assert_eq!(step.drop, [BlockIndex(7)]);
        assert!(holders.of(BlockIndex(7)).is_empty());
        assert!(!residency.loaded(BlockIndex(7), &mut holders), "a report that crossed the drop");
    }

    #[test]
    fn two_full_workers_can_swap() {
        let mut holders = Holders::new(N);
        let mut residency = Residency::new(ConnectionId(1), 1);
        residency.want([(BlockIndex(0), 0)]);
        residency.next_step(NOW, &mut holders, &ExpertLoad::new(N), never, false);
        residency.loaded(BlockIndex(0), &mut holders);
        residency.want([(BlockIndex(1), 0)]);
        assert!(
            residency.next_step(NOW, &mut holders, &ExpertLoad::new(N), never, false).is_empty(),
            "the only copy stays"
        );
        holders.add(BlockIndex(0), ConnectionId(9));
        let step = residency.next_step(NOW, &mut holders, &ExpertLoad::new(N), never, false);
        assert_eq!(step, ResidencyStep { hold: vec![BlockIndex(1)], drop: vec![BlockIndex(0)] });
    }

    #[test]
    fn three_failed_loads_cost_the_block() {
        let mut holders = Holders::new(N);
        let mut residency = Residency::new(ConnectionId(1), 10);
        residency.want([(BlockIndex(0), 0)]);
        let mut now = NOW;
        for failure in 1..=3 {
            assert_eq!(
                residency.next_step(now, &mut holders, &ExpertLoad::new(N), never, false).hold,
                [BlockIndex(0)]
            );
            assert_eq!(residency.failed(now, BlockIndex(0), &mut holders), failure == 3);
            assert!(
                residency.next_step(now, &mut holders, &ExpertLoad::new(N), never, false).is_empty(),
                "not at once"
            );
            now += Duration::from_secs(10);
        }
        assert!(residency.next_step(now, &mut holders, &ExpertLoad::new(N), never, false).is_empty());
        assert_eq!(residency.lost(indices(0..5)), HashSet::from([BlockIndex(0)]));
        assert!(!residency.failed(now, BlockIndex(0), &mut holders), "a report of something never asked");
    }

    #[test]
    fn a_worker_that_loads_nothing_keeps_what_it_holds() {
        let mut holders = Holders::new(N);
        let mut residency = Residency::new(ConnectionId(1), 100);
        residency.want(indices(0..50).map(|block| (block, 0)));
        residency.next_step(NOW, &mut holders, &ExpertLoad::new(N), never, false);
        residency.loaded(BlockIndex(3), &mut holders);
        let n_losses = indices(4..50).filter(|block| residency.failed(NOW, *block, &mut holders)).count();
        assert_eq!(n_losses, 1, "what follows is no news");
        let lost = residency.lost(indices(0..100));
        assert!(lost.len() == 99 && !lost.contains(&BlockIndex(3)));
        assert!(
            residency.may_load_again(NOW + Duration::from_secs(60))
                && residency.lost(indices(0..100)).is_empty()
        );
    }
}
