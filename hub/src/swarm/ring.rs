//! The consistent-hash ring: stable worker ids as virtual nodes, keys hashed from explicit bytes.
//!
//! `hashring` gives the points and their order; weights, distinctness and bounds are built on top, in `placement`.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use hashring::HashRing;
use moex_protocol::{Block, WorkerId};

/// Virtual nodes of a worker that can hold the whole model.
const MAX_VIRTUAL_NODES: u64 = 2048;
/// Virtual nodes of the smallest worker: fewer would make its share of the ring a matter of luck.
const MIN_VIRTUAL_NODES: u64 = 256;

/// Worker ids on a ring; a key's successors are walked in ring order.
#[derive(Debug)]
pub(super) struct Ring {
    points: HashRing<Point>,
    /// The workers in ring order, one entry a point.
    order: Vec<WorkerId>,
    position: HashMap<(WorkerId, u32), usize>,
}

/// How many virtual nodes a worker gets that can hold `capacity` of the model's `total` blocks.
///
/// It depends on the worker alone, so that a join or a leave moves nobody else's points.
pub(super) fn virtual_nodes(capacity: u64, total: u64) -> u32 {
    let share = MAX_VIRTUAL_NODES.saturating_mul(capacity.min(total)) / total.max(1);
    share.clamp(MIN_VIRTUAL_NODES, MAX_VIRTUAL_NODES) as u32
}

impl Ring {
    /// A ring of workers, each with its number of virtual nodes.
    pub(super) fn new(workers: impl IntoIterator<Item = (WorkerId, u32)>) -> Self {
        let mut points = HashRing::new();
        let nodes = workers
            .into_iter()
            .flat_map(|(worker, count)| (0..count).map(move |number| Point { worker, number }))
            .collect();
        points.batch_add(nodes);
        let in_order: Vec<Point> = points.clone().into_iter().collect();
        let position = in_order.iter().enumerate().map(|(at, p)| ((p.worker, p.number), at)).collect();
        Self { points, order: in_order.into_iter().map(|p| p.worker).collect(), position }
    }

    /// The workers that follow the key on the ring, once around, with repeats.
    pub(super) fn successors(&self, block: Block, replica: u16) -> impl Iterator<Item = WorkerId> + '_ {
        let start =
            self.points.get(&Key { block, replica }).map_or(0, |p| self.position[&(p.worker, p.number)]);
        self.order[start..].iter().chain(&self.order[..start]).copied()
    }
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
    use moex_protocol::{ExpertId, LayerId};

    use super::*;

    #[test]
    fn the_place_of_a_block_is_a_fact_of_the_bytes_hashed() {
        let ring = Ring::new((1..=4).map(|id| (WorkerId(id), 256)));
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
        let ring = Ring::new([(WorkerId(1), 256), (WorkerId(2), 512)]);
        let block = Block { layer: LayerId(0), expert: ExpertId(0) };
        assert_eq!(ring.successors(block, 0).count(), 768);
        assert_eq!(ring.successors(block, 0).filter(|w| *w == WorkerId(2)).count(), 512);
        assert_eq!(Ring::new([]).successors(block, 0).count(), 0);
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
