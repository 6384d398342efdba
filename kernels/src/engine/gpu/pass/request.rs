//! What a step tells its kernels: `shader/shared/step.wgsl` reads it.

use super::{compile::MAX_ROWS, tiles::FEW_ROWS};
use crate::{
    cpu::{Rope, RopeTable},
    graph::{Span, WantedLogits},
    simd::{Draw, PAGE_POSITIONS},
};

/// Tables of rotations that a step has room for.
pub(super) const MAX_ROPES: usize = 8;
/// The most workgroups that share the positions of a row.
const MAX_SPLITS: u32 = 256;
/// Pages that a workgroup takes at once, beside which its threads have nothing to do: `AT_ONCE` in `shader/attend.wgsl`.
pub(super) const PAGES_AT_ONCE: u32 = 4;
/// Words before the rows' places.
const HEADER: usize = 7 + MAX_ROPES;
/// Workgroups of attention that keep a GPU busy, beyond which positions are shared no further: of a query head, and of several.
const BUSY: u32 = 1024;
const BUSY_TOGETHER: u32 = 384;

/// Workgroups of attention, before positions are divided among more of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttentionGrid {
    /// H.
    pub(super) n_heads: u32,
    /// Of a shallow row, the only one of its step: it attends to so little that a kernel of its own is faster. None if there is
    /// none.
    pub(super) of_shallow: Option<u32>,
    /// The most pages of a shallow row.
    pub(super) shallow_pages: u32,
    /// Of a row.
    pub(super) of_row: u32,
    /// In steps of more than [`FEW_ROWS`], of a tile of rows, and how many rows it has. None if rows are taken by themselves.
    pub(super) of_tile: Option<(u32, usize)>,
}

/// Some rows of a step, in the words of its kernels; reused.
#[derive(Debug, Default)]
pub(super) struct Request {
    pub(super) words: Vec<u32>,
    /// (T).
    pub(super) ids: Vec<u32>,
    /// Positions (T).
    positions: Vec<u32>,
    /// Those of the rows whose logits are wanted (W).
    wanted: Vec<u32>,
    /// Where the pages of each row's sequence start, among all (T).
    tables: Vec<u32>,
    pages: Vec<u32>,
    table: RopeTable,
    /// Pages of a range.
    span: u32,
    pub(super) n_splits: u32,
    /// Whether its only row is shallow.
    pub(super) is_shallow: bool,
    /// How many of each row's best logits are wanted; 0 if all are.
    pub(super) n_best: u32,
    /// How a token is drawn from all logits of each row whose logits are wanted, and of those of the step that follow; empty if none is.
    draws: Vec<Draw>,
    /// Tiles of attention: the first row of each, and how many it has, neighbours in one sequence.
    tiles: Vec<[u32; 2]>,
}

impl AttentionGrid {
    /// Where no row attends.
    pub(super) const NONE: Self =
        Self { n_heads: 1, of_shallow: None, shallow_pages: 0, of_row: 1, of_tile: None };

    /// The most ranges of positions that the heads of all rows of a step have together.
    pub(super) fn max_ranges(self) -> usize {
        (MAX_ROWS * self.n_heads as usize).max(8 * BUSY as usize)
    }
}

impl Request {
    /// T.
    pub(super) fn n_rows(&self) -> usize {
        self.ids.len()
    }

    /// W.
    pub(super) fn n_wanted(&self) -> usize {
        self.wanted.len()
    }

    /// Whether a token of some row is drawn from all.
    pub(super) fn has_draws(&self) -> bool {
        !self.draws.is_empty()
    }

    /// Tiles of attention.
    pub(super) fn n_tiles(&self) -> u32 {
        self.tiles.len() as u32
    }

    /// The most words of a request of `n_rows` for sequences of up to `max_positions`.
    pub(super) fn max_words(n_rows: usize, ropes: &[Rope], max_positions: usize) -> usize {
        let rotations: usize = ropes.iter().map(|rope| 2 * rope.half()).sum();
        HEADER + n_rows * (7 + rotations + max_positions.div_ceil(PAGE_POSITIONS))
    }

