//! The consistent-hash ring: stable worker ids as virtual nodes, keys hashed from explicit bytes.
//!
//! The hash is that of `hashring`, and a test compares the order with that crate's; `placement` adds weights,
//! distinctness and bounds.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};

use hashring::DefaultHashBuilder;
use moex_protocol::{Block, WorkerId};

/// Virtual nodes of a worker that can hold the whole model.
const MAX_VIRTUAL_NODES: u64 = 2048;
/// Virtual nodes of the smallest worker: with fewer, its share of the ring would be too random.
const MIN_VIRTUAL_NODES: u64 = 256;

/// Worker ids on a ring; a key's successors are walked in ring order.
///
/// Points are hashed once, when their worker joins, and stay sorted: a join among a thousand workers merges a few
/// hundred points into the others and rebuilds nothing.
#[derive(Debug, Default)]
pub(super) struct Ring {
    /// Ascending: position and worker.
    points: Vec<(u64, WorkerId)>,
    /// Virtual nodes of each worker on it.
    counts: HashMap<WorkerId, u32>,
}

/// Number of virtual nodes of a worker that can hold `capacity` of the model's `total` blocks.
///
/// Depends on the worker alone, so that a join or a leave moves no other points.
pub(super) fn virtual_nodes(capacity: u64, total: u64) -> u32 {
    let share = MAX_VIRTUAL_NODES.saturating_mul(capacity.min(total)) / total.max(1);
    share.clamp(MIN_VIRTUAL_NODES, MAX_VIRTUAL_NODES) as u32
}

impl Ring {
    /// Updates the ring to these workers, each with its number of virtual nodes.
    pub(super) fn update(&mut self, workers: impl IntoIterator<Item = (WorkerId, u32)>) {
        let counts: HashMap<WorkerId, u32> = workers.into_iter().collect();
        let before = std::mem::replace(&mut self.counts, counts);
        let is_kept = |id: &WorkerId| before.get(id).is_some_and(|count| self.counts.get(id) == Some(count));
        if before.keys().any(|id| !is_kept(id)) {
            self.points.retain(|(_, id)| is_kept(id));
        }
        for (worker, count) in self.counts.iter().filter(|(id, _)| !is_kept(id)) {
            let point = |number| (hash(&Point { worker: *worker, number }), *worker);
            self.points.extend((0..*count).map(point));
        }
        // Two sorted runs, one of them short: little more than a merge.
        self.points.sort();
        // The points of a thousand workers take 8 MB: freed once workers have left.
        if self.points.capacity() > 4 * self.points.len() {
            self.points.shrink_to_fit();
        }
    }

    /// The workers that follow the key on the ring, once around, with repeats.
    pub(super) fn successors(&self, block: Block, replica: u16) -> impl Iterator<Item = WorkerId> + '_ {
        let key = hash(&Key { block, replica });
        let start = self.points.partition_point(|(at, _)| *at < key);
        self.points[start..].iter().chain(&self.points[..start]).map(|(_, id)| *id)
    }
}

/// The hash of `hashring`'s nodes and keys: SipHash without a secret, the same in every process.
fn hash(value: &impl Hash) -> u64 {
    DefaultHashBuilder.hash_one(value)
}

/// One virtual node.
#[derive(Clone, Debug)]
struct Point {
    worker: WorkerId,
    number: u32,
}

impl Hash for Point {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut bytes = [0; 21];
        bytes[0] = b'w';
        bytes[1..17].copy_from_slice(&self.worker.0.to_le_bytes());
        bytes[17..].copy_from_slice(&self.number.to_le_bytes());
        state.write(&bytes);
    }
}

/// One replica of one block.
struct Key {
    block: Block,
    replica: u16,
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut bytes = [0; 7];
        bytes[0] = b'b';
        bytes[1..3].copy_from_slice(&self.block.layer.0.to_le_bytes());
        bytes[3..5].copy_from_slice(&self.block.expert.0.to_le_bytes());
        bytes[5..].copy_from_slice(&self.replica.to_le_bytes());
        state.write(&bytes);
    }
}

#[cfg(test)]
mod tests {
    use hashring::HashRing;
    use moex_protocol::{ExpertId, LayerId};

    use super::*;

    fn ring(workers: impl IntoIterator<Item = (WorkerId, u32)>) -> Ring {
        let mut ring = Ring::default();
        ring.update(workers);
        ring
    }

    #[test]
    fn the_order_is_that_of_hashring_however_the_workers_came() {
        let mut theirs = HashRing::new();
        let numbers = |worker| (0..256).map(move |number| Point { worker: WorkerId(worker), number });
        theirs.batch_add([3, 1, 2].into_iter().flat_map(numbers).collect());
        let mut ours = ring([(WorkerId(9), 256), (WorkerId(3), 512)]);
        ours.update([(WorkerId(3), 256)]);
        ours.update([(WorkerId(3), 256), (WorkerId(2), 256), (WorkerId(1), 256)]);
        for expert in 0..100 {
            let block = Block { layer: LayerId(1), expert: ExpertId(expert) };
            let first = theirs.get(&Key { block, replica: 1 }).map(|point| point.worker);
            assert_eq!(ours.successors(block, 1).next(), first);
        }
        assert_eq!(ours.points, ring([1, 2, 3].map(|id| (WorkerId(id), 256))).points);
    }

    #[test]
    fn the_place_of_a_block_is_a_fact_of_the_bytes_hashed() {
        let ring = ring((1..=4).map(|id| (WorkerId(id), 256)));
        let firsts: Vec<u128> = (0..8)
            .map(|expert| Block { layer: LayerId(3), expert: ExpertId(expert) })
            .map(|block| ring.successors(block, 0).next().unwrap().0)
            .collect();
        // A change here moves every block of every running swarm: it must be meant.
        assert_eq!(firsts, GOLDEN_FIRSTS);
    }

    const GOLDEN_FIRSTS: [u128; 8] = [4, 1, 3, 1, 2, 1, 3, 4];

    #[test]
    fn a_walk_passes_every_point_once() {
        let ring = ring([(WorkerId(1), 256), (WorkerId(2), 512)]);
        let block = Block { layer: LayerId(0), expert: ExpertId(0) };
        assert_eq!(ring.successors(block, 0).count(), 768);
        assert_eq!(ring.successors(block, 0).filter(|w| *w == WorkerId(2)).count(), 512);
        assert_eq!(Ring::default().successors(block, 0).count(), 0);
    }

    #[test]
    fn workers_that_leave_take_their_points_with_them() {
        let mut ring = ring((0..100).map(|id| (WorkerId(id), 256)));
        ring.update([(WorkerId(1), 256)]);
        assert!(ring.points.capacity() <= 4 * 256, "{}", ring.points.capacity());
        ring.update([]);
        assert_eq!(ring.points.capacity(), 0);
    }

    #[test]
    fn virtual_nodes_follow_capacity_within_bounds() {
        assert_eq!(virtual_nodes(1_000, 1_000), 2048);
        assert_eq!(virtual_nodes(500, 1_000), 1024);
        assert_eq!(virtual_nodes(1, 1_000), 256);
        assert_eq!(virtual_nodes(u64::MAX, 1_000), 2048);
        assert_eq!(virtual_nodes(5, 0), 256);
    }
}
