//! The pool: who holds which page. What is in them is read and written in `contents.rs`.

use std::sync::Arc;

use super::{
    Block, KvLayout, KvTable, PageId,
    page::{Page, zeros},
    paging::Paging,
};
use crate::{
    graph::DevicePages,
    simd::{KvShape, PAGE_POSITIONS},
};

/// All pages of all sequences. A page is allocated when it is first used and kept for the next sequence.
pub struct KvPool {
    pub(super) layout: KvLayout,
    pub(super) paging: Paging,
    pub(super) pages: Vec<Page>,
    /// The holders of each page.
    holders: Vec<Holders>,
    /// Pages without a holder.
    free: Vec<PageId>,
    /// Pages that are kept and in no table.
    n_idle: usize,
    max_pages: usize,
    pub(super) states: Vec<Box<[f32]>>,
    free_states: Vec<u32>,
    max_states: usize,
    /// Where pages are, if they are in a device's memory, and how many there are.
    device: Option<(Arc<dyn DevicePages>, usize)>,
}

/// The holders of a page.
#[derive(Clone, Copy, Default)]
struct Holders {
    n_tables: u32,
    is_kept: bool,
}

impl KvPool {
    /// A pool of as many whole pages as fit into `budget_bytes` beside the states of `n_sequences`, at least those of one
    /// block and at most what `n_sequences` of full length need where no window has left anything.
    pub fn new(layout: KvLayout, budget_bytes: usize, n_sequences: usize) -> Self {
        let paging = Paging::of(&layout);
        let states = layout.state_bytes().saturating_mul(n_sequences);
        let affordable = budget_bytes.saturating_sub(states) / layout.page_bytes().max(1);
        let n_blocks = layout.max_positions.div_ceil(PAGE_POSITIONS).saturating_mul(n_sequences);
        let of_block = paging.n_lasting + paging.n_windowed;
        let useful = n_blocks.saturating_mul(of_block);
        let max_pages = affordable.min(useful).clamp(of_block, u32::MAX as usize);
        Self {
            layout,
            paging,
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
    pub(in crate::graph) fn shape(&self) -> Option<KvShape> {
        self.layout.shape()
    }

    /// The layout that its pages are made for.
    pub(in crate::graph) fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Positions that fit when one sequence has the whole pool, and its steps bring a page's positions or fewer.
    pub fn max_positions(&self) -> usize {
        let longest = self.layout.max_positions.next_multiple_of(PAGE_POSITIONS);
        self.paging.positions_in(self.max_pages, PAGE_POSITIONS, longest)
    }

    /// The most pages that a sequence of `positions` has at a time, if steps bring up to `rows` rows.
    pub fn pages_of(&self, positions: usize, rows: usize) -> usize {
        self.paging.pages_of(positions, rows)
    }

    /// Pages of a block of positions, in all layers.
    pub fn pages_per_block(&self) -> usize {
        self.paging.n_lasting + self.paging.n_windowed
    }

    /// Whether layers have windows: then [`Self::release_unseen`] gives pages back.
    pub fn has_windows(&self) -> bool {
        self.paging.n_windowed > 0
    }

    /// The first block whose windowed pages a row at `position` or later sees.
    pub fn first_seen_block(&self, position: usize) -> usize {
        self.paging.first_block(position)
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
        let missing = positions.div_ceil(PAGE_POSITIONS).saturating_sub(table.n_blocks);
        if missing * self.pages_per_block() > self.free_pages() {
            return false;
        }
        if self.layout.state_len() > 0 && table.state.is_none() {
            let Some(state) = self.free_states.pop().or_else(|| self.allocate_state()) else { return false };
            table.state = Some(state);
        }
        (0..missing).all(|_| self.add_block(table))
    }

    /// Appends a block of new pages to `table`; false, and nothing is appended, if there are too few.
    fn add_block(&mut self, table: &mut KvTable) -> bool {
        let n = self.pages_per_block();
        if n > self.free_pages() {
            return false;
        }
        while self.free.len() < n {
            let Some(page) = self.allocate() else { return false };
            self.free.push(page);
        }
        let pages = self.free.drain(self.free.len() - n..).inspect(|page| {
            self.holders[page.0 as usize].n_tables = 1;
        });
        let (lasting, windowed) = (&mut table.lasting, &mut table.windowed);
        for (index, page) in pages.enumerate() {
            if index < self.paging.n_lasting { &mut *lasting } else { &mut *windowed }.push(page);
        }
        table.n_blocks += 1;
        true
    }

    fn allocate(&mut self) -> Option<PageId> {
        let page = match self.device {
            Some(_) => Page::Device,
            None => Page::allocate(&self.layout, self.paging.layers_per_page)?,
        };
        self.pages.push(page);
        self.holders.push(Holders::default());
        Some(PageId((self.pages.len() - 1) as u32))
    }

    fn allocate_state(&mut self) -> Option<u32> {
        if self.states.len() >= self.max_states {
            return None;
        }
        self.states.push(zeros(self.layout.state_len())?);
        Some((self.states.len() - 1) as u32)
    }

    /// Takes back the pages that no row of `table` at `next_position` or later sees; those without another holder become
    /// free.
    pub fn release_unseen(&mut self, table: &mut KvTable, next_position: usize) {
        if !self.has_windows() {
            return;
        }
        let first = self.first_seen_block(next_position).min(table.n_blocks);
        let n = first.saturating_sub(table.n_released);
        for page in table.windowed.drain(..n * self.paging.n_windowed) {
            self.take_back(page);
        }
        table.n_released += n;
    }

    /// Takes back all pages of `table`; those without another holder become free.
    pub fn release(&mut self, table: &mut KvTable) {
        for page in table.lasting.drain(..).chain(table.windowed.drain(..)) {
            self.take_back(page);
        }
        (table.n_blocks, table.n_released) = (0, 0);
        self.free_states.extend(table.state.take());
    }

    /// A table has `page` no more.
    fn take_back(&mut self, page: PageId) {
        let holders = &mut self.holders[page.0 as usize];
        holders.n_tables -= 1;
        match *holders {
            Holders { n_tables: 0, is_kept: true } => self.n_idle += 1,
            Holders { n_tables: 0, is_kept: false } => self.free.push(page),
            Holders { .. } => {}
        }
    }

    /// Whether sequences have states. No other sequence can take over a state.
    pub fn has_states(&self) -> bool {
        self.layout.state_len() > 0
    }

    /// The pages of block `block` of `table`.
    ///
    /// # Panics
    /// If it has no room there.
    pub fn block<'a>(&self, table: &'a KvTable, block: usize) -> Block<'a> {
        table.block(&self.paging, block)
    }

