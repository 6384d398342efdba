//! The KV cache: keys and values of every cached position, in pages that sequences borrow from one bounded pool. In rows
//! of f32, as the oracle reads them, or packed in a format of choice, as the vector kernels do.
//!
//! Who gets pages, and who gives them back when there are none, is the engine's matter.

use moex_kernels::simd::{KvFormat, KvShape, PageSize, Slab};

use super::{compute::Compute, spec::ModelSpec};

/// Positions in a page.
pub const PAGE_POSITIONS: usize = moex_kernels::simd::PAGE_POSITIONS;

/// All pages of all sequences. A page is allocated when it is first used and kept for the next sequence.
pub struct KvPool {
    n_layers: usize,
    /// G x C.
    width: usize,
    /// Of packed pages; none where they are rows.
    shape: Option<KvShape>,
    pages: Vec<Page>,
    free: Vec<u32>,
    max_pages: usize,
}

/// The pages of one sequence, in the order of its positions. It goes back by [`KvPool::release`].
#[derive(Debug, Default)]
pub struct KvTable {
    pages: Vec<u32>,
}

enum Page {
    /// (L, `PAGE_POSITIONS`, G x C) each.
    Rows { keys: Box<[f32]>, values: Box<[f32]> },
    /// (L), each as [`KvShape`] says.
    Packed(Slab),
}

impl KvPool {
    /// A pool of as many whole pages as fit into `budget_bytes`, at least one and at most what `n_sequences` of full
    /// length need, in rows of f32.
    pub fn new(spec: &ModelSpec, budget_bytes: usize, n_sequences: usize) -> Self {
        Self::new_for(&Compute::Exact, spec, budget_bytes, n_sequences)
    }

    /// [`Self::new`] for a model computed with `compute`.
    pub fn new_for(compute: &Compute, spec: &ModelSpec, budget_bytes: usize, n_sequences: usize) -> Self {
        let affordable = budget_bytes / (Self::position_bytes_for(compute, spec) * PAGE_POSITIONS);
        let useful = spec.max_positions.div_ceil(PAGE_POSITIONS) * n_sequences;
        let max_pages = affordable.min(useful).clamp(1, u32::MAX as usize);
        let (n_layers, width) = (spec.layers.len(), spec.kv_width());
        Self {
            n_layers,
            width,
            shape: shape_for(compute, spec),
            pages: Vec::new(),
            free: Vec::new(),
            max_pages,
        }
    }

    /// Bytes of one cached position in all layers, in f32.
    pub fn position_bytes(spec: &ModelSpec) -> usize {
        2 * spec.layers.len() * spec.kv_width() * KvFormat::F32.value_bytes()
    }

    /// Bytes of one cached position in all layers of a model computed with `compute`.
    pub fn position_bytes_for(compute: &Compute, spec: &ModelSpec) -> usize {
        match shape_for(compute, spec) {
            None => Self::position_bytes(spec),
            Some(shape) => spec.layers.len() * shape.page_bytes() / PAGE_POSITIONS,
        }
    }

    /// How its pages are packed; none where they are rows of f32.
    pub(super) fn shape(&self) -> Option<KvShape> {
        self.shape
    }

    /// Positions that fit when one sequence has the whole pool.
    pub fn max_positions(&self) -> usize {
        self.max_pages * PAGE_POSITIONS
    }

    /// Changes how many pages there may be; those there are stay.
    pub fn set_max_pages(&mut self, max_pages: usize) {
        self.max_pages = max_pages;
    }

    /// Pages nobody holds.
    pub fn free_pages(&self) -> usize {
        self.max_pages.saturating_sub(self.pages.len()) + self.free.len()
    }

    /// Gives `table` room for `positions`; false if the pool has too few pages or the system no memory.
    #[must_use]
    pub fn reserve(&mut self, table: &mut KvTable, positions: usize) -> bool {
        let missing = positions.div_ceil(PAGE_POSITIONS).saturating_sub(table.pages.len());
        if missing > self.free_pages() {
            return false;
        }
        for _ in 0..missing {
            let Some(page) = self.free.pop().or_else(|| self.allocate()) else { return false };
            table.pages.push(page);
        }
        true
    }

    fn allocate(&mut self) -> Option<u32> {
        let page = match self.shape {
            None => {
                let n_values = self.n_layers * PAGE_POSITIONS * self.width;
                Page::Rows { keys: zeros(n_values)?, values: zeros(n_values)? }
            }
            Some(shape) => Page::Packed(Slab::new(self.n_layers * shape.page_bytes(), PageSize::Huge).ok()?),
        };
        self.pages.push(page);
        Some((self.pages.len() - 1) as u32)
    }

    /// Takes all pages of `table` back.
    pub fn release(&mut self, table: &mut KvTable) {
        self.free.append(&mut table.pages);
    }

