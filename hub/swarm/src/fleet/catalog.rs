//! The model's blocks, and where workers fetch them. The hub's `shards` packs them.

use moex_protocol::{Block, BlockSource};

/// Every (layer, expert) of the model's MoE layers, ascending, with its source.
#[derive(Clone, Debug, Default)]
pub struct BlockCatalog {
    /// Ascending by block, each block once.
    sources: Vec<BlockSource>,
    block_bytes: u64,
}

/// A block's index in the catalog; dense, so that per-block tables are plain vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlockIndex(pub u32);

impl BlockCatalog {
    /// Creates a catalog from sources in any order. `block_bytes`: memory of one block on a worker.
    ///
    /// Of duplicate blocks, the first source is kept.
    pub fn new(mut sources: Vec<BlockSource>, block_bytes: u64) -> Self {
        sources.sort_by_key(|source| source.block);
        sources.dedup_by_key(|source| source.block);
        Self { sources, block_bytes }
    }

    /// How many blocks there are.
    pub fn len(&self) -> usize {
        self.sources.len()
    }

    /// Whether there is no block at all.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Bytes of one block in a worker's memory.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// The blocks, ascending.
    pub fn blocks(&self) -> impl Iterator<Item = Block> + '_ {
        self.sources.iter().map(|source| source.block)
    }

    pub(crate) fn index(&self, block: Block) -> Option<BlockIndex> {
        self.sources.binary_search_by_key(&block, |source| source.block).ok().map(|at| BlockIndex(at as u32))
    }

    pub(crate) fn block(&self, index: BlockIndex) -> Block {
        self.sources[index.0 as usize].block
    }

    pub(super) fn source(&self, index: BlockIndex) -> &BlockSource {
        &self.sources[index.0 as usize]
    }

    pub(crate) fn indices(&self) -> impl Iterator<Item = BlockIndex> + use<> {
        (0..self.sources.len() as u32).map(BlockIndex)
    }
}
