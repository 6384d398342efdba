//! How often the router has recently chosen each block. The most used blocks are loaded first.

use std::cmp::Reverse;

use super::catalog::BlockIndex;

/// Every count is halved after this many layers: some twenty tokens of a model with 48 layers.
const HALF_LIFE_LAYERS: u32 = 1024;

/// (row, expert) pairs by block, decayed. One number per block of the catalog.
#[derive(Debug)]
pub(super) struct ExpertLoad {
    pairs: Vec<u32>,
    n_layers: u32,
}

impl ExpertLoad {
    pub(super) fn new(n_blocks: usize) -> Self {
        Self { pairs: vec![0; n_blocks], n_layers: 0 }
    }

    /// Counts one layer's routing.
    pub(super) fn count(&mut self, chosen: impl IntoIterator<Item = (BlockIndex, usize)>) {
        for (index, n_pairs) in chosen {
            if let Some(pairs) = self.pairs.get_mut(index.0 as usize) {
                *pairs = pairs.saturating_add(u32::try_from(n_pairs).unwrap_or(u32::MAX));
            }
        }
        self.n_layers += 1;
        if self.n_layers == HALF_LIFE_LAYERS {
            self.n_layers = 0;
            self.pairs.iter_mut().for_each(|pairs| *pairs /= 2);
        }
    }

    /// A sort key with the most used block first.
    pub(super) fn most_used_first(&self, index: BlockIndex) -> Reverse<u32> {
        Reverse(self.pairs(index))
    }

    /// Recent (row, expert) pairs of a block.
    pub(super) fn pairs(&self, index: BlockIndex) -> u32 {
        self.pairs.get(index.0 as usize).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_decay_and_stay_in_bounds() {
        let mut load = ExpertLoad::new(2);
        load.count([(BlockIndex(1), usize::MAX), (BlockIndex(7), 1)]);
        assert_eq!(load.pairs, [0, u32::MAX]);
        assert!(load.most_used_first(BlockIndex(1)) < load.most_used_first(BlockIndex(0)));
        for _ in 0..40 * HALF_LIFE_LAYERS {
            load.count(std::iter::empty());
        }
        assert_eq!(load.pairs, [0, 0]);
    }
}
