//! Fits 32 columns to one scale, or to a scale and a minimum, as llama.cpp's reference quantisers do, bit for bit.

use super::{
    parts::{Parts, extreme, reciprocal, to_f16},
    planes::Plane,
};

/// Low nibbles are columns 0..16, high nibbles 16..32.
pub(super) const fn nibbles(at: usize) -> Plane {
    Plane { at, bits: 4, width: 16 }
}

/// Bit `i` of a little-endian u32 is column `i`'s.
pub(super) const fn fifth_bits(at: usize) -> Plane {
    Plane { at, bits: 1, width: 1 }
}

/// Fits codes of `bits` bits around `2^(bits-1)`; the value of the largest magnitude gets code 0.
pub(super) fn fit_symmetric(bits: u32, values: &[f32], parts: &mut Parts) {
    let zero = 1_u8 << (bits - 1);
    let d = extreme(values) / -f32::from(zero);
    let inverse = reciprocal(d);
    for (code, x) in parts.codes.iter_mut().zip(values) {
        // Truncation after adding a half rounds; the conversion saturates, and takes NaN to 0.
        *code = ((x * inverse + (f32::from(zero) + 0.5)) as u8).min(2 * zero - 1);
    }
    parts.d = to_f16(d);
}

/// Fits codes of `bits` bits from the smallest value, which gets 0, to the largest.
pub(super) fn fit_affine(bits: u32, values: &[f32], parts: &mut Parts) {
    let top = (1_u8 << bits) - 1;
    let (min, max) = values.iter().fold((f32::MAX, f32::MIN), |(min, max), &x| {
        // Written as comparisons: NaN is neither.
        (if x < min { x } else { min }, if x > max { x } else { max })
    });
    let d = (max - min) / f32::from(top);
    let inverse = reciprocal(d);
    for (code, x) in parts.codes.iter_mut().zip(values) {
        *code = (((x - min) * inverse + 0.5) as u8).min(top);
    }
    (parts.d, parts.m) = (to_f16(d), -to_f16(min));
}
