//! The KV cache: keys and values of every cached position, in pages that sequences borrow from one bounded pool. Pages
//! hold rows of f32, which the oracle reads, or are packed for the vector kernels. Layers that keep a state instead
//! have it here too.
//!
//! A page may have several holders: sequences with the same beginning, and a cache that keeps it for the next one. The
//! engine decides who gets pages, and who gives them back when none is free.

use std::sync::Arc;

use super::DevicePages;
use crate::simd::{KvFormat, KvShape, PAGE_POSITIONS, PageSize, Slab};

/// The contents of a pool for each position, and for each sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Layers that keep keys and values.
    pub n_layers: usize,
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

/// All pages of all sequences. A page is allocated when it is first used and kept for the next sequence.
pub struct KvPool {
    layout: KvLayout,
    pages: Vec<Page>,
    /// The holders of each page.
    holders: Vec<Holders>,
    /// Pages without a holder.
    free: Vec<u32>,
    /// Pages that are kept and in no table.
    n_idle: usize,
    max_pages: usize,
    states: Vec<Box<[f32]>>,
    free_states: Vec<u32>,
    max_states: usize,
    /// Where pages are, if they are in a device's memory, and how many there are.
    device: Option<(Arc<dyn DevicePages>, usize)>,
}

/// The pages of one sequence, in the order of its positions. [`KvPool::release`] takes it back.
#[derive(Debug, Default)]
pub struct KvTable {
    pages: Vec<u32>,
    state: Option<u32>,
}

/// The holders of a page.
#[derive(Clone, Copy, Default)]
struct Holders {
    n_tables: u32,
    is_kept: bool,
}

/// A page of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageId(u32);

impl KvTable {
    /// Its pages, each with [`PAGE_POSITIONS`] positions.
    pub fn pages(&self) -> impl ExactSizeIterator<Item = PageId> + '_ {
        self.pages.iter().map(|page| PageId(*page))
    }

    /// The numbers of its pages, in the order of its positions.
    #[cfg(all(feature = "gpu", not(target_arch = "wasm32")))]
    pub(crate) fn numbers(&self) -> &[u32] {
        &self.pages
    }
}

enum Page {
    /// (L, `PAGE_POSITIONS`, G x C) each.
    Rows { keys: Box<[f32]>, values: Box<[f32]> },
    /// (L), each as [`KvShape`] says.
    Packed(Slab),
    /// In a device's memory.
    Device,
}

impl KvLayout {
    /// Bytes of one cached position in all layers.
    pub fn position_bytes(&self) -> usize {
        match self.shape() {
            None => 2 * self.n_layers * self.width() * size_of::<f32>(),
            Some(shape) => self.n_layers * shape.page_bytes() / PAGE_POSITIONS,
        }
    }

    /// Bytes of the states of one sequence.
    pub fn state_bytes(&self) -> usize {
        self.state_len() * size_of::<f32>()
    }

    /// G x C.
    fn width(&self) -> usize {
        self.n_kv_heads * self.head_width
    }

    fn state_len(&self) -> usize {
        self.state_lens.iter().sum()
    }

    /// The shape of packed pages; `None` where pages are rows.
    fn shape(&self) -> Option<KvShape> {
        let &Self { n_kv_heads, head_width, .. } = self;
        self.packed.map(|format| KvShape { format, n_kv_heads, head_width })
    }
}

impl KvPool {
    /// A pool of as many whole pages as fit into `budget_bytes` beside the states of `n_sequences`, at least one and at most
    /// what `n_sequences` of full length need.
    pub fn new(layout: KvLayout, budget_bytes: usize, n_sequences: usize) -> Self {
        let states = layout.state_bytes().saturating_mul(n_sequences);
        let page_bytes = (layout.position_bytes() * PAGE_POSITIONS).max(1);
        let affordable = budget_bytes.saturating_sub(states) / page_bytes;
        let useful = layout.max_positions.div_ceil(PAGE_POSITIONS).saturating_mul(n_sequences);
        let max_pages = affordable.min(useful).clamp(1, u32::MAX as usize);
        Self {
            layout,
            pages: Vec::new(),
            holders: Vec::new(),
            free: Vec::new(),
            n_idle: 0,
            max_pages,
            states: Vec::new(),
            free_states: Vec::new(),
            max_states: n_sequences.max(1),
            device: None,
        }
    }

