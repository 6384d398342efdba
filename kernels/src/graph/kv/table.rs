//! The pages of one sequence.

use super::paging::{Paging, Place};

/// A page of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageId(pub(super) u32);

/// The pages of one sequence, in the order of its positions. [`KvPool::release`](super::KvPool::release) takes it back.
#[derive(Debug, Default)]
pub struct KvTable {
    /// Blocks of positions that it has room for.
    pub(super) n_blocks: usize,
    /// Pages of the layers that see all positions: (blocks, pages of a block).
    pub(super) lasting: Vec<PageId>,
    /// Pages of the layers with windows, without the first `n_released` blocks.
    pub(super) windowed: Vec<PageId>,
    /// Blocks whose windowed pages it does not have, or no more.
    pub(super) n_released: usize,
    pub(super) state: Option<u32>,
}

/// The pages of a block of [`PAGE_POSITIONS`](crate::simd::PAGE_POSITIONS) positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block<'a> {
    /// Of the layers that see all positions.
    pub lasting: &'a [PageId],
    /// Of the layers with windows; none where they are released.
    pub windowed: &'a [PageId],
}

impl KvTable {
    /// The numbers of its pages, in the order of its positions, where no layer has a window.
    #[cfg(all(feature = "gpu", not(target_arch = "wasm32")))]
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.lasting.iter().map(|page| page.0)
    }

    /// The page of a block that has a layer at `place`.
    ///
    /// # Panics
    /// If it has no room there, or has released it.
    pub(super) fn page(&self, paging: &Paging, place: Place, block: usize) -> PageId {
        if place.is_windowed {
            self.windowed[(block - self.n_released) * paging.n_windowed + place.page]
        } else {
            self.lasting[block * paging.n_lasting + place.page]
        }
    }

    /// The pages of block `block`.
    pub(super) fn block(&self, paging: &Paging, block: usize) -> Block<'_> {
        let &Paging { n_lasting, n_windowed, .. } = paging;
        let windowed = match block.checked_sub(self.n_released) {
            Some(block) => &self.windowed[block * n_windowed..][..n_windowed],
            None => &[],
        };
        Block { lasting: &self.lasting[block * n_lasting..][..n_lasting], windowed }
    }
}
