//! What is in a pool's pages and states: the rows of a step write it, and attention reads it.

use super::{KvPool, KvTable};
use crate::simd::PAGE_POSITIONS;

/// What a sequence has cached in a layer.
pub(in crate::graph) struct LayerRows<'a> {
    /// The position of the first row of the first page.
    pub(in crate::graph) first: usize,
    /// Pages of (`PAGE_POSITIONS`, G, C).
    pub(in crate::graph) keys: Vec<&'a [f32]>,
    /// Pages of (`PAGE_POSITIONS`, G, C).
    pub(in crate::graph) values: Vec<&'a [f32]>,
}

impl KvPool {
    /// State `index` of a sequence. If `position`, that of the next row, is the first, the state is zeros.
    ///
    /// # Panics
    /// If `table` has no room reserved.
    pub(in crate::graph) fn state(&mut self, index: usize, table: &KvTable, position: usize) -> &mut [f32] {
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
    pub(in crate::graph) fn write(
        &mut self,
        layer: usize,
        table: &KvTable,
        position: usize,
        key: &[f32],
        value: &[f32],
    ) {
        let place = self.paging.place(layer);
        let page = table.page(&self.paging, place, position / PAGE_POSITIONS);
        let page = &mut self.pages[page.0 as usize];
        page.write(&self.layout, place.layer, position % PAGE_POSITIONS, key, value);
    }

    /// Keys and values of a layer, a slice (`PAGE_POSITIONS`, G, C) for each page; empty where pages are packed.
    pub(in crate::graph) fn rows(&self, layer: usize, table: &KvTable) -> LayerRows<'_> {
        let place = self.paging.place(layer);
        let first = if place.is_windowed { table.n_released } else { 0 };
        let of_block = |block: usize| {
            let page = table.page(&self.paging, place, block);
            let [keys, values] = self.pages[page.0 as usize].rows(&self.layout, place.layer);
            (keys, values)
        };
        let (keys, values) = (first..table.n_blocks).map(of_block).unzip();
        LayerRows { first: first * PAGE_POSITIONS, keys, values }
    }

    /// Block `block` of `table` in a layer, as [`KvShape`](crate::simd::KvShape) says; empty where pages are rows.
    pub(in crate::graph) fn packed_page(&self, layer: usize, table: &KvTable, block: usize) -> &[u8] {
        let place = self.paging.place(layer);
        let page = table.page(&self.paging, place, block);
        self.pages[page.0 as usize].packed(&self.layout, place.layer)
    }
}
