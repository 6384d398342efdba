//! Rows of activations in int8, as the integer dot products of a weight format want them.

use super::{
    WeightFormat,
    geometry::{Geometry, MAX_COLS, MAX_GROUPS, UNIT},
};

/// Rows (T, in), quantised once for every product with matrices of one format.
///
/// A row is cut into the format's blocks, a block into units of 32 columns (or a group, where that is wider), and a block
/// becomes i32 words:
///
/// ```text
/// | scales of the units, f32 bits | terms | four i8 columns a word, the first in the lowest byte |
/// ```
///
/// A scale is `max |x| / 127` of its unit, a column `x / scale` rounded to nearest, halves to even. The format decides
/// what the terms are. Units are narrower than blocks of 256 columns: among so many, the largest is far above the rest,
/// above all after an activation function, and its step is the error of all. With units of 32, the logits of a random
/// q4_K_M have half the NMSE. For float formats a row is its f32 bits, padded with zeros to whole units of 32.
///
/// Magnitudes below 2^-60 count as zero: the largest of a unit, or of a block's sums, or a column of a float format.
/// Weights have bounds of their own ([`crate::quant::dot_int8`]), so that no step of a product meets a subnormal
/// number, which some devices take for zero.
///
/// The buffers keep their size between uses: filling one again with no more than before allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct Activations {
    geometry: Option<Geometry>,
    n_rows: usize,
    n_cols: usize,
    /// Words from the start of a row to that of the next.
    stride: usize,
    words: Vec<i32>,
}

/// The columns of the narrowest group of a format. They divide those of every other format's groups.
const HALF: usize = UNIT / 2;

/// The terms of a format: what a product needs besides the columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Terms {
    /// One word for each group, the start of its products: minus the format's zero code times the sum of the columns.
    Biases { zero: u8 },
    /// One word: the sum of the columns times their scale, f32 bits.
    Sum,
    /// The factors of minimums: the sums of the groups' columns times their scales, in i16. First a word with the scale
    /// of all, f32 bits; then one word for every two groups, the first in the lower half.
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
            Self::Pairs => 1 + geometry.n_groups() / 2,
        }
    }
}

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

    /// Dequantises row `t` to `out` (in).
    ///
    /// # Panics
    /// If there is no such row, or `out` has another width.
    pub fn dequantize(&self, t: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.n_cols, "a row of {}", self.n_cols);
        let Some(geometry) = self.geometry else {
            for (out, word) in out.iter_mut().zip(self.row(t)) {
                *out = f32::from_bits(*word as u32);
            }
            return;
        };
        let blocks = self.row(t).chunks_exact(block_words(geometry));
        for (words, out) in blocks.zip(out.chunks_mut(geometry.cols)) {
            let (scales, rest) = words.split_at(geometry.n_units());
            let columns: &[i8] = bytemuck::cast_slice(&rest[Terms::of(geometry).words(geometry)..]);
            let units = out.chunks_mut(geometry.unit()).zip(columns.chunks_exact(geometry.unit()));
            for (scale, (out, columns)) in scales.iter().zip(units) {
                let scale = f32::from_bits(*scale as u32);
                for (out, column) in out.iter_mut().zip(columns) {
                    *out = f32::from(*column) * scale;
                }
            }
        }
    }

    /// The words of all rows, [`row_stride`] from the start of one to that of the next.
    #[cfg(feature = "gpu")]
    pub(crate) fn words(&self) -> &[i32] {
        &self.words
    }

    /// The blocks of row `t`, [`block_words`] each.
    pub(crate) fn row(&self, t: usize) -> &[i32] {
        &self.words[t * self.stride..][..row_words(self.geometry, self.n_cols)]
    }

    /// Makes room for `n_rows` rows, to be filled by [`fill_row`].
    pub(crate) fn reshape(&mut self, format: WeightFormat, n_cols: usize, n_rows: usize) {
        self.geometry = format.geometry();
        (self.n_rows, self.n_cols) = (n_rows, n_cols);
        self.stride = row_stride(self.geometry, n_cols);
        self.words.resize(n_rows * self.stride, 0);
    }

    /// The geometry, the words from the start of one row to that of the next, and the words of all rows.
    pub(crate) fn parts_mut(&mut self) -> (Option<Geometry>, usize, &mut [i32]) {
        (self.geometry, self.stride, &mut self.words)
    }
}

