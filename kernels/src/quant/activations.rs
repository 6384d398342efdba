//! Rows of activations in int8, as the integer dot products of a weight format want them.

use super::{Geometry, WeightFormat};

/// Rows (T, in), quantised once for every product with matrices of one format.
///
/// A row is cut into the format's blocks, and a block of columns becomes i32 words:
///
/// ```text
/// | scale, f32 bits | a term for each group of columns | four i8 columns a word, the first in the lowest byte |
/// ```
///
/// The scale is `max |x| / 127`, a column `x / scale` rounded to nearest, halves to even. A group's term is the sum of its
/// columns times minus the format's fixed zero code; where there is none, or it differs between blocks, the sum itself.
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

/// Words between rows beyond what they need, an odd number of cache lines, so that rows of a power of two do not all fall
/// into the same sets.
const CACHE_LINE_WORDS: usize = 16;

impl Activations {
    /// Quantises `x` (T, `n_cols`) for `format`; false, and nothing done, for the float formats, which take f32 rows.
    ///
    /// # Panics
    /// If `x` is not whole rows.
    #[inline]
    pub fn fill(&mut self, format: WeightFormat, n_cols: usize, x: &[f32]) -> bool {
        let Some(geometry) = format.geometry() else { return false };
        self.reserve(geometry, n_cols, x.len().checked_div(n_cols).unwrap_or(0));
        assert_eq!(x.len(), self.n_rows * n_cols, "rows of {n_cols}");
        let factor = format.fixed_zero().map_or(1, |zero| -i32::from(zero));
        for (x, words) in x.chunks_exact(n_cols.max(1)).zip(self.words.chunks_exact_mut(self.stride)) {
            quantize_row(geometry, factor, x, words);
        }
        true
    }

    /// T.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// The columns of a row.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    pub(crate) fn geometry(&self) -> Option<Geometry> {
        self.geometry
    }

    /// The blocks of row `t`, [`block_words`] each.
    pub(crate) fn row(&self, t: usize) -> &[i32] {
        let Some(geometry) = self.geometry else { return &[] };
        &self.words[t * self.stride..][..self.n_cols.div_ceil(geometry.cols) * block_words(geometry)]
    }

    fn reserve(&mut self, geometry: Geometry, n_cols: usize, n_rows: usize) {
        let row_words = n_cols.div_ceil(geometry.cols) * block_words(geometry);
        self.stride = row_words.next_multiple_of(2 * CACHE_LINE_WORDS) + CACHE_LINE_WORDS;
        (self.geometry, self.n_rows, self.n_cols) = (Some(geometry), n_rows, n_cols);
        self.words.resize(n_rows * self.stride, 0);
    }
}

/// The words of a block.
pub(crate) const fn block_words(geometry: Geometry) -> usize {
    1 + geometry.n_groups() + geometry.cols / 4
}

#[inline]
fn quantize_row(geometry: Geometry, factor: i32, x: &[f32], words: &mut [i32]) {
    let blocks = x.chunks(geometry.cols).zip(words.chunks_exact_mut(block_words(geometry)));
    for (x, words) in blocks {
        // Without their signs, bits of floats are in the order of their magnitudes, what is not a number above all: it
        // becomes the scale, and every result of the row says so.
        let largest = x.iter().fold(0, |m: u32, x| m.max(x.to_bits() & 0x7fff_ffff));
        let largest = f32::from_bits(largest);
        let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
        let (head, quads) = words.split_at_mut(1 + geometry.n_groups());
        head[0] = (largest / 127.0).to_bits() as i32;
        let (whole, rest) = x.as_chunks::<4>();
        for (quad, x) in quads.iter_mut().zip(whole) {
            *quad = quantize_quad(*x, inverse);
        }
        let mut padded = [0.0; 4];
        padded[..rest.len()].copy_from_slice(rest);
        if let Some((quad, padding)) = quads[whole.len()..].split_first_mut() {
            *quad = quantize_quad(padded, inverse);
            padding.fill(0);
        }
        for (term, quads) in head[1..].iter_mut().zip(quads.chunks_exact(geometry.group / 4)) {
            let columns = quads.iter().flat_map(|quad| quad.to_le_bytes());
            *term = factor * columns.map(|column| i32::from(column as i8)).sum::<i32>();
        }
    }
}

#[inline]
fn quantize_quad(x: [f32; 4], inverse: f32) -> i32 {
    /// Adding 1.5 * 2^23 leaves no bits behind the point, so that the addition itself rounds.
    const ROUNDER: f32 = 12_582_912.0;
    let columns = x.map(|x| {
        let rounded = x * inverse + ROUNDER - ROUNDER;
        // The largest magnitudes may round up to a hair above 127; -128 has no negative.
        rounded.clamp(-127.0, 127.0) as i8 as u8
    });
    i32::from_le_bytes(columns)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::noise::noise;

    #[test]
    fn the_words_of_a_row() {
        let mut row = Activations::default();
        assert!(row.fill(WeightFormat::Q4_0, 5, &[127.0, -2.5, 3.5, 0.0, -1.0]));
        let mut expected = vec![1.0_f32.to_bits() as i32, -8 * (127 - 2 + 4 - 1), 0x0004_fe7f, 0xff];
        expected.resize(10, 0);
        assert_eq!(row.row(0), expected);
        assert!(!row.fill(WeightFormat::Bf16, 5, &[0.0; 5]));
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
                    let (terms, quads) = block[1..].split_at(geometry.n_groups());
                    let columns: Vec<i32> =
                        quads.iter().flat_map(|q| q.to_le_bytes()).map(|c| i32::from(c as i8)).collect();
                    for (i, &column) in columns.iter().enumerate() {
                        let x = x.get(i).copied().unwrap_or(0.0);
                        prop_assert!((column as f32 * scale - x).abs() <= scale * 0.500_01);
                    }
                    for (term, columns) in terms.iter().zip(columns.chunks(geometry.group)) {
                        let zero = i32::from(format.fixed_zero().unwrap());
                        prop_assert_eq!(*term, -zero * columns.iter().sum::<i32>());
                    }
                }
            }
        }
    }
}
