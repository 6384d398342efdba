//! The expert blocks that this worker holds, their slots, and the blocks that it still has to load.
//!
//! A slot is a place in the engine that holds one block. The table hands out slots, keeps the load order the hub asked for,
//! and never gives a slot away while a computation may read it. It moves no bytes.
//!
//! ```text
//!            hold                 next_load              loaded(Ok)
//! (unknown) ------> queued ------------------> loading ------------> resident
//!                     |  drop                    |  drop: slot        |  drop        |  session lost
//!                     v                          v  returns on loaded v              v
//!                 (unknown)                  (unknown)            (unknown)        kept --- hold, same hash ---> resident
//! ```

use std::collections::{BTreeMap, VecDeque};

use moex_protocol::{Block, BlockSource};

/// How many blocks of a hub load at the same time: enough to hide a round trip, few enough to need little memory.
pub const MAX_LOADS_IN_FLIGHT: usize = 4;

/// The immediate outcome of a request to hold a block.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HoldOutcome {
    /// The bytes are already in a slot, from this session or an earlier one.
    Resident,
    /// It is queued for loading.
    Queued,
    /// Every slot is assigned.
    NoRoom,
}

/// The outcome of a load.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// The block now answers dispatches.
    Resident,
    /// It was dropped meanwhile, or never requested.
    Unwanted,
    /// The load failed; the hub must be told why.
    Failed,
}

/// The slots and the blocks in them.
#[derive(Debug, Default)]
pub(super) struct BlockTable {
    n_slots: usize,
    free: Vec<u32>,
    held: BTreeMap<Block, HeldBlock>,
    queue: VecDeque<BlockSource>,
    loading: BTreeMap<Block, Loading>,
    /// Slots that the running computation reads; those released meanwhile wait here.
    pinned: Vec<u32>,
    released_while_pinned: Vec<u32>,
}

#[derive(Debug)]
struct HeldBlock {
    slot: u32,
    blake3: String,
    /// Assigned by the hub in this session. Other blocks are kept only until their slot is needed.
    claimed: bool,
}

#[derive(Debug)]
struct Loading {
    slot: u32,
    blake3: String,
    cancelled: bool,
}

impl BlockTable {
    pub(super) fn new(n_slots: u32) -> Self {
        Self { n_slots: n_slots as usize, free: (0..n_slots).rev().collect(), ..Self::default() }
    }

    /// The slot of a block that answers dispatches.
    pub(super) fn resident(&self, block: Block) -> Option<u32> {
        self.held.get(&block).filter(|held| held.claimed).map(|held| held.slot)
    }

    pub(super) fn n_resident(&self) -> usize {
        self.held.values().filter(|held| held.claimed).count()
    }

    /// Blocks the hub has asked for and not dropped: queued, loading or resident.
    pub(super) fn n_assigned(&self) -> usize {
        self.n_resident() + self.queue.len() + self.loading.values().filter(|l| !l.cancelled).count()
    }

    /// Assigns `source.block`.
    pub(super) fn hold(&mut self, source: BlockSource) -> HoldOutcome {
        let block = source.block;
        if let Some(held) = self.held.get_mut(&block) {
            if held.blake3 == source.blake3 {
                held.claimed = true;
                return HoldOutcome::Resident;
            }
            self.drop_block(block);
        }
        if let Some(loading) = self.loading.get_mut(&block) {
            // The same bytes are being loaded. Other bytes for the block wait until these have arrived and are
            // released.
            loading.cancelled = loading.blake3 != source.blake3;
            if !loading.cancelled {
                return HoldOutcome::Queued;
            }
        }
        self.queue.retain(|queued| queued.block != block);
        if self.n_assigned() >= self.n_slots {
            return HoldOutcome::NoRoom;
        }
        self.queue.push_back(source);
        HoldOutcome::Queued
    }

    /// Unassigns the block and frees its slot.
    pub(super) fn drop_block(&mut self, block: Block) {
        self.queue.retain(|queued| queued.block != block);
        if let Some(loading) = self.loading.get_mut(&block) {
            loading.cancelled = true;
        }
        if let Some(held) = self.held.remove(&block) {
            self.release(held.slot);
        }
    }

    /// Unassigns everything at the end of a session. Loaded blocks stay in their slots, in case the next session assigns them.
    pub(super) fn session_lost(&mut self) {
        self.queue.clear();
        for loading in self.loading.values_mut() {
            loading.cancelled = true;
        }
        for held in self.held.values_mut() {
            held.claimed = false;
        }
    }

    /// The next block to load and its slot; `None` while enough are loading or no slot is free.
    pub(super) fn next_load(&mut self) -> Option<(u32, BlockSource)> {
        if self.loading.len() >= MAX_LOADS_IN_FLIGHT {
            return None;
        }
        let head = self.queue.front()?;
        if self.loading.contains_key(&head.block) {
            return None;
        }
        let slot = self.free.pop().or_else(|| self.reclaim())?;
        let source = self.queue.pop_front()?;
        let loading = Loading { slot, blake3: source.blake3.clone(), cancelled: false };
        self.loading.insert(source.block, loading);
        Some((slot, source))
    }

    /// A load that [`next_load`](Self::next_load) handed out has ended.
    pub(super) fn loaded(&mut self, block: Block, succeeded: Result<(), ()>) -> Settled {
        let Some(loading) = self.loading.remove(&block) else { return Settled::Unwanted };
        let Loading { slot, blake3, cancelled } = loading;
        match succeeded {
            // Bytes that nobody claims are kept anyway: the next session may claim them.
            Ok(()) if !cancelled || !self.queue.iter().any(|queued| queued.block == block) => {
                self.held.insert(block, HeldBlock { slot, blake3, claimed: !cancelled });
                if cancelled { Settled::Unwanted } else { Settled::Resident }
            }
            _ => {
                self.release(slot);
                if cancelled { Settled::Unwanted } else { Settled::Failed }
            }
        }
    }

