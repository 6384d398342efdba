//! q6_K: 6 bits a weight in blocks of 256 columns, symmetric; each group of 16 has an 8-bit scale:
//! `d * scale * (code - 32)`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..128 | bits 0..4 of the codes: of each 128 columns in 64 bytes, columns 0..64 in the low nibbles, 64..128 in the high ones |
//! | 128..192 | bits 4..6: of each 128 columns in 32 bytes, bits `2 s` and `2 s + 1` of byte `i` are column `32 s + i`'s |
//! | 192..208 | sixteen scales, i8 |
//! | 208..210 | `d`, f16 |

use super::parts::{Block, Geometry, MAX_COLS, Parts, extreme, f16_at, nearest, put_f16, reciprocal, to_f16};

pub(super) struct Q6K;

const GROUP: usize = 16;
const N_GROUPS: usize = MAX_COLS / GROUP;
const ZERO: u8 = 32;

impl Block for Q6K {
    const GEOMETRY: Geometry =
        Geometry { cols: MAX_COLS, group: GROUP, has_minimums: false, zero: Some(ZERO) };
    const BYTES: usize = 210;

    #[inline]
    fn read(bytes: &[u8], parts: &mut Parts) {
        (parts.d, parts.zero) = (f16_at(bytes, 208), ZERO);
        for (scale, &byte) in parts.scales.iter_mut().zip(&bytes[192..208]) {
            *scale = byte as i8;
        }
        let halves = bytes[..128].chunks_exact(64).zip(bytes[128..192].chunks_exact(32));
        for (codes, (nibbles, pairs)) in parts.codes.chunks_exact_mut(128).zip(halves) {
            for i in 0..32 {
                for s in 0..4 {
                    let nibble = nibbles[i + s % 2 * 32] >> (s / 2 * 4) & 15;
                    codes[32 * s + i] = nibble | (pairs[i] >> (2 * s) & 3) << 4;
                }
            }
        }
    }

    fn write(parts: &Parts, bytes: &mut [u8]) {
        bytes.fill(0);
        put_f16(bytes, 208, parts.d);
        for (byte, &scale) in bytes[192..208].iter_mut().zip(&parts.scales) {
            *byte = scale as u8;
        }
        for (half, codes) in parts.codes.chunks_exact(128).enumerate() {
            for (column, code) in codes.iter().enumerate() {
                let (i, s) = (column % 32, column / 32);
                bytes[64 * half + i + s % 2 * 32] |= (code & 15) << (s / 2 * 4);
                bytes[128 + 32 * half + i] |= (code >> 4) << (2 * s);
            }
        }
    }

    /// Each group is fitted alone, then its scale is rounded to what eight bits can say, then its codes are chosen for
    /// that.
    fn fit(values: &[f32], parts: &mut Parts) {
        let mut scales = [0.0; N_GROUPS];
        for (scale, values) in scales.iter_mut().zip(values.chunks_exact(GROUP)) {
            *scale = best_scale(values);
        }
        (parts.d, parts.zero) = (to_f16(extreme(&scales) / -128.0), ZERO);
        let inverse = reciprocal(parts.d);
        for (g, scale) in scales.iter().enumerate() {
            parts.scales[g] = (scale * inverse).round() as i8;
            let inverse = reciprocal(parts.d * f32::from(parts.scales[g]));
            let place = g * GROUP..(g + 1) * GROUP;
            for (place, &x) in parts.codes[place.clone()].iter_mut().zip(&values[place]) {
                *place = (code(x, inverse) + f32::from(ZERO)) as u8;
            }
        }
    }
}

/// Scales tried for each group: those that take the value of the largest magnitude to -32 and to a little less or more.
const CANDIDATES: i8 = 9;
const CANDIDATE_STEP: f32 = 0.1;

/// For the codes that each candidate gives, the scale of least squares; of those, the one of the smallest error.
fn best_scale(values: &[f32]) -> f32 {
    let extreme = extreme(values);
    let mut best = (extreme / -f32::from(ZERO), f32::INFINITY);
    for candidate in -CANDIDATES..=CANDIDATES {
        let inverse = -(f32::from(ZERO) + f32::from(candidate) * CANDIDATE_STEP) * reciprocal(extreme);
        let (mut xl, mut ll) = (0.0, 0.0);
        for &x in values {
            let code = code(x, inverse);
            xl += x * code;
            ll += code * code;
        }
        let scale = xl * reciprocal(ll);
        let error = values.iter().map(|&x| (code(x, inverse) * scale - x).powi(2)).sum();
        if error < best.1 {
            best = (scale, error);
        }
    }
    best.0
}

/// The code less its zero; what is not a number becomes 0.
fn code(x: f32, inverse: f32) -> f32 {
    let code = x * inverse;
    nearest(if code.is_nan() { 0.0 } else { code.clamp(-32.0, 31.0) })
}