    /// The same pool with its pages in a device's memory, at most `max_pages`. Only that device's pass can run over it.
    #[cfg(all(feature = "gpu", not(target_arch = "wasm32")))]
    pub(crate) fn on_device(mut self, pages: Arc<dyn DevicePages>, max_pages: usize) -> Self {
        self.device = Some((pages, max_pages));
        self.set_max_pages(self.max_pages);
        self
    }

    /// Where its pages are, if they are in a device's memory.
    #[cfg(all(feature = "gpu", not(target_arch = "wasm32")))]
    pub(crate) fn device(&self) -> Option<&dyn DevicePages> {
        self.device.as_ref().map(|(pages, _)| &**pages)
    }

    /// The shape of packed pages; `None` where pages are rows of f32.
    pub(super) fn shape(&self) -> Option<KvShape> {
        self.layout.shape()
    }

    /// The layout that its pages are made for.
    pub(super) fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Positions that fit when one sequence has the whole pool.
    pub fn max_positions(&self) -> usize {
        self.max_pages * PAGE_POSITIONS
    }

    /// Changes the most pages that it may have; existing ones stay. A device has no more than it was made with.
    pub fn set_max_pages(&mut self, max_pages: usize) {
        let of_device = self.device.as_ref().map_or(usize::MAX, |(_, n)| *n);
        self.max_pages = max_pages.min(of_device);
    }

    /// The most pages that it may have.
    pub fn max_pages(&self) -> usize {
        self.max_pages
    }

    /// Pages that are in tables.
    pub fn pages_in_tables(&self) -> usize {
        self.pages.len() - self.free.len() - self.n_idle
    }

    /// Pages that are kept and in no table: [`Self::let_go`] frees them.
    pub fn idle_pages(&self) -> usize {
        self.n_idle
    }

    /// Pages without a holder.
    pub fn free_pages(&self) -> usize {
        self.max_pages.saturating_sub(self.pages.len()) + self.free.len()
    }

    /// Gives `table` room for `positions`; false if the pool has too few pages or states, or the system no memory.
    #[must_use]
    pub fn reserve(&mut self, table: &mut KvTable, positions: usize) -> bool {
        let missing = positions.div_ceil(PAGE_POSITIONS).saturating_sub(table.pages.len());
        if missing > self.free_pages() {
            return false;
        }
        if self.layout.state_len() > 0 && table.state.is_none() {
            let Some(state) = self.free_states.pop().or_else(|| self.allocate_state()) else { return false };
            table.state = Some(state);
        }
        for _ in 0..missing {
            let Some(page) = self.take_page() else { return false };
            table.pages.push(page);
        }
        true
    }

    /// A page for one table.
    fn take_page(&mut self) -> Option<u32> {
        if self.free_pages() == 0 {
            return None;
        }
        let page = self.free.pop().or_else(|| self.allocate())?;
        self.holders[page as usize].n_tables = 1;
        Some(page)
    }

    fn allocate(&mut self) -> Option<u32> {
        let KvLayout { n_layers, .. } = self.layout;
        let page = match self.shape() {
            _ if self.device.is_some() => Page::Device,
            None => {
                let n_values = n_layers * PAGE_POSITIONS * self.layout.width();
                Page::Rows { keys: zeros(n_values)?, values: zeros(n_values)? }
            }
            Some(shape) => Page::Packed(Slab::new(n_layers * shape.page_bytes(), PageSize::Huge).ok()?),
        };
        self.pages.push(page);
        self.holders.push(Holders::default());
        Some((self.pages.len() - 1) as u32)
    }

    fn allocate_state(&mut self) -> Option<u32> {
        if self.states.len() >= self.max_states {
            return None;
        }
        self.states.push(zeros(self.layout.state_len())?);
        Some((self.states.len() - 1) as u32)
    }

