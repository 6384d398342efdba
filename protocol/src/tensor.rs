//! Rows of f32 to and from the bytes of a [`Dtype`]: what a frame's payload holds, row-major (rows, hidden).
//!
//! ```text
//! f16, bf16   hidden values of 2 bytes, little-endian
//! int8        f16 scale, hidden signed bytes          value = byte x scale
//! int4        per 128: f16 scale, 64 bytes            value = (nibble - 8) x scale, low nibble first
//! ```
//!
//! Quantising is symmetric: the scale is the largest magnitude over 127 (int8) or 7 (int4), rounded to f16, and
//! values are rounded against the rounded scale. Non-finite input never turns into a plausible number: it stays
//! non-finite in f16 and bf16, and makes the scale NaN otherwise.

use bytes::BufMut;
use half::{bf16, f16};
use thiserror::Error;

use crate::dtype::{Dtype, INT4_GROUP};
use crate::half_bits;

/// Values converted at a time, so that conversions run on slices and need no heap.
const CHUNK: usize = 256;

/// Appends `rows` (R, hidden) to `out` in `dtype`: R x [`Dtype::row_bytes`] bytes. Infallible; `rows` must be whole
/// rows (asserted in debug builds, an incomplete last row is left out otherwise).
pub fn encode_rows(dtype: Dtype, rows: &[f32], hidden: usize, out: &mut impl BufMut) {
    if hidden == 0 {
        return;
    }
    debug_assert_eq!(rows.len() % hidden, 0, "rows are whole");
    let whole = &rows[..rows.len() - rows.len() % hidden];
    match dtype {
        Dtype::F16 => encode_halves(whole, out, half_bits::encode),
        Dtype::Bf16 => encode_halves(whole, out, write_bf16),
        Dtype::Int8 => whole.chunks_exact(hidden).for_each(|row| encode_int8(row, out)),
        Dtype::Int4 => {
            for row in whole.chunks_exact(hidden) {
                row.chunks(INT4_GROUP).for_each(|group| encode_int4(group, out));
            }
        }
    }
}

/// The f32 values (R, hidden) of `bytes` in `dtype`.
///
/// # Errors
/// When `bytes` is not a whole number of rows, or `hidden` is 0.
pub fn decode_rows(dtype: Dtype, bytes: &[u8], hidden: usize) -> Result<Vec<f32>, TensorError> {
    let n_rows = count_rows(dtype, bytes, hidden)?;
    let mut rows = vec![0.0; n_rows * hidden];
    decode_with::<false>(dtype, bytes, hidden, &mut rows);
    Ok(rows)
}

/// [`decode_rows`] into memory the caller has: `out` (R, hidden).
///
/// # Errors
/// When `bytes` is not exactly the rows that `out` holds, or `hidden` is 0.
pub fn decode_rows_into(
    dtype: Dtype,
    bytes: &[u8],
    hidden: usize,
    out: &mut [f32],
) -> Result<(), TensorError> {
    let n_rows = count_rows(dtype, bytes, hidden)?;
    if out.len() != n_rows * hidden {
        return Err(TensorError::Length { bytes: bytes.len(), dtype, hidden });
    }
    decode_with::<false>(dtype, bytes, hidden, out);
    Ok(())
}

/// Adds the values of `bytes` in `dtype` to `out` (R, hidden), in f32, without a copy between.
///
/// # Errors
/// When `bytes` is not exactly the rows that `out` holds, or `hidden` is 0.
pub fn add_rows(dtype: Dtype, bytes: &[u8], hidden: usize, out: &mut [f32]) -> Result<(), TensorError> {
    let n_rows = count_rows(dtype, bytes, hidden)?;
    if out.len() != n_rows * hidden {
        return Err(TensorError::Length { bytes: bytes.len(), dtype, hidden });
    }
    decode_with::<true>(dtype, bytes, hidden, out);
    Ok(())
}

/// Whether a payload (rows, hidden) holds an infinity or a NaN. It reads bits, converts nothing and stops early only
/// between blocks, so it costs far less than decoding. Bytes that are not whole rows count as non-finite.
pub fn has_non_finite(dtype: Dtype, hidden: usize, payload: &[u8]) -> bool {
    if count_rows(dtype, payload, hidden).is_err() {
        return true;
    }
    match dtype {
        Dtype::F16 => half_bits::any_masked(payload, F16_EXPONENT),
        Dtype::Bf16 => half_bits::any_masked(payload, BF16_EXPONENT),
        // Only scales can be non-finite.
        Dtype::Int8 => payload
            .chunks_exact(dtype.row_bytes(hidden))
            .any(|row| half_bits::any_masked(&row[..2], F16_EXPONENT)),
        Dtype::Int4 => payload.chunks_exact(dtype.row_bytes(hidden)).any(|row| {
            row.chunks(2 + INT4_GROUP / 2).any(|group| half_bits::any_masked(&group[..2], F16_EXPONENT))
        }),
    }
}