    /// Says what is wanted of the logits of `spans` from row `first` of all on: `n_best`, and `draws` of all rows that want any.
    pub(super) fn want(&mut self, spans: &[Span<'_>], first: usize, (n_best, draws): (usize, &[Draw])) {
        self.n_best = n_best as u32;
        let mut rows_left = first;
        let mut n_before = 0;
        for span in spans {
            n_before += span.n_wanted_of(rows_left);
            rows_left = rows_left.saturating_sub(span.ids.len());
        }
        self.draws.clear();
        self.draws.extend_from_slice(draws.get(n_before..).unwrap_or_default());
    }

    /// Takes up to `max_rows` rows of `spans` from row `first` of all on, of which up to `max_wanted` have logits; returns how many.
    pub(super) fn fill(
        &mut self,
        spans: &[Span<'_>],
        first: usize,
        [mut max_rows, max_wanted]: [usize; 2],
        ropes: &[Rope],
        attention: AttentionGrid,
    ) -> usize {
        for part in [&mut self.ids, &mut self.positions, &mut self.wanted, &mut self.tables, &mut self.pages]
        {
            part.clear();
        }
        self.tiles.clear();
        let (mut start, mut most_pages) = (0, 1);
        let rows_of_tile = attention.of_tile.map_or(1, |(_, rows)| rows);
        for span in spans {
            let taken = self.ids.len();
            for row in first.max(start)..(first + max_rows).min(start + span.ids.len()) {
                let i = row - start;
                let is_wanted = match span.wanted {
                    WantedLogits::Nothing => false,
                    WantedLogits::Last => i + 1 == span.ids.len(),
                    WantedLogits::All => true,
                };
                if is_wanted {
                    if self.wanted.len() == max_wanted {
                        max_rows = self.ids.len();
                        break;
                    }
                    self.wanted.push(self.ids.len() as u32);
                }
                self.ids.push(span.ids[i]);
                self.positions.push((span.start + i) as u32);
                self.tables.push(self.pages.len() as u32);
            }
            if self.ids.len() > taken {
                let tile = |first: usize| [first, rows_of_tile.min(self.ids.len() - first)].map(|n| n as u32);
                self.tiles.extend((taken..self.ids.len()).step_by(rows_of_tile).map(tile));
                let last = self.positions[self.ids.len() - 1] as usize;
                let n_pages = (last + 1).div_ceil(PAGE_POSITIONS);
                self.pages.extend(span.table.numbers().take(n_pages));
                most_pages = most_pages.max(n_pages as u32);
            }
            start += span.ids.len();
        }
        self.divide(attention, most_pages);
        self.write(ropes);
        self.n_rows()
    }

    /// Divides the pages of each row's sequence, `most_pages` of the longest, among workgroups.
    fn divide(&mut self, attention: AttentionGrid, most_pages: u32) {
        let n_rows = (self.ids.len() as u32).max(1);
        let AttentionGrid { n_heads, of_shallow, shallow_pages, of_row, of_tile } = attention;
        self.is_shallow = of_shallow.is_some() && n_rows == 1 && most_pages <= shallow_pages;
        let (busy, n_workgroups) = match (of_shallow, of_tile) {
            (Some(n), _) if self.is_shallow => (BUSY, n),
            (_, Some((n, _))) if n_rows > FEW_ROWS => (BUSY_TOGETHER, n * self.n_tiles()),
            _ => (BUSY_TOGETHER, of_row * n_rows),
        };
        let most = (attention.max_ranges() as u32 / (n_rows * n_heads)).min(MAX_SPLITS);
        let least = if self.is_shallow { PAGES_AT_ONCE / 2 } else { PAGES_AT_ONCE };
        let splits = (busy / n_workgroups.max(1)).clamp(1, most.min(most_pages.div_ceil(least)).max(1));
        self.span = match most_pages.div_ceil(splits) {
            few if few <= least => few,
            many => many.next_multiple_of(PAGES_AT_ONCE),
        };
        self.n_splits = most_pages.div_ceil(self.span);
    }

    fn write(&mut self, ropes: &[Rope]) {
        let words = &mut self.words;
        words.clear();
        words.extend([self.ids.len() as u32, self.wanted.len() as u32, self.span, self.n_splits]);
        words.resize(HEADER + 3 * self.ids.len(), 0);
        for (index, rope) in ropes.iter().enumerate() {
            words[4 + index] = words.len() as u32;
            rope.fill(self.positions.iter().copied(), &mut self.table);
            words.extend(self.table.pairs().flatten().map(f32::to_bits));
        }
        let first_page = words.len() as u32;
        let places = words[HEADER..].as_chunks_mut::<3>().0;
        for (place, (position, table)) in places.iter_mut().zip(self.positions.iter().zip(&self.tables)) {
            (place[0], place[1]) = (*position, first_page + table);
        }
        for (place, wanted) in words[HEADER..].as_chunks_mut::<3>().0.iter_mut().zip(&self.wanted) {
            place[2] = *wanted;
        }
        words.extend_from_slice(&self.pages);
        words[4 + MAX_ROPES] = words.len() as u32;
        words[5 + MAX_ROPES] = self.n_best;
        words.extend(self.tiles.iter().flatten());
        words[6 + MAX_ROPES] = words.len() as u32;
        words.extend(
            self.draws.iter().take(self.wanted.len()).flat_map(|draw| [draw.scale().to_bits(), draw.random]),
        );
    }
}
