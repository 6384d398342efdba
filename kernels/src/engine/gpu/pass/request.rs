//! What a step tells its kernels: `shader/shared/step.wgsl` reads it. Knows no wgpu.

use crate::{
    cpu::{Rope, RopeTable},
    graph::{Span, WantedLogits},
    simd::PAGE_POSITIONS,
};

/// Tables of rotations that a step has room for.
pub(super) const MAX_ROPES: usize = 8;
/// The most workgroups that share the positions of a row.
pub(super) const MAX_SPLITS: u32 = 32;
/// The fewest pages of a range.
const MIN_SPAN: u32 = 2;
/// Pages that a workgroup takes at once, beside which its threads have nothing to do: `AT_ONCE` in `shader/shared/attention.wgsl`.
pub(super) const PAGES_AT_ONCE: u32 = 4;
/// Words before the rows' places.
const HEADER: usize = 6 + MAX_ROPES;
/// Workgroups of attention that keep a GPU busy: beyond these, positions are shared no further.
const BUSY: u32 = 1024;

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
    pub(super) n_splits: u32,
    /// How many of each row's best logits are wanted; 0 if all are.
    pub(super) n_best: u32,
    /// Tiles of attention: the first row of each, and how many it has, neighbours in one sequence.
    tiles: Vec<[u32; 2]>,
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

    /// Tiles of attention.
    pub(super) fn n_tiles(&self) -> u32 {
        self.tiles.len() as u32
    }

    /// Rows of heads and ranges of positions beyond which no step has several ranges.
    pub(super) fn busy() -> usize {
        BUSY as usize
    }

    /// The most words of a request of `n_rows` for sequences of up to `max_positions`.
    pub(super) fn max_words(n_rows: usize, ropes: &[Rope], max_positions: usize) -> usize {
        let rotations: usize = ropes.iter().map(|rope| 2 * rope.half()).sum();
        HEADER + n_rows * (5 + rotations + max_positions.div_ceil(PAGE_POSITIONS))
    }

    /// Takes up to `max_rows` rows of `spans` from row `first` of all on, of which up to `max_wanted` have logits, for attention of
    /// `n_heads` in tiles of `rows_of_tile`; returns how many.
    pub(super) fn fill(
        &mut self,
        spans: &[Span<'_>],
        first: usize,
        [mut max_rows, max_wanted]: [usize; 2],
        ropes: &[Rope],
        (n_heads, rows_of_tile): (u32, usize),
    ) -> usize {
        for part in [&mut self.ids, &mut self.positions, &mut self.wanted, &mut self.tables, &mut self.pages]
        {
            part.clear();
        }
        self.tiles.clear();
        let (mut start, mut most_pages) = (0, 1);
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
        self.write(ropes, n_heads, most_pages);
        self.n_rows()
    }

    fn write(&mut self, ropes: &[Rope], n_heads: u32, most_pages: u32) {
        let n_rows = self.ids.len() as u32;
        let splits =
            (BUSY / (n_heads * n_rows.max(1)).max(1)).clamp(1, MAX_SPLITS.min(most_pages.div_ceil(MIN_SPAN)));
        let span = match most_pages.div_ceil(splits) {
            few if few <= MIN_SPAN => few,
            // A workgroup takes four at a time.
            many => many.next_multiple_of(PAGES_AT_ONCE),
        };
        self.n_splits = most_pages.div_ceil(span);
        let words = &mut self.words;
        words.clear();
        words.extend([n_rows, self.wanted.len() as u32, span, self.n_splits]);
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
    }
}