/// Bytes that are no tensor of the given format and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TensorError {
    /// Not a whole number of rows, or not the number asked for.
    #[error("{bytes} bytes are not the expected rows of {hidden} {dtype} values")]
    Length {
        /// How many bytes there are.
        bytes: usize,
        /// Their format.
        dtype: Dtype,
        /// Their width.
        hidden: usize,
    },
}

const F16_EXPONENT: u16 = 0x7C00;
const BF16_EXPONENT: u16 = 0x7F80;

fn count_rows(dtype: Dtype, bytes: &[u8], hidden: usize) -> Result<usize, TensorError> {
    let row_bytes = dtype.row_bytes(hidden);
    if hidden == 0 || !bytes.len().is_multiple_of(row_bytes) {
        return Err(TensorError::Length { bytes: bytes.len(), dtype, hidden });
    }
    Ok(bytes.len() / row_bytes)
}

/// `convert` is no generic closure so that its loop is compiled here, and not in whichever crate writes a message.
fn encode_halves(values: &[f32], out: &mut impl BufMut, convert: fn(&[f32], &mut [u8])) {
    let mut bytes = [0; 2 * CHUNK];
    for chunk in values.chunks(CHUNK) {
        let bytes = &mut bytes[..2 * chunk.len()];
        convert(chunk, bytes);
        out.put_slice(bytes);
    }
}

fn write_bf16(values: &[f32], bytes: &mut [u8]) {
    for (pair, &value) in bytes.chunks_exact_mut(2).zip(values) {
        pair.copy_from_slice(&bf16::from_f32(value).to_le_bytes());
    }
}

fn encode_int8(row: &[f32], out: &mut impl BufMut) {
    let (scale, inverse) = symmetric_scale(row, 127.0);
    out.put_slice(&scale.to_le_bytes());
    let mut bytes = [0; CHUNK];
    for chunk in row.chunks(CHUNK) {
        for (byte, &value) in bytes.iter_mut().zip(chunk) {
            *byte = ((value * inverse).round_ties_even().clamp(-127.0, 127.0) as i8).cast_unsigned();
        }
        out.put_slice(&bytes[..chunk.len()]);
    }
}

fn encode_int4(group: &[f32], out: &mut impl BufMut) {
    let (scale, inverse) = symmetric_scale(group, 7.0);
    out.put_slice(&scale.to_le_bytes());
    let nibble = |value: f32| (value * inverse).round_ties_even().clamp(-7.0, 7.0) as i8 + 8;
    let mut bytes = [0; INT4_GROUP / 2];
    for (byte, pair) in bytes.iter_mut().zip(group.chunks(2)) {
        let high = pair.get(1).map_or(8, |&value| nibble(value));
        *byte = (nibble(pair[0]) | high << 4).cast_unsigned();
    }
    out.put_slice(&bytes[..group.len().div_ceil(2)]);
}

/// The f16 scale of `values` and the factor that brings them to integers; a NaN scale if any value is non-finite.
fn symmetric_scale(values: &[f32], steps: f32) -> (f16, f32) {
    let (mut peak, mut finite) = (0.0_f32, true);
    for &value in values {
        peak = peak.max(value.abs());
        finite &= value.is_finite();
    }
    if !finite {
        return (f16::NAN, 0.0);
    }
    let scale = f16::from_f32(peak / steps);
    let inverse = if scale == f16::ZERO { 0.0 } else { scale.to_f32().recip() };
    (scale, inverse)
}

/// To `out`, or with `ADD` onto it.
fn decode_with<const ADD: bool>(dtype: Dtype, bytes: &[u8], hidden: usize, out: &mut [f32]) {
    let put = |out: &mut f32, value: f32| *out = if ADD { *out + value } else { value };
    match dtype {
        Dtype::F16 => half_bits::decode::<ADD>(bytes, out),
        Dtype::Bf16 => {
            for (out, pair) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                put(out, f32::from_bits(u32::from(u16::from_le_bytes([pair[0], pair[1]])) << 16));
            }
        }
        Dtype::Int8 => {
            for (row, bytes) in out.chunks_exact_mut(hidden).zip(bytes.chunks_exact(dtype.row_bytes(hidden)))
            {
                let (scale, values) = split_scale(bytes);
                for (value, &byte) in row.iter_mut().zip(values) {
                    put(value, f32::from(byte.cast_signed()) * scale);
                }
            }
        }
        Dtype::Int4 => {
            for (row, bytes) in out.chunks_exact_mut(hidden).zip(bytes.chunks_exact(dtype.row_bytes(hidden)))
            {
                let groups = bytes.chunks(2 + INT4_GROUP / 2);
                for (group, bytes) in row.chunks_mut(INT4_GROUP).zip(groups) {
                    let (scale, nibbles) = split_scale(bytes);
                    for (pair, &byte) in group.chunks_mut(2).zip(nibbles) {
                        for (value, nibble) in pair.iter_mut().zip([byte & 0xF, byte >> 4]) {
                            put(value, (f32::from(nibble) - 8.0) * scale);
                        }
                    }
                }
            }
        }
    }
}

