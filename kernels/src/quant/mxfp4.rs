//! mxfp4: 4 bits a weight, a sign and one of eight magnitudes, and a power of two for each 32 columns (OCP Microscaling
//! Formats 1.0, section 5.3): `value * 2^(e - 128)`, with values twice those of the standard's e2m1.
//!
//! | bytes | field |
//! |---|---|
//! | 0 | `e`, the exponent |
//! | 1..17 | nibbles: byte `i` holds column `i` (low) and column `i + 16` (high) |
//!
//! This is the layout in a GGUF. GPT-OSS publishes blocks with two neighbouring columns a byte and exponents in a
//! tensor of their own; [`mxfp4_from_planes`] converts them.

use super::{
    ShapeError, WeightFormat,
    definition::{Definition, Scale, Zero},
    format::Integer,
    parts::Parts,
    simple,
};

pub(crate) struct Mxfp4;

/// The values and 12: 0, 1, 2, 3, 4, 6, 8, 12, and the same below zero.
const TABLE: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];
const ZERO: u8 = 12;
/// The columns of a block.
const COLS: usize = 32;
/// The bytes of a block's nibbles.
const NIBBLES: usize = COLS / 2;

impl Integer for Mxfp4 {
    const DEFINITION: Definition = Definition {
        bytes: 1 + NIBBLES,
        codes: &[simple::nibbles(1)],
        table: Some(&TABLE),
        zero: Zero::Fixed(ZERO),
        scale: Scale::E8m0(0),
        gguf: Some(39),
        ..Definition::BLOCK
    };
    /// Uniform noise reaches up to just below a power of two; what lies above 6 of 8 is cut. That costs `2^3 / 3 / 8`
    /// against a power of `8^2 / 3`, 0.0156; the steps of 1/2 to 2 below cost half as much.
    #[cfg(test)]
    const NOISE_LOSS: f64 = 0.025;

    /// As in the `gguf` package, the scale takes the largest magnitude to between 4 and 8 of the standard's values.
    /// Each value becomes the nearest of them; of equals, the first.
    fn fit(values: &[f32], parts: &mut Parts) {
        let largest = values.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
        // The largest magnitude's exponent less two: the factor of the largest value, 6. Infinity counts as the largest
        // finite number.
        let e = (largest.min(f32::MAX).to_bits() >> 23).saturating_sub(2) as u8;
        parts.d = Scale::power(e);
        for (code, x) in parts.codes.iter_mut().zip(values) {
            let error = |code: &u8| {
                let value = f32::from(TABLE[usize::from(*code)]) - f32::from(ZERO);
                (parts.d * value - x).abs()
            };
            *code = (0..16).min_by(|a, b| error(a).total_cmp(&error(b))).unwrap_or(0);
        }
    }
}

/// Converts a (rows, cols) matrix as GPT-OSS publishes it, `*_blocks` (rows, cols / 32, 16) and `*_scales` (rows, cols
/// / 32), to the bytes of one in [`WeightFormat::Mxfp4`]: the same weights, nothing rounded.
///
/// # Errors
/// [`ShapeError::MatrixLength`] unless `cols` is whole blocks and both have their bytes.
pub fn mxfp4_from_planes(
    rows: usize,
    cols: usize,
    blocks: &[u8],
    scales: &[u8],
) -> Result<Vec<u8>, ShapeError> {
    let format = WeightFormat::Mxfp4;
    let (expected, actual) = (format.matrix_bytes(rows, cols), blocks.len().saturating_add(scales.len()));
    let is_whole = cols.is_multiple_of(COLS) && blocks.len() == scales.len().saturating_mul(NIBBLES);
    if !is_whole || actual != expected {
        return Err(ShapeError::MatrixLength { format, rows, cols, expected, actual });
    }
    let mut bytes = Vec::with_capacity(expected);
    for (block, exponent) in blocks.as_chunks::<NIBBLES>().0.iter().zip(scales) {
        bytes.push(*exponent);
        // Columns 2 i and 2 i + 1 lie in byte i.
        let column = |i: usize| block[i / 2] >> (i % 2 * 4) & 15;
        bytes.extend((0..NIBBLES).map(|i| column(i) | column(i + NIBBLES) << 4));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MatrixView;

    #[test]
    fn planes_of_gpt_oss_are_the_weights_that_transformers_makes_of_them() {
        // `convert_moe_packed_tensors`: low nibbles are even columns; a table of e2m1, times 2^(scale - 127).
        let table = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let blocks: Vec<u8> = (0..64).map(|i| (i * 37 + 11) as u8).collect();
        let scales = [127, 125, 130, 1];
        let expected: Vec<f32> = (0..128)
            .map(|i| {
                let code = usize::from(blocks[i / 2] >> (i % 2 * 4) & 15);
                let value = if code < 8 { table[code] } else { -table[code - 8] };
                value * 2.0_f32.powi(scales[i / 32] - 127)
            })
            .collect();
        let bytes = mxfp4_from_planes(2, 64, &blocks, &scales.map(|scale| scale as u8)).unwrap();
        let matrix = MatrixView::new(WeightFormat::Mxfp4, 2, 64, &bytes).unwrap();
        assert_eq!(matrix.dequantize(), expected);
    }

    #[test]
    fn planes_of_another_length_are_no_matrix() {
        let planes = |rows, cols, blocks: usize, scales: usize| {
            mxfp4_from_planes(rows, cols, &vec![0; blocks], &vec![0; scales]).map(|bytes| bytes.len())
        };
        assert_eq!(planes(2, 64, 64, 4), Ok(68));
        for (rows, cols, blocks, scales) in
            [(2, 64, 63, 4), (2, 64, 64, 3), (2, 33, 64, 4), (2, 64, 51, 17), (usize::MAX, usize::MAX, 0, 0)]
        {
            assert!(planes(rows, cols, blocks, scales).is_err(), "{rows} {cols} {blocks} {scales}");
        }
    }
}