    /// From now until [`unpin`](Self::unpin) these slots are not given to another block.
    pub(super) fn pin(&mut self, slots: Vec<u32>) {
        self.pinned = slots;
    }

    pub(super) fn unpin(&mut self) {
        self.pinned.clear();
        self.free.append(&mut self.released_while_pinned);
    }

    /// Takes the slot of an unassigned block.
    fn reclaim(&mut self) -> Option<u32> {
        let kept = |(block, held): (&Block, &HeldBlock)| {
            (!held.claimed && !self.pinned.contains(&held.slot)).then_some(*block)
        };
        let block = self.held.iter().find_map(kept)?;
        self.held.remove(&block).map(|held| held.slot)
    }

    fn release(&mut self, slot: u32) {
        if self.pinned.contains(&slot) {
            self.released_while_pinned.push(slot);
        } else {
            self.free.push(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use moex_protocol::{ExpertId, LayerId};

    use super::*;

    fn block(n: u16) -> Block {
        Block { layer: LayerId(n / 4), expert: ExpertId(n % 4) }
    }

    fn source(n: u16, hash: &str) -> BlockSource {
        BlockSource { block: block(n), url: "/shards/x".into(), start: 0, end: 8, blake3: hash.into() }
    }

    fn load_all(table: &mut BlockTable) -> Vec<(u32, Block)> {
        let mut order = Vec::new();
        while let Some((slot, source)) = table.next_load() {
            assert_eq!(table.loaded(source.block, Ok(())), Settled::Resident);
            order.push((slot, source.block));
        }
        order
    }

    #[test]
    fn loads_in_the_order_asked_and_within_the_slots() {
        let mut table = BlockTable::new(3);
        for n in [5, 1, 9] {
            assert_eq!(table.hold(source(n, "a")), HoldOutcome::Queued);
        }
        assert_eq!(table.hold(source(2, "a")), HoldOutcome::NoRoom);
        assert_eq!(load_all(&mut table), [(0, block(5)), (1, block(1)), (2, block(9))]);
        assert_eq!((table.n_resident(), table.n_assigned()), (3, 3));
        table.drop_block(block(1));
        assert_eq!(table.hold(source(2, "a")), HoldOutcome::Queued);
        assert_eq!(load_all(&mut table), [(1, block(2))]);
    }

    #[test]
    fn at_most_the_limit_is_in_flight() {
        let mut table = BlockTable::new(16);
        for n in 0..16 {
            table.hold(source(n, "a"));
        }
        let started = std::iter::from_fn(|| table.next_load()).count();
        assert_eq!(started, MAX_LOADS_IN_FLIGHT);
    }

    #[test]
    fn a_slot_under_computation_is_not_given_away() {
        let mut table = BlockTable::new(1);
        table.hold(source(0, "a"));
        load_all(&mut table);
        table.pin(vec![0]);
        table.drop_block(block(0));
        assert_eq!(table.hold(source(1, "b")), HoldOutcome::Queued);
        assert!(table.next_load().is_none());
        table.unpin();
        assert_eq!(table.next_load().map(|(slot, _)| slot), Some(0));
    }

    #[test]
    fn a_block_dropped_while_loading_is_not_resident() {
        let mut table = BlockTable::new(1);
        table.hold(source(0, "a"));
        table.next_load();
        table.drop_block(block(0));
        assert_eq!(table.loaded(block(0), Ok(())), Settled::Unwanted);
        assert_eq!(table.resident(block(0)), None);
        // Its slot is free for the next block.
        table.hold(source(1, "b"));
        assert_eq!(load_all(&mut table), [(0, block(1))]);
    }

    #[test]
    fn other_bytes_for_a_loading_block_replace_the_first() {
        let mut table = BlockTable::new(2);
        table.hold(source(0, "a"));
        table.next_load();
        assert_eq!(table.hold(source(0, "b")), HoldOutcome::Queued);
        assert!(table.next_load().is_none(), "the first load must end before the second starts");
        assert_eq!(table.loaded(block(0), Ok(())), Settled::Unwanted);
        assert_eq!(load_all(&mut table).len(), 1);
        assert_eq!(table.hold(source(0, "b")), HoldOutcome::Resident);
    }

    #[test]
    fn a_new_session_finds_what_the_old_one_left() {
        let mut table = BlockTable::new(2);
        table.hold(source(0, "a"));
        table.hold(source(1, "b"));
        load_all(&mut table);
        table.session_lost();
        assert_eq!((table.n_resident(), table.resident(block(0))), (0, None));
        assert_eq!(table.hold(source(0, "a")), HoldOutcome::Resident);
        // Block 1 is unclaimed: its slot serves another block.
        assert_eq!(table.hold(source(2, "c")), HoldOutcome::Queued);
        assert_eq!(load_all(&mut table), [(1, block(2))]);
    }

    #[test]
    fn a_failed_load_frees_its_slot() {
        let mut table = BlockTable::new(1);
        table.hold(source(0, "a"));
        table.next_load();
        assert_eq!(table.loaded(block(0), Err(())), Settled::Failed);
        assert_eq!(table.n_assigned(), 0);
        assert_eq!(table.hold(source(1, "b")), HoldOutcome::Queued);
        assert_eq!(table.loaded(block(9), Ok(())), Settled::Unwanted);
    }
}