/// A leading f16 scale and what follows. Callers have checked that a scale is there.
fn split_scale(bytes: &[u8]) -> (f32, &[u8]) {
    let (scale, values) = bytes.split_at(2);
    (f16::from_le_bytes([scale[0], scale[1]]).to_f32(), values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encode(dtype: Dtype, rows: &[f32], hidden: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode_rows(dtype, rows, hidden, &mut bytes);
        bytes
    }

    #[test]
    fn golden_bytes() {
        assert_eq!(encode(Dtype::F16, &[1.0, -2.0], 2), [0x00, 0x3C, 0x00, 0xC0]);
        assert_eq!(encode(Dtype::Bf16, &[1.0, -2.0], 2), [0x80, 0x3F, 0x00, 0xC0]);
        // Scale 1: the peak is 127 steps.
        assert_eq!(encode(Dtype::Int8, &[127.0, -1.0], 2), [0x00, 0x3C, 0x7F, 0xFF]);
        // Scale 1: 7 is nibble 15, -7 is 1, and the missing fourth value is 8, zero.
        assert_eq!(encode(Dtype::Int4, &[7.0, -7.0, 0.0], 3), [0x00, 0x3C, 0x1F, 0x88]);
        assert_eq!(
            decode_rows(Dtype::Int4, &[0x00, 0x3C, 0x10], 2),
            Ok(vec![-8.0, -7.0]),
            "the full range decodes"
        );
    }

    #[test]
    fn wrong_lengths_are_errors() {
        for dtype in Dtype::ALL {
            assert!(decode_rows(dtype, &[0; 5], 2).is_err() || dtype.row_bytes(2) == 5, "{dtype}");
            assert!(decode_rows(dtype, &[], 0).is_err());
            let two_rows = vec![0; 2 * dtype.row_bytes(3)];
            assert!(decode_rows_into(dtype, &two_rows, 3, &mut [0.0; 3]).is_err());
            assert!(add_rows(dtype, &two_rows, 3, &mut [0.0; 3]).is_err());
        }
    }

    #[test]
    fn non_finite_values_are_found_wherever_they_are() {
        for dtype in Dtype::ALL {
            for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                for place in [0, 299, 300, 599] {
                    let mut rows = vec![0.5; 600];
                    assert!(!has_non_finite(dtype, 300, &encode(dtype, &rows, 300)));
                    rows[place] = bad;
                    assert!(
                        has_non_finite(dtype, 300, &encode(dtype, &rows, 300)),
                        "{dtype} {bad} at {place}"
                    );
                }
            }
        }
    }

    proptest! {
        /// Half a step of the format away at most, plus the f16 rounding of the scale.
        #[test]
        fn values_come_back_within_half_a_step(
            hidden in 1_usize..300,
            seed in proptest::collection::vec(-100.0_f32..100.0, 600),
        ) {
            let rows = &seed[..hidden * (600 / hidden)];
            for dtype in Dtype::ALL {
                let bytes = encode(dtype, rows, hidden);
                prop_assert_eq!(bytes.len(), rows.len() / hidden * dtype.row_bytes(hidden));
                let decoded = decode_rows(dtype, &bytes, hidden).unwrap();
                let mut sum = vec![0.25; decoded.len()];
                add_rows(dtype, &bytes, hidden, &mut sum).unwrap();
                prop_assert!(sum.iter().zip(&decoded).all(|(sum, value)| *sum == 0.25 + value));
                for (&value, &back) in rows.iter().zip(&decoded) {
                    let step = match dtype {
                        Dtype::F16 => value.abs() / 1024.0 + 1e-7,
                        Dtype::Bf16 => value.abs() / 128.0,
                        Dtype::Int8 => 100.0 / 127.0,
                        Dtype::Int4 => 100.0 / 7.0,
                    };
                    prop_assert!((value - back).abs() <= step * 0.52, "{} {} {}", dtype, value, back);
                }
                // What was decoded is exact in the format: encoding it again changes nothing but a rounded scale.
                if matches!(dtype, Dtype::F16 | Dtype::Bf16) {
                    prop_assert_eq!(encode(dtype, &decoded, hidden), bytes);
                }
            }
        }
    }
}
