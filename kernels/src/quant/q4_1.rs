//! q4_1: 4 bits a weight, a scale and a minimum for each 32 columns: `code * d + min`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..4 | `min`, f16; [`Parts::m`] is its negative |
//! | 4..20 | nibbles: byte `i` holds column `i` (low) and column `i + 16` (high) |

use super::{
    parts::{Block, Geometry, Parts, f16_at, put_f16},
    simple,
};

pub(super) struct Q4_1;

impl Block for Q4_1 {
    const GEOMETRY: Geometry = simple::geometry(true, None);
    const BYTES: usize = 20;

    #[inline]
    fn read(bytes: &[u8], parts: &mut Parts) {
        (parts.d, parts.m) = (f16_at(bytes, 0), -f16_at(bytes, 2));
        simple::read_nibbles(&bytes[4..20], parts);
    }

    fn write(parts: &Parts, bytes: &mut [u8]) {
        put_f16(bytes, 0, parts.d);
        put_f16(bytes, 2, -parts.m);
        simple::write_nibbles(parts, &mut bytes[4..20]);
    }

    fn fit(values: &[f32], parts: &mut Parts) {
        simple::fit_affine(4, values, parts);
    }
}
