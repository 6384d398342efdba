//! Rows of activations in int8, as the integer dot products of a weight format want them.

use super::{Geometry, WeightFormat};

/// Rows (T, in), quantised once for every product with matrices of one format.
///
/// A row is cut into the format's blocks, and a block of columns becomes i32 words:
///
/// ```text
/// | scale, f32 bits | terms of the groups of columns | four i8 columns a word, the first in the lowest byte |
/// ```
///
/// The scale is `max |x| / 127`, a column `x / scale` rounded to nearest, halves to even; what the terms are the format
/// decides. For float formats a row is its f32 bits, padded with zeros to whole units of 32.
///
/// The buffers keep their size between uses: filling one again with no more than before allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct Activations {
    geometry: Option<Geometry>,
    n_rows: usize,
    n_cols: usize,
    /// From the start of a row to that of the next.
    stride: usize,
    words: Vec<i32>,
}

/// What a product needs to know about a group's columns beside the columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Terms {
    /// A word a group: minus the format's zero code times the sum of the columns, where products start.
    Biases { zero: u8 },
    /// One word: the sum of the columns as f32.
    Sum,
    /// A word for every two groups: their sums as i16, the first in the lower half.
    Pairs,
}

impl Terms {
    pub(crate) const fn of(geometry: Geometry) -> Self {
        match geometry.zero {
            Some(zero) => Self::Biases { zero },
            None if geometry.n_groups() == 1 => Self::Sum,
            None => Self::Pairs,
        }
    }

    pub(crate) const fn words(self, geometry: Geometry) -> usize {
        match self {
            Self::Biases { .. } => geometry.n_groups(),
            Self::Sum => 1,
            Self::Pairs => geometry.n_groups() / 2,
        }
    }
}

/// Columns that float formats are padded to.
const FLOAT_UNIT: usize = 32;
/// Rows lie an odd number of cache lines apart, so that those of a power of two do not all fall into the same sets.
const CACHE_LINE_WORDS: usize = 16;

impl Activations {
    /// Quantises `x` (T, `n_cols`) for `format`.
    ///
    /// # Panics
    /// If `x` is not whole rows.
    pub fn fill(&mut self, format: WeightFormat, n_cols: usize, x: &[f32]) {
        let n_rows = x.len().checked_div(n_cols).unwrap_or(0);
        assert_eq!(x.len(), n_rows * n_cols, "rows of {n_cols}");
        self.reshape(format, n_cols, n_rows);
        for (x, words) in x.chunks_exact(n_cols.max(1)).zip(self.words.chunks_exact_mut(self.stride)) {
            fill_row(self.geometry, x, words);
        }
    }

    /// T.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// The columns of a row.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Whether it was filled for matrices of this format and width.
    pub fn fits(&self, format: WeightFormat, n_cols: usize) -> bool {
        self.geometry == format.geometry() && self.n_cols == n_cols
    }

    /// The blocks of row `t`, [`block_words`] each.
    pub(crate) fn row(&self, t: usize) -> &[i32] {
        &self.words[t * self.stride..][..row_words(self.geometry, self.n_cols)]
    }

    /// Makes room for `n_rows` rows, to be filled by [`fill_row`].
    pub(crate) fn reshape(&mut self, format: WeightFormat, n_cols: usize, n_rows: usize) {
        self.geometry = format.geometry();
        (self.n_rows, self.n_cols) = (n_rows, n_cols);
        let row_words = row_words(self.geometry, n_cols);
        self.stride = row_words.next_multiple_of(2 * CACHE_LINE_WORDS) + CACHE_LINE_WORDS;
        self.words.resize(n_rows * self.stride, 0);
    }

    /// The words of all rows, so many from the start of one to that of the next.
    pub(crate) fn parts_mut(&mut self) -> (Option<Geometry>, usize, &mut [i32]) {
        (self.geometry, self.stride, &mut self.words)
    }
}

/// The words of a block.
pub(crate) const fn block_words(geometry: Geometry) -> usize {
    1 + Terms::of(geometry).words(geometry) + geometry.cols / 4
}

fn row_words(geometry: Option<Geometry>, n_cols: usize) -> usize {
    match geometry {
        Some(geometry) => n_cols.div_ceil(geometry.cols) * block_words(geometry),
        None => n_cols.next_multiple_of(FLOAT_UNIT),
    }
}