/// Where a block's columns start among its words.
pub(crate) const fn columns_at(geometry: Geometry) -> usize {
    geometry.n_units() + Terms::of(geometry).words(geometry)
}

/// The words of a block.
pub(crate) const fn block_words(geometry: Geometry) -> usize {
    columns_at(geometry) + geometry.cols / 4
}

/// The words from the start of a row to that of the next.
pub(crate) fn row_stride(geometry: Option<Geometry>, n_cols: usize) -> usize {
    row_words(geometry, n_cols).next_multiple_of(2 * CACHE_LINE_WORDS) + CACHE_LINE_WORDS
}

fn row_words(geometry: Option<Geometry>, n_cols: usize) -> usize {
    match geometry {
        Some(geometry) => n_cols.div_ceil(geometry.cols) * block_words(geometry),
        None => n_cols.next_multiple_of(UNIT),
    }
}

/// One row: `x` (in) to its words, the first [`Activations::row`] of `words`.
#[inline(always)]
pub(crate) fn fill_row(geometry: Option<Geometry>, x: &[f32], words: &mut [i32]) {
    let Some(geometry) = geometry else {
        let (values, padding) = words.split_at_mut(x.len());
        for (word, x) in values.iter_mut().zip(x) {
            *word = if x.abs() < TINY { 0 } else { x.to_bits() as i32 };
        }
        return padding.fill(0);
    };
    for (x, words) in x.chunks(geometry.cols).zip(words.chunks_exact_mut(block_words(geometry))) {
        let (head, quads) = words.split_at_mut(columns_at(geometry));
        let (scales, terms) = head.split_at_mut(geometry.n_units());
        let columns: &mut [u8] = bytemuck::cast_slice_mut(quads);
        let mut sums = [0; MAX_COLS / HALF];
        let units = columns.chunks_mut(geometry.unit()).zip(sums.chunks_mut(geometry.unit() / HALF));
        let mut x = x.chunks(geometry.unit());
        for (scale, (columns, sums)) in scales.iter_mut().zip(units) {
            *scale = fill_unit(x.next().unwrap_or_default(), columns, sums).to_bits() as i32;
        }
        fill_terms(geometry, scales, &sums, terms);
        // The first column in the lowest byte, whatever the machine's order.
        quads.iter_mut().for_each(|quad| *quad = quad.to_le());
    }
}

/// Quantises a unit's columns to i8 and sums each sixteen of them; returns the scale.
#[inline(always)]
pub(crate) fn fill_unit(x: &[f32], columns: &mut [u8], sums: &mut [i32]) -> f32 {
    let largest = largest_magnitude(x);
    let inverse = steps(127.0, largest);
    let mut x = x.chunks(UNIT);
    for (columns, sums) in columns.as_chunks_mut::<UNIT>().0.iter_mut().zip(sums.as_chunks_mut::<2>().0) {
        let x = x.next().unwrap_or_default();
        let mut padded = [0.0; UNIT];
        let x = x.as_array().unwrap_or_else(|| {
            padded[..x.len()].copy_from_slice(x);
            &padded
        });
        // Separate loops: in a single one, the compiler finds no vectors.
        let mut integers = [0; UNIT];
        for (integer, x) in integers.iter_mut().zip(x) {
            *integer = nearest(x * inverse, 127.0) as i8;
        }
        for (column, integer) in columns.iter_mut().zip(integers) {
            *column = integer as u8;
        }
        for (sum, integers) in sums.iter_mut().zip(integers.as_chunks::<HALF>().0) {
            for integer in integers {
                *sum += i32::from(*integer);
            }
        }
    }
    step(largest, 127.0)
}

/// The [`Terms`] of a block, from the sums of each sixteen columns.
#[inline(always)]
fn fill_terms(geometry: Geometry, scales: &[i32], sums: &[i32], terms: &mut [i32]) {
    let groups = sums.chunks_exact(geometry.group / HALF);
    match Terms::of(geometry) {
        Terms::Biases { zero } => {
            for (term, sums) in terms.iter_mut().zip(groups) {
                *term = -i32::from(zero) * sums.iter().sum::<i32>();
            }
        }
        Terms::Sum => terms[0] = scaled_sum(sums, scales[0]).to_bits() as i32,
        Terms::Pairs => {
            const TOP: f32 = i16::MAX as f32;
            let mut scaled = [0.0; MAX_GROUPS];
            let a_unit = geometry.unit() / geometry.group;
            for (g, (scaled, sums)) in scaled.iter_mut().zip(groups).take(geometry.n_groups()).enumerate() {
                *scaled = scaled_sum(sums, scales[g / a_unit]);
            }
            let largest = largest_magnitude(&scaled);
            let inverse = steps(TOP, largest);
            let (scale, pairs) = terms.split_at_mut(1);
            scale[0] = step(largest, TOP).to_bits() as i32;
            for (pair, sums) in pairs.iter_mut().zip(scaled.as_chunks::<2>().0) {
                let [low, high] = sums.map(|sum| nearest(sum * inverse, TOP) & 0xffff);
                *pair = low | high << 16;
            }
        }
    }
}