    /// Takes back all pages of `table`; those without another holder become free.
    pub fn release(&mut self, table: &mut KvTable) {
        for page in table.pages.drain(..) {
            let holders = &mut self.holders[page as usize];
            holders.n_tables -= 1;
            match *holders {
                Holders { n_tables: 0, is_kept: true } => self.n_idle += 1,
                Holders { n_tables: 0, is_kept: false } => self.free.push(page),
                Holders { .. } => {}
            }
        }
        self.free_states.extend(table.state.take());
    }

    /// Whether sequences have states. No other sequence can take over a state.
    pub fn has_states(&self) -> bool {
        self.layout.state_len() > 0
    }

    /// Keeps a page of a table even when it is in none any more; [`Self::let_go`] gives it back.
    pub fn keep(&mut self, page: PageId) {
        self.holders[page.0 as usize].is_kept = true;
    }

    /// Gives back a page that was kept.
    pub fn let_go(&mut self, page: PageId) {
        if self.is_idle(page) {
            self.n_idle -= 1;
            self.free.push(page.0);
        }
        self.holders[page.0 as usize].is_kept = false;
    }

    /// Whether a page is kept and in no table.
    pub fn is_idle(&self, page: PageId) -> bool {
        let Holders { n_tables, is_kept } = self.holders[page.0 as usize];
        is_kept && n_tables == 0
    }

    /// Appends a page that has other holders to `table`, whose sequence must not write to it.
    pub fn share(&mut self, table: &mut KvTable, page: PageId) {
        self.n_idle -= usize::from(self.is_idle(page));
        self.holders[page.0 as usize].n_tables += 1;
        table.pages.push(page.0);
    }

    /// Appends a copy of a page to `table`; false if no page is free for it.
    #[must_use]
    pub fn copy(&mut self, table: &mut KvTable, page: PageId) -> bool {
        let Some(copy) = self.take_page() else { return false };
        table.pages.push(copy);
        if let Some((device, _)) = &self.device {
            device.copy(page.0, copy);
        } else if let Ok([from, to]) = self.pages.get_disjoint_mut([page.0 as usize, copy as usize]) {
            match (from, to) {
                (Page::Rows { keys, values }, Page::Rows { keys: new_keys, values: new_values }) => {
                    new_keys.copy_from_slice(keys);
                    new_values.copy_from_slice(values);
                }
                (Page::Packed(from), Page::Packed(to)) => to.copy_from_slice(from),
                _ => {}
            }
        }
        true
    }

    /// State `index` of a sequence. If `position`, that of the next row, is the first, the state is zeros.
    ///
    /// # Panics
    /// If `table` has no room reserved.
    pub(super) fn state(&mut self, index: usize, table: &KvTable, position: usize) -> &mut [f32] {
        let state = table.state.expect("a table with room has a state where there are any");
        let start: usize = self.layout.state_lens[..index].iter().sum();
        let state = &mut self.states[state as usize][start..start + self.layout.state_lens[index]];
        if position == 0 {
            state.fill(0.0);
        }
        state
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
        let (width, shape) = (self.layout.width(), self.shape());
        match (&mut self.pages[table.pages[position / PAGE_POSITIONS] as usize], shape) {
            (Page::Rows { keys, values }, _) => {
                let start = (layer * PAGE_POSITIONS + within) * width;
                keys[start..][..width].copy_from_slice(key);
                values[start..][..width].copy_from_slice(value);
            }
            (Page::Packed(bytes), Some(shape)) => {
                let n = shape.page_bytes();
                shape.write(&mut bytes[layer * n..][..n], within, key, value).expect("a page of its shape");
            }
            (Page::Packed(_), None) | (Page::Device, _) => {}
        }
    }

    /// Keys and values of a layer, a slice (`PAGE_POSITIONS`, G, C) for each page; empty where pages are packed.
    pub(super) fn pages(&self, layer: usize, table: &KvTable) -> (Vec<&[f32]>, Vec<&[f32]>) {
        let len = PAGE_POSITIONS * self.layout.width();
        let of_layer = |page: &u32| match &self.pages[*page as usize] {
            Page::Rows { keys, values } => Some((&keys[layer * len..][..len], &values[layer * len..][..len])),
            Page::Packed(_) | Page::Device => None,
        };
        table.pages.iter().filter_map(of_layer).unzip()
    }