    /// Keeps pages of a table even when they are in none any more; [`Self::let_go`] gives them back.
    pub fn keep(&mut self, pages: &[PageId]) {
        for page in pages {
            self.holders[page.0 as usize].is_kept = true;
        }
    }

    /// Gives back pages that were kept.
    pub fn let_go(&mut self, pages: &[PageId]) {
        for page in pages {
            if self.is_idle(*page) {
                self.n_idle -= 1;
                self.free.push(*page);
            }
            self.holders[page.0 as usize].is_kept = false;
        }
    }

    /// Whether a page is kept and in no table.
    pub fn is_idle(&self, page: PageId) -> bool {
        let Holders { n_tables, is_kept } = self.holders[page.0 as usize];
        is_kept && n_tables == 0
    }

    /// Appends pages that have other holders to `table`, whose sequence must not write to them. Windowed ones may be missing
    /// up to the first block that a later row sees.
    pub fn share(&mut self, table: &mut KvTable, block: Block<'_>) {
        for page in block.lasting.iter().chain(block.windowed) {
            self.n_idle -= usize::from(self.is_idle(*page));
            self.holders[page.0 as usize].n_tables += 1;
        }
        table.lasting.extend_from_slice(block.lasting);
        table.windowed.extend_from_slice(block.windowed);
        table.n_blocks += 1;
        if block.windowed.len() < self.paging.n_windowed {
            debug_assert!(table.windowed.is_empty(), "pages are released from the beginning on");
            table.n_released = table.n_blocks;
        }
    }

    /// Appends copies of pages to `table`; false if too few are free for them.
    #[must_use]
    pub fn copy(&mut self, table: &mut KvTable, block: Block<'_>) -> bool {
        if !self.add_block(table) {
            return false;
        }
        let copies = table.block(&self.paging, table.n_blocks - 1);
        let (from, to) =
            (block.lasting.iter().chain(block.windowed), copies.lasting.iter().chain(copies.windowed));
        for (from, to) in from.zip(to) {
            if let Some((device, _)) = &self.device {
                device.copy(from.0, to.0);
            } else if let Ok([from, to]) = self.pages.get_disjoint_mut([from.0 as usize, to.0 as usize]) {
                to.copy_from(from);
            }
        }
        true
    }
}
