//! q5_1: 5 bits a weight, a scale and a minimum for each 32 columns: `code * d + min`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..4 | `min`, f16; [`Parts::m`] is its negative |
//! | 4..8 | a u32: bit `i` is bit 4 of column `i`'s code |
//! | 8..24 | nibbles, bits 0..4: byte `i` holds column `i` (low) and column `i + 16` (high) |

use super::{
    parts::{Block, Geometry, Parts, f16_at, put_f16},
    simple,
};

pub(super) struct Q5_1;

impl Block for Q5_1 {
    const GEOMETRY: Geometry = simple::geometry(true, None);
    const BYTES: usize = 24;

    #[inline]
    fn read(bytes: &[u8], parts: &mut Parts) {
        (parts.d, parts.m) = (f16_at(bytes, 0), -f16_at(bytes, 2));
        simple::read_nibbles(&bytes[8..24], parts);
        simple::read_fifth_bits(&bytes[4..8], parts);
    }

    fn write(parts: &Parts, bytes: &mut [u8]) {
        put_f16(bytes, 0, parts.d);
        put_f16(bytes, 2, -parts.m);
        simple::write_fifth_bits(parts, &mut bytes[4..8]);
        simple::write_nibbles(parts, &mut bytes[8..24]);
    }

    fn fit(values: &[f32], parts: &mut Parts) {
        simple::fit_affine(5, values, parts);
    }
}