    /// Stores `key` and `value` (G x C each) at `position`.
    ///
    /// # Panics
    /// If `table` has no room reserved for the position.
    pub(super) fn write(
        &mut self,
        layer: usize,
        table: &KvTable,
        position: usize,
        key: &[f32],
        value: &[f32],
    ) {
        let within = position % PAGE_POSITIONS;
        match (&mut self.pages[table.pages[position / PAGE_POSITIONS] as usize], self.shape) {
            (Page::Rows { keys, values }, _) => {
                let start = (layer * PAGE_POSITIONS + within) * self.width;
                keys[start..][..self.width].copy_from_slice(key);
                values[start..][..self.width].copy_from_slice(value);
            }
            (Page::Packed(bytes), Some(shape)) => {
                let n = shape.page_bytes();
                shape.write(&mut bytes[layer * n..][..n], within, key, value).expect("a page of its shape");
            }
            (Page::Packed(_), None) => {}
        }
    }

    /// Keys and values of a layer, a slice (`PAGE_POSITIONS`, G, C) for each page; empty where pages are packed.
    pub(super) fn pages(&self, layer: usize, table: &KvTable) -> (Vec<&[f32]>, Vec<&[f32]>) {
        let len = PAGE_POSITIONS * self.width;
        let of_layer = |page: &u32| match &self.pages[*page as usize] {
            Page::Rows { keys, values } => Some((&keys[layer * len..][..len], &values[layer * len..][..len])),
            Page::Packed(_) => None,
        };
        table.pages.iter().filter_map(of_layer).unzip()
    }

    /// Page `page` of `table` in a layer, as [`KvShape`] says; empty where pages are rows.
    pub(super) fn packed_page(&self, layer: usize, table: &KvTable, page: usize) -> &[u8] {
        match (&self.pages[table.pages[page] as usize], self.shape) {
            (Page::Packed(bytes), Some(shape)) => &bytes[layer * shape.page_bytes()..][..shape.page_bytes()],
            _ => &[],
        }
    }
}

/// `n` zeros; none if the system has no memory for them.
fn zeros(n: usize) -> Option<Box<[f32]>> {
    let mut values = Vec::new();
    values.try_reserve_exact(n).ok()?;
    values.resize(n, 0.0);
    Some(values.into())
}

fn shape_for(compute: &Compute, spec: &ModelSpec) -> Option<KvShape> {
    let Compute::Fast(fast) = compute else { return None };
    // What the vector kernels do not compute is attended to in rows.
    spec.has_plain_attention().then(|| {
        let attention = spec.cached();
        KvShape { format: fast.kv, n_kv_heads: attention.n_kv_heads, head_width: attention.head_width }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Checkpoint;

    fn pool(pages: usize) -> KvPool {
        let spec = Checkpoint::demo().unwrap().spec;
        KvPool::new(&spec, pages * PAGE_POSITIONS * KvPool::position_bytes(&spec), 100)
    }

    #[test]
    fn pages_come_from_a_bounded_pool_and_go_back() {
        let mut pool = pool(3);
        assert_eq!(pool.max_positions(), 3 * PAGE_POSITIONS);
        let (mut a, mut b) = (KvTable::default(), KvTable::default());
        assert!(pool.reserve(&mut a, PAGE_POSITIONS + 1));
        assert!(pool.reserve(&mut a, 2 * PAGE_POSITIONS), "the second page has room");
        assert!(!pool.reserve(&mut b, PAGE_POSITIONS + 1), "one page is left");
        assert_eq!(pool.free_pages(), 1, "a refusal takes nothing");
        assert!(pool.reserve(&mut b, 1));
        pool.release(&mut a);
        assert_eq!(pool.free_pages(), 2);
        assert!(pool.reserve(&mut b, 3 * PAGE_POSITIONS));
        assert_eq!(pool.pages.len(), 3, "pages are used again");
    }

    #[test]
    fn sequences_do_not_see_each_other() {
        let mut pool = pool(4);
        let width = pool.width;
        let (mut a, mut b) = (KvTable::default(), KvTable::default());
        for position in 0..PAGE_POSITIONS + 3 {
            assert!(pool.reserve(&mut a, position + 1) && pool.reserve(&mut b, position + 1));
            pool.write(2, &a, position, &vec![position as f32; width], &vec![1.0; width]);
            pool.write(2, &b, position, &vec![-1.0; width], &vec![2.0; width]);
        }
        let (keys, values) = pool.pages(2, &a);
        assert_eq!(keys.len(), 2);
        assert_eq!(keys[1][2 * width], (PAGE_POSITIONS + 2) as f32);
        assert!(values[0].iter().all(|v| *v == 1.0));
        assert!(pool.pages(1, &a).0[0].iter().all(|v| *v == 0.0), "another layer");
    }

    #[test]
    fn a_tiny_budget_is_one_page_and_a_huge_one_what_is_useful() {
        assert_eq!(pool(0).max_positions(), PAGE_POSITIONS);
        let spec = Checkpoint::demo().unwrap().spec;
        assert_eq!(KvPool::new(&spec, usize::MAX, 2).max_positions(), 2 * 2048);
    }
}
