//! What a step tells its kernels: `shader/shared/step.wgsl` reads it.

use super::tiles::{Attends, FEW_ROWS};
use crate::{
    cpu::{Rope, RopeTable},
    graph::{Span, WantedLogits},
    simd::{Draw, PAGE_POSITIONS},
};

/// Tables of rotations that a step has room for.
pub(super) const MAX_ROPES: usize = 8;
/// The most ranges of a row's pages. Which pages a range has depends on the row's position alone, as do the row's bits.
pub(super) const MOST_RANGES: u32 = 128;
/// Pages that a workgroup takes at least of a shallow row: `AT_ONCE` in `shader/shared/row_pages.wgsl`.
pub(super) const PAGES_AT_ONCE: u32 = 2;
/// The most ranges of all rows of a step that are given apart; beyond it, a workgroup takes all of a row.
pub(super) const MOST_APART: usize = 4_096;
/// Words before the rows' places.
const HEADER: usize = 7 + MAX_ROPES;
/// Workgroups of attention, each of as many pages, that keep a GPU busy without one for each range.
const BUSY: u32 = 384;

/// What a wide tile costs, in narrow ones: measured on an H200 with prompts of 128 and 512 rows.
const WIDE_COST: f64 = 1.8;

/// How attention is divided among workgroups.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttentionGrid {
    /// Of a tile of rows and a range, in narrow tiles and in wide ones.
    pub(super) of_tile: [u32; 2],
    /// Rows of a tile, as well.
    pub(super) rows_of_tile: [usize; 2],
    /// The most ranges of a row.
    pub(super) most_ranges: u32,
    /// Ranges of all rows of a step that there is room for.
    pub(super) most_apart: usize,
    /// The most pages of a row that is the only one of its step and attends to so little that a kernel of its own is faster; 0 if
    /// there is none.
    pub(super) shallow_pages: u32,
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
    /// Ranges that a workgroup takes and joins.
    n_joined: u32,
    /// Places of a row's head for what workgroups give.
    n_slots: u32,
    /// Workgroups that share a row's positions.
    pub(super) n_splits: u32,
    pub(super) attends: Attends,
    /// How many of each row's best logits are wanted; 0 if all are.
    pub(super) n_best: u32,
    /// How a token is drawn from all logits of each row whose logits are wanted, and of those of the step that follow; empty if none is.
    draws: Vec<Draw>,
    /// Tiles of attention: the first row of each, how many it has, neighbours in one sequence, and the pages of their ranges.
    tiles: Vec<[u32; 3]>,
}

impl AttentionGrid {
    /// Where no row attends.
    pub(super) const NONE: Self =
        Self { of_tile: [1; 2], rows_of_tile: [1; 2], most_ranges: 1, most_apart: 0, shallow_pages: 0 };
}

/// Pages of a range of a row at `position`: the deeper, the more, so that a row has few ranges to join.
fn span_of(position: u32, most_ranges: u32) -> u32 {
    let n_pages = n_pages(position);
    let usual = match n_pages {
        ..=16 => 1,
        17..=32 => 2,
        33.. => 4,
    };
    n_pages.div_ceil(most_ranges).next_power_of_two().max(usual)
}

/// Pages up to that of a row at `position`.
fn n_pages(position: u32) -> u32 {
    position / PAGE_POSITIONS as u32 + 1
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
        HEADER + n_rows * (8 + rotations + max_positions.div_ceil(PAGE_POSITIONS))
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
        let mut start = 0;
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
                let last = self.positions[self.ids.len() - 1];
                let n_pages = n_pages(last) as usize;
                self.pages.extend(span.table.numbers().take(n_pages));
            }
            start += span.ids.len();
        }
        self.divide_rows(attention);
        self.divide_ranges(attention);
        self.write(ropes);
        self.n_rows()
    }

    /// Divides rows into tiles, which are wide where many rows are neighbours: those of few leave a GPU idle where workgroups are
    /// large, and rows of as many sequences leave half of a wide tile empty.
    fn divide_rows(&mut self, attention: AttentionGrid) {
        let [narrow, wide] = attention.rows_of_tile;
        self.attends = Attends::InNarrowTiles;
        self.tile_rows(narrow, attention.most_ranges);
        if self.n_rows() as u32 > FEW_ROWS && wide > narrow {
            let n_narrow = self.n_tiles();
            self.tile_rows(wide, attention.most_ranges);
            if f64::from(n_narrow) > WIDE_COST * f64::from(self.n_tiles()) {
                self.attends = Attends::InWideTiles;
            } else {
                self.tile_rows(narrow, attention.most_ranges);
            }
        }
    }

    /// Divides rows into tiles of up to `most` rows of one sequence with equal ranges.
    fn tile_rows(&mut self, most: usize, most_ranges: u32) {
        self.tiles.clear();
        let n_rows = self.n_rows();
        let alike = |row: usize| (self.tables[row], span_of(self.positions[row], most_ranges));
        let mut first = 0;
        while first < n_rows {
            let (table, span) = alike(first);
            let rows = (first..n_rows).take(most).take_while(|row| alike(*row) == (table, span));
            let n = rows.count();
            self.tiles.push([first as u32, n as u32, span]);
            first += n;
        }
    }

    /// Divides the ranges of each row among workgroups.
    fn divide_ranges(&mut self, attention: AttentionGrid) {
        let AttentionGrid { of_tile, most_ranges, most_apart, shallow_pages, .. } = attention;
        let ranges = |position: &u32| n_pages(*position).div_ceil(span_of(*position, most_ranges));
        let n_ranges = self.positions.iter().map(ranges).max().unwrap_or(1);
        let only = match self.positions[..] {
            [position] => n_pages(position),
            _ => u32::MAX,
        };
        let is_few = self.n_rows() as u32 <= FEW_ROWS;
        let of_tile = of_tile[usize::from(self.attends == Attends::InWideTiles)];
        let pages = self.tiles.iter().map(|[first, n, _]| n_pages(self.positions[(first + n) as usize - 1]));
        let longest = pages.clone().max().unwrap_or(0);
        let is_busy = of_tile * pages.sum::<u32>() >= BUSY * longest;
        let is_apart = is_few || !is_busy && n_ranges as usize * self.n_rows() <= most_apart;
        (self.n_joined, self.n_slots) = if is_apart { (1, n_ranges) } else { (n_ranges, 1) };
        self.n_splits = self.n_slots;
        if let [[.., span]] = self.tiles[..]
            && only <= shallow_pages
        {
            self.attends = Attends::ShallowRow;
            self.n_splits = only.div_ceil(PAGES_AT_ONCE.max(span));
        }
    }

    fn write(&mut self, ropes: &[Rope]) {
        let words = &mut self.words;
        words.clear();
        words.extend([self.ids.len() as u32, self.wanted.len() as u32, self.n_joined, self.n_slots]);
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
