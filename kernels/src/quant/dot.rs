//! The integer dot product of every format, naive on purpose: what the vector kernels are checked against, bit for bit.
//!
//! For each block of columns in order, with `p[g]` the exact integer `sum of (value - zero) * activation` of a group and
//! `a[u]` the scale of its unit of activations:
//!
//! ```text
//! sum += p[g] * ((d * scales[g]) * a[u])                    for each group
//! ```
//!
//! A zero that is not fixed counts as 0 there. With `s` the sum of the block's activations ([`Terms::Sum`]), or with
//! `k[g]` the sums of its groups' in integer steps of `s` ([`Terms::Pairs`]), these follow:
//!
//! ```text
//! sum -= (d * zero) * s                                     in formats with zero points
//! sum -= m * s                                              in formats with a minimum
//! sum -= (k[0] * mins[0] + k[1] * mins[1] + ...) * (m * s)  in formats with integer minimums
//! ```
//!
//! All of it is in f32, each operation rounded by itself, in this order; the bracket of the last line is an exact
//! integer. No operation is fused, so every machine gives the same bits.
//!
//! A scale that is a power of two counts as 0 below 2^-32. The smallest other scale of a block is 2^-24, the smallest
//! of activations 2^-67 ([`Activations`]). So a product is 0 or at least 2^-99, and a sum of products is a multiple of
//! 2^-122. No step meets a subnormal number, which some devices take for 0.

use super::{Activations, Definition, MatrixView, Parts, Scale, Terms, block_words, columns_at};

/// Row `row` of `w` times row `t` of `x`; 0 for the float formats.
///
/// # Panics
/// If there is no such row, or `x` was filled for another format or width.
pub fn dot_int8(w: &MatrixView<'_>, row: usize, x: &Activations, t: usize) -> f32 {
    let Some(definition) = w.format().definition() else { return 0.0 };
    assert!(x.fits(w.format(), w.cols()), "activations of this format and width");
    let mut parts = Parts::default();
    let mut sum = 0.0;
    for (block, words) in x.row(t).chunks_exact(block_words(definition.geometry())).enumerate() {
        w.read_block(row, block, &mut parts);
        if matches!(definition.scale, Scale::E8m0(_)) && parts.d < Scale::power(Scale::SMALLEST) {
            parts.d = 0.0;
        }
        sum = add_block(definition, &parts, words, sum);
    }
    sum
}

fn add_block(definition: &Definition, parts: &Parts, words: &[i32], mut sum: f32) -> f32 {
    let geometry = definition.geometry();
    let float = |at: usize| f32::from_bits(words[at] as u32);
    let columns = words[columns_at(geometry)..].iter().flat_map(|quad| quad.to_le_bytes());
    let columns: Vec<i32> = columns.map(|column| i32::from(column as i8)).collect();
    let zero = geometry.zero.map_or(0, i32::from);
    for (g, columns) in columns.chunks_exact(geometry.group).enumerate() {
        let codes = &parts.codes[g * geometry.group..];
        let value = |code: &u8| i32::from(definition.value(*code));
        let p: i32 = codes.iter().zip(columns).map(|(code, x)| (value(code) - zero) * x).sum();
        let scale = parts.d * f32::from(parts.scales[g]);
        sum += p as f32 * (scale * float(g * geometry.group / geometry.unit()));
    }
    let terms = geometry.n_units();
    match Terms::of(geometry) {
        Terms::Biases { .. } => sum,
        Terms::Sum if geometry.has_minimums => sum - parts.m * float(terms),
        Terms::Sum => sum - parts.d * f32::from(parts.zero) * float(terms),
        Terms::Pairs => {
            let halves = words[terms + 1..].iter().flat_map(|pair| [*pair as i16, (pair >> 16) as i16]);
            let products = halves.zip(&parts.mins[..geometry.n_groups()]);
            let lowered: i32 = products.map(|(k, min)| i32::from(k) * i32::from(*min)).sum();
            sum - lowered as f32 * (parts.m * float(terms))
        }
    }
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
            let geometry = format.geometry().unwrap();
            let decoded: Vec<f32> = rows.row(0).chunks(block_words(geometry)).flat_map(|words| {
                let (head, quads) = words.split_at(columns_at(geometry));
                let columns = quads.iter().flat_map(|quad| quad.to_le_bytes());
                let scale = |column: usize| f32::from_bits(head[column / geometry.unit()] as u32);
                columns.enumerate().map(move |(i, x)| f32::from(x as i8) * scale(i)).collect::<Vec<_>>()
            }).collect();
            let decoded = &decoded[..n_cols];
            // int8 in units: steps of 1/127 of the largest, so 1/12 of a step's square against a power of 1/3 of it.
            prop_assert!(nmse(decoded, &x) < 1e-4);
            for (row, weights) in w.dequantize().chunks(n_cols).enumerate() {
                let products = weights.iter().zip(decoded).map(|(w, x)| f64::from(*w) * f64::from(*x));
                let exact: f64 = products.clone().sum();
                let magnitude: f64 = products.map(f64::abs).sum();
                let actual = f64::from(dot_int8(&w, row, &rows, 0));
                prop_assert!((actual - exact).abs() <= 2e-5 * magnitude, "{actual} {exact} of {magnitude}");
            }
        }
    }
}
