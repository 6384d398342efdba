//! The integer dot product of every format, naive on purpose: what the vector kernels are checked against, bit for bit.
//!
//! For each block of columns in order, with `p[g]` the exact integer `sum of (code - zero) * activation` of group `g` and
//! `n[g]` the sum of its activations:
//!
//! ```text
//! sum += (p[0] * scales[0] + p[1] * scales[1] + ...) * (d * activation scale)
//! sum -= (n[0] * mins[0] + n[1] * mins[1] + ...) * (m * activation scale)      in formats with minimums
//! ```
//!
//! in f32, each operation rounded by itself, in this order; the bracket of the second line is an exact integer. No
//! operation is fused, so every machine gives the same bits.

use super::{Activations, Geometry, MatrixView, Parts, Terms, activations::block_words};

/// Row `row` of `w` times row `t` of `x`; 0 for the float formats.
///
/// # Panics
/// If there is no such row, or `x` was filled for another format or width.
pub fn dot_int8(w: &MatrixView<'_>, row: usize, x: &Activations, t: usize) -> f32 {
    let Some(geometry) = w.format().geometry() else { return 0.0 };
    assert!(x.fits(w.format(), w.cols()), "activations of this format and width");
    let mut parts = Parts::default();
    let mut sum = 0.0;
    for (block, words) in x.row(t).chunks_exact(block_words(geometry)).enumerate() {
        w.read_block(row, block, &mut parts);
        sum = add_block(geometry, &parts, words, sum);
    }
    sum
}

fn add_block(geometry: Geometry, parts: &Parts, words: &[i32], mut sum: f32) -> f32 {
    let scale = f32::from_bits(words[0] as u32);
    let columns = words[1 + Terms::of(geometry).words(geometry)..].iter().flat_map(|quad| quad.to_le_bytes());
    let columns: Vec<i32> = columns.map(|column| i32::from(column as i8)).collect();
    let (mut scaled, mut lowered) = (0.0, 0);
    for (g, columns) in columns.chunks_exact(geometry.group).enumerate() {
        let codes = &parts.codes[g * geometry.group..];
        let product = |(&code, &x): (&u8, &i32)| (i32::from(code) - i32::from(parts.zero)) * x;
        let p: i32 = codes.iter().zip(columns).map(product).sum();
        scaled += p as f32 * f32::from(parts.scales[g]);
        lowered += i32::from(parts.mins[g]) * columns.iter().sum::<i32>();
    }
    sum += scaled * (parts.d * scale);
    if geometry.has_minimums {
        sum -= lowered as f32 * (parts.m * scale);
    }
    sum
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{WeightFormat, nmse, noise::noise};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn is_the_product_of_what_both_sides_decode_to(
            format in prop::sample::select(&WeightFormat::ALL[3..]),
            n_rows in 1_usize..5,
            n_cols in 1_usize..700,
            seed in any::<u64>(),
        ) {
            let bytes = format.quantize(n_rows, n_cols, &noise(seed, n_rows * n_cols, 0.1));
            let w = MatrixView::new(format, n_rows, n_cols, &bytes).unwrap();
            let x = noise(seed ^ 1, n_cols, 2.0);
            let mut rows = Activations::default();
            rows.fill(format, n_cols, &x);
            let block = format.block_cols();
            let decoded: Vec<f32> = x.chunks(block).flat_map(|x| {
                let scale = x.iter().fold(0.0, |m: f32, x| m.max(x.abs())) / 127.0;
                x.iter().map(move |x| (x / scale).round_ties_even() * scale)
            }).collect();
            // int8 in blocks: steps of 1/127 of the largest, so 1/12 of a step's square against a power of 1/3 of it.
            prop_assert!(nmse(&decoded, &x) < 1e-4);
            for (row, weights) in w.dequantize().chunks(n_cols).enumerate() {
                let products = weights.iter().zip(&decoded).map(|(w, x)| f64::from(*w) * f64::from(*x));
                let exact: f64 = products.clone().sum();
                let magnitude: f64 = products.map(f64::abs).sum();
                let actual = f64::from(dot_int8(&w, row, &rows, 0));
                prop_assert!((actual - exact).abs() <= 2e-5 * magnitude, "{actual} {exact} of {magnitude}");
            }
        }
    }
}