    /// Page `page` of `table` in a layer, as [`KvShape`] says; empty where pages are rows.
    pub(super) fn packed_page(&self, layer: usize, table: &KvTable, page: usize) -> &[u8] {
        match (&self.pages[table.pages[page] as usize], self.shape()) {
            (Page::Packed(bytes), Some(shape)) => &bytes[layer * shape.page_bytes()..][..shape.page_bytes()],
            _ => &[],
        }
    }
}

/// `n` zeros; `None` if the system has no memory for them.
fn zeros(n: usize) -> Option<Box<[f32]>> {
    let mut values = Vec::new();
    values.try_reserve_exact(n).ok()?;
    values.resize(n, 0.0);
    Some(values.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> KvLayout {
        let state_lens = vec![3, 5];
        KvLayout { n_layers: 4, n_kv_heads: 2, head_width: 8, packed: None, state_lens, max_positions: 2048 }
    }

    fn pool(pages: usize) -> KvPool {
        let layout = layout();
        let budget = pages * PAGE_POSITIONS * layout.position_bytes() + 100 * layout.state_bytes();
        KvPool::new(layout, budget, 100)
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
        let width = pool.layout.width();
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
    fn a_page_is_free_when_its_last_holder_let_it_go_and_a_copy_is_its_own() {
        let mut pool = pool(3);
        let width = pool.layout.width();
        let (mut a, mut b) = (KvTable::default(), KvTable::default());
        assert!(pool.reserve(&mut a, 1));
        pool.write(1, &a, 0, &vec![1.0; width], &vec![2.0; width]);
        let page = a.pages().next().unwrap();
        pool.share(&mut b, page);
        pool.keep(page);
        pool.release(&mut a);
        assert_eq!((pool.is_idle(page), pool.pages_in_tables()), (false, 1));
        pool.release(&mut b);
        assert_eq!((pool.is_idle(page), pool.pages_in_tables()), (true, 0));
        assert_eq!((pool.idle_pages(), pool.free_pages()), (1, 2));
        assert!(pool.copy(&mut b, page));
        pool.write(1, &b, 1, &vec![3.0; width], &vec![4.0; width]);
        let (keys, _) = pool.pages(1, &b);
        assert_eq!((keys[0][0], keys[0][width]), (1.0, 3.0), "what was there, and what came");
        pool.share(&mut a, page);
        assert_eq!(pool.pages(1, &a).0[0][width], 0.0, "the original is as it was");
        assert_eq!(pool.idle_pages(), 0);
        pool.let_go(page);
        assert_eq!(pool.free_pages(), 1, "a table has it still");
        pool.release(&mut a);
        assert_eq!((pool.idle_pages(), pool.free_pages()), (0, 2));
        assert!(pool.reserve(&mut a, 2 * PAGE_POSITIONS) && !pool.copy(&mut b, page), "none is left");
    }

    #[test]
    fn a_tiny_budget_is_one_page_and_a_huge_one_what_is_useful() {
        assert_eq!(pool(0).max_positions(), PAGE_POSITIONS);
        assert_eq!(KvPool::new(layout(), usize::MAX, 2).max_positions(), 2 * 2048);
    }

    #[test]
    fn a_sequence_has_states_of_its_own_and_begins_with_zeros() {
        let mut pool = KvPool::new(layout(), usize::MAX, 2);
        let mut tables: [KvTable; 3] = Default::default();
        assert!(pool.reserve(&mut tables[0], 1) && pool.reserve(&mut tables[1], 1));
        assert!(!pool.reserve(&mut tables[2], 1), "two sequences");
        pool.state(1, &tables[0], 0).copy_from_slice(&[1.0; 5]);
        assert_eq!(pool.state(0, &tables[0], 1), [0.0; 3]);
        assert_eq!(pool.state(1, &tables[1], 1), [0.0; 5]);
        assert_eq!(pool.state(1, &tables[0], 1), [1.0; 5]);
        let [first, _, third] = &mut tables;
        pool.release(first);
        assert!(pool.reserve(third, 1));
        assert_eq!(pool.state(1, third, 0), [0.0; 5]);
    }
}
