//! Fitting 32 columns to one scale, or to a scale and a minimum, as llama.cpp's reference quantisers do, bit for bit.

use super::parts::{Geometry, Parts, extreme, reciprocal, to_f16};

/// The columns of a block.
const COLS: usize = 32;

pub(super) const fn geometry(has_minimums: bool, zero: Option<u8>) -> Geometry {
    Geometry { cols: COLS, group: COLS, has_minimums, zero }
}

/// Codes of `bits` bits around `2^(bits-1)`, the value of the largest magnitude at code 0.
pub(super) fn fit_symmetric(bits: u32, values: &[f32], parts: &mut Parts) {
    let zero = 1_u8 << (bits - 1);
    let d = extreme(values) / -f32::from(zero);
    let inverse = reciprocal(d);
    for (code, x) in parts.codes.iter_mut().zip(values) {
        // Truncation after adding a half rounds; the conversion saturates, and takes what is not a number to 0.
        *code = ((x * inverse + (f32::from(zero) + 0.5)) as u8).min(2 * zero - 1);
    }
    (parts.d, parts.zero) = (to_f16(d), zero);
}

/// Codes of `bits` bits from the smallest value, at 0, to the largest.
pub(super) fn fit_affine(bits: u32, values: &[f32], parts: &mut Parts) {
    let top = (1_u8 << bits) - 1;
    let (min, max) = values.iter().fold((f32::MAX, f32::MIN), |(min, max), &x| {
        // As comparisons: what is not a number is neither.
        (if x < min { x } else { min }, if x > max { x } else { max })
    });
    let d = (max - min) / f32::from(top);
    let inverse = reciprocal(d);
    for (code, x) in parts.codes.iter_mut().zip(values) {
        *code = (((x - min) * inverse + 0.5) as u8).min(top);
    }
    (parts.d, parts.m) = (to_f16(d), -to_f16(min));
}

/// Low nibbles are columns 0..16, high nibbles 16..32.
pub(super) fn read_nibbles(bytes: &[u8], parts: &mut Parts) {
    let (low, high) = parts.codes[..COLS].split_at_mut(COLS / 2);
    for ((low, high), &byte) in low.iter_mut().zip(high).zip(bytes) {
        (*low, *high) = (byte & 15, byte >> 4);
    }
}

/// The low four bits of every code.
pub(super) fn write_nibbles(parts: &Parts, bytes: &mut [u8]) {
    let (low, high) = parts.codes[..COLS].split_at(COLS / 2);
    for ((byte, low), high) in bytes.iter_mut().zip(low).zip(high) {
        *byte = low & 15 | high << 4;
    }
}

/// Puts bit `i` of the little-endian word at column `i`, as bit 4 of its code.
pub(super) fn read_fifth_bits(word: &[u8], parts: &mut Parts) {
    for (i, code) in parts.codes[..COLS].iter_mut().enumerate() {
        *code |= (word[i / 8] >> (i % 8) & 1) << 4;
    }
}

/// Bit 4 of every code.
pub(super) fn write_fifth_bits(parts: &Parts, word: &mut [u8]) {
    word.fill(0);
    for (i, code) in parts.codes[..COLS].iter().enumerate() {
        word[i / 8] |= (code >> 4 & 1) << (i % 8);
    }
}
