//! The contents of a pool, and how many bytes they take.

use super::paging::Paging;
use crate::simd::{KvFormat, KvShape, PAGE_POSITIONS};

/// The contents of a pool for each position, and for each sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// For each layer that keeps keys and values: the positions that a row sees, its own included; all if none.
    pub windows: Vec<Option<usize>>,
    /// G, key and value heads.
    pub n_kv_heads: usize,
    /// C, columns of each.
    pub head_width: usize,
    /// How they are packed for the vector kernels; rows of f32 where they are not.
    pub packed: Option<KvFormat>,
    /// Floats of each state that a sequence has besides: one for each layer that keeps a state instead of pages.
    pub state_lens: Vec<usize>,
    /// Positions that a sequence may have.
    pub max_positions: usize,
}

impl KvLayout {
    /// Bytes of one cached position in all layers.
    pub fn position_bytes(&self) -> usize {
        self.windows.len() * self.layer_page_bytes() / PAGE_POSITIONS
    }

    /// Bytes that each position adds to a sequence beyond all windows: those of the layers that see all positions.
    pub fn lasting_position_bytes(&self) -> usize {
        Paging::of(self).n_lasting_layers() * self.layer_page_bytes() / PAGE_POSITIONS
    }

    /// The most bytes of pages that a sequence of `positions` has, if steps bring a page's positions or fewer.
    pub fn sequence_bytes(&self, positions: usize) -> usize {
        let pages = Paging::of(self).pages_of(positions, PAGE_POSITIONS);
        pages.saturating_mul(self.page_bytes())
    }

    /// The widest window that ends before the longest sequence does.
    pub fn window(&self) -> Option<usize> {
        Some(Paging::of(self).window).filter(|window| *window > 0)
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        Paging::of(self).layers_per_page * self.layer_page_bytes()
    }

    /// Pages of as many positions as a page has, in all layers.
    pub fn pages_per_block(&self) -> usize {
        let Paging { n_lasting, n_windowed, .. } = Paging::of(self);
        n_lasting + n_windowed
    }

    /// Bytes of the states of one sequence.
    pub fn state_bytes(&self) -> usize {
        self.state_len() * size_of::<f32>()
    }

    /// G x C.
    pub(super) fn width(&self) -> usize {
        self.n_kv_heads * self.head_width
    }

    pub(super) fn state_len(&self) -> usize {
        self.state_lens.iter().sum()
    }

    /// The shape of packed pages; `None` where pages are rows.
    pub(super) fn shape(&self) -> Option<KvShape> {
        let &Self { n_kv_heads, head_width, .. } = self;
        self.packed.map(|format| KvShape { format, n_kv_heads, head_width })
    }

    /// Bytes of a page's positions in one layer.
    fn layer_page_bytes(&self) -> usize {
        match self.shape() {
            None => 2 * PAGE_POSITIONS * self.width() * size_of::<f32>(),
            Some(shape) => shape.page_bytes(),
        }
    }
}