/// The sum of sums of columns, times their scale.
#[inline(always)]
fn scaled_sum(sums: &[i32], scale: i32) -> f32 {
    sums.iter().sum::<i32>() as f32 * f32::from_bits(scale as u32)
}

/// The largest `|x|`. NaN counts as the largest: it becomes the scale, and every result of the row becomes NaN.
#[inline(always)]
fn largest_magnitude(x: &[f32]) -> f32 {
    // Without their signs, bits of floats are in the order of their magnitudes.
    f32::from_bits(x.iter().fold(0, |m: u32, x| m.max(x.to_bits() & 0x7fff_ffff)))
}

/// Smaller magnitudes count as zero: 2^-60.
const TINY: f32 = f32::from_bits((127 - 60) << 23);

/// The step that divides `largest` into `top` parts.
#[inline(always)]
fn step(largest: f32, top: f32) -> f32 {
    if largest < TINY { 0.0 } else { largest / top }
}

/// The factor that takes `largest` to `top`.
#[inline(always)]
fn steps(top: f32, largest: f32) -> f32 {
    if largest >= TINY { top / largest } else { 0.0 }
}

/// The integer nearest to `x`, halves to even, in the lowest bits; the largest magnitudes may lie a hair above `top`.
#[inline(always)]
fn nearest(x: f32, top: f32) -> i32 {
    /// Adding 1.5 * 2^23 leaves no bits behind the point, so that the addition itself rounds, and leaves the integer in
    /// the lowest ones.
    const ROUNDER: f32 = 12_582_912.0;
    // The clamp excludes an integer's lowest value, which has no negative.
    (x.clamp(-top, top) + ROUNDER).to_bits() as i32
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
        assert_eq!(row.row(0)[..3], [(2.0_f32 / 127.0).to_bits() as i32, 2.0_f32.to_bits() as i32, 127]);
        // Groups of a scale each, and their sums 32 and -2 in steps of 32/32767.
        row.fill(WeightFormat::Q4K, 33, &[[1.0; 32].as_slice(), &[-2.0]].concat());
        let floats =
            |words: &[i32]| words.iter().map(|word| f32::from_bits(*word as u32)).collect::<Vec<_>>();
        assert_eq!(floats(&row.row(0)[..3]), [1.0 / 127.0, 2.0 / 127.0, 0.0]);
        assert_eq!(floats(&row.row(0)[8..9]), [32.0 / 32767.0]);
        assert_eq!(row.row(0)[9..14], [32767 | (-2048 << 16), 0, 0, 0, 0x7f7f_7f7f]);
        // Groups of sixteen columns in blocks of eight units.
        row.fill(WeightFormat::Q6K, 20, &[1.0; 20]);
        assert_eq!(row.row(0)[8..11], [-32 * 16 * 127, -32 * 4 * 127, 0]);
        row.fill(WeightFormat::Int4ZpG128, 33, &[1.0; 33]);
        assert_eq!(floats(&row.row(0)[..2]), [1.0 / 127.0, 33.0]);
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
                    let (scales, terms) = block.split_at(geometry.n_units());
                    let (terms, quads) = terms.split_at(Terms::of(geometry).words(geometry));
                    let columns: Vec<i32> =
                        quads.iter().flat_map(|q| q.to_le_bytes()).map(|c| i32::from(c as i8)).collect();
                    for (i, &column) in columns.iter().enumerate() {
                        let (x, scale) = (x.get(i).copied().unwrap_or(0.0), f32::from_bits(scales[i / geometry.unit()] as u32));
                        // And a few roundings of up to 127 steps.
                        prop_assert!((column as f32 * scale - x).abs() <= scale * 0.500_05);
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