/// One row: `x` (in) to its words, the first [`Activations::row`] of `words`.
#[inline(always)]
pub(crate) fn fill_row(geometry: Option<Geometry>, x: &[f32], words: &mut [i32]) {
    let Some(geometry) = geometry else {
        let (values, padding) = words.split_at_mut(x.len());
        for (word, x) in values.iter_mut().zip(x) {
            *word = x.to_bits() as i32;
        }
        return padding.fill(0);
    };
    let terms = Terms::of(geometry);
    for (x, words) in x.chunks(geometry.cols).zip(words.chunks_exact_mut(block_words(geometry))) {
        // Without their signs, bits of floats are in the order of their magnitudes, what is not a number above all: it
        // becomes the scale, and every result of the row says so.
        let largest = x.iter().fold(0, |m: u32, x| m.max(x.to_bits() & 0x7fff_ffff));
        let largest = f32::from_bits(largest);
        let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
        let (scale, words) = words.split_at_mut(1);
        let (term_words, quads) = words.split_at_mut(terms.words(geometry));
        scale[0] = (largest / 127.0).to_bits() as i32;
        let columns: &mut [u8] = bytemuck::cast_slice_mut(quads);
        let (columns, padding) = columns.split_at_mut(x.len());
        for (column, x) in columns.iter_mut().zip(x) {
            *column = quantize(*x, inverse);
        }
        padding.fill(0);
        let columns: &[u8] = bytemuck::cast_slice(quads);
        let sums = columns
            .chunks_exact(geometry.group)
            .map(|columns| columns.iter().map(|column| i32::from(*column as i8)).sum::<i32>());
        match terms {
            Terms::Biases { zero } => {
                for (word, sum) in term_words.iter_mut().zip(sums) {
                    *word = -i32::from(zero) * sum;
                }
            }
            Terms::Sum => {
                for (word, sum) in term_words.iter_mut().zip(sums) {
                    *word = (sum as f32).to_bits() as i32;
                }
            }
            Terms::Pairs => {
                term_words.fill(0);
                for (group, sum) in sums.enumerate() {
                    term_words[group / 2] |= (sum & 0xffff) << (16 * (group % 2));
                }
            }
        }
        // The first column in the lowest byte, whatever the machine's order.
        quads.iter_mut().for_each(|quad| *quad = quad.to_le());
    }
}

/// The i8 nearest to `x * inverse`, halves to even.
#[inline(always)]
fn quantize(x: f32, inverse: f32) -> u8 {
    /// Adding 1.5 * 2^23 leaves no bits behind the point, so that the addition itself rounds, and leaves the integer in
    /// the lowest ones.
    const ROUNDER: f32 = 12_582_912.0;
    // The largest magnitudes may round up to a hair above 127; -128 has no negative.
    ((x * inverse).clamp(-127.0, 127.0) + ROUNDER).to_bits() as u8
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::noise::noise;

    #[test]
    fn the_words_of_a_row() {
        let mut row = Activations::default();
        row.fill(WeightFormat::Q4_0, 5, &[127.0, -2.5, 3.5, 0.0, -1.0]);
        let mut expected = vec![1.0_f32.to_bits() as i32, -8 * (127 - 2 + 4 - 1), 0x0004_fe7f, 0xff];
        expected.resize(10, 0);
        assert_eq!(row.row(0), expected);
        row.fill(WeightFormat::Q4_1, 1, &[2.0]);
        assert_eq!(row.row(0)[..3], [(2.0_f32 / 127.0).to_bits() as i32, 127.0_f32.to_bits() as i32, 127]);
        row.fill(WeightFormat::Q4K, 33, &[[1.0; 32].as_slice(), &[-1.0]].concat());
        assert_eq!(row.row(0)[1..6], [(32 * 127) | (-127 << 16), 0, 0, 0, 0x7f7f_7f7f]);
        row.fill(WeightFormat::Bf16, 2, &[0.5, 0.1]);
        assert_eq!(row.row(0)[..3], [0.5_f32.to_bits() as i32, 0.1_f32.to_bits() as i32, 0]);
    }

    #[test]
    fn what_is_not_finite_stays_visible() {
        for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut row = Activations::default();
            row.fill(WeightFormat::Q8_0, 32, &[[1.0; 31].as_slice(), &[x]].concat());
            assert!(!f32::from_bits(row.row(0)[0] as u32).is_finite());
        }
    }

    proptest! {
        #[test]
        fn every_column_is_half_a_step_away_at_most(
            n_rows in 0_usize..4,
            n_cols in 1_usize..600,
            format in prop::sample::select(&[WeightFormat::Q8_0, WeightFormat::Int4G128, WeightFormat::Q6K][..]),
            seed in any::<u64>(),
        ) {
            let x = noise(seed, n_rows * n_cols, 3.0);
            let mut rows = Activations::default();
            rows.fill(WeightFormat::Q4K, 700, &[1.0; 1400]);
            rows.fill(format, n_cols, &x);
            let geometry = format.geometry().unwrap();
            for (t, x) in x.chunks(n_cols).enumerate() {
                let blocks = rows.row(t).chunks(block_words(geometry));
                prop_assert_eq!(blocks.len(), n_cols.div_ceil(geometry.cols));
                for (block, x) in blocks.zip(x.chunks(geometry.cols)) {
                    let scale = f32::from_bits(block[0] as u32);
                    let (terms, quads) = block[1..].split_at(Terms::of(geometry).words(geometry));
                    let columns: Vec<i32> =
                        quads.iter().flat_map(|q| q.to_le_bytes()).map(|c| i32::from(c as i8)).collect();
                    for (i, &column) in columns.iter().enumerate() {
                        let x = x.get(i).copied().unwrap_or(0.0);
                        prop_assert!((column as f32 * scale - x).abs() <= scale * 0.500_01);
                    }
                    for (term, columns) in terms.iter().zip(columns.chunks(geometry.group)) {
                        let zero = i32::from(geometry.zero.unwrap());
                        prop_assert_eq!(*term, -zero * columns.iter().sum::<i32>());
                    }
                }
            }
        }
    }
}
