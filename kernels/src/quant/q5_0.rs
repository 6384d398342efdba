//! q5_0: 5 bits a weight and one scale for each 32 columns, symmetric: `(code - 16) * d`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..6 | a u32: bit `i` is bit 4 of column `i`'s code |
//! | 6..22 | nibbles, bits 0..4: byte `i` holds column `i` (low) and column `i + 16` (high) |

use super::{
    parts::{Block, Geometry, Parts, f16_at, put_f16},
    simple,
};

pub(super) struct Q5_0;

impl Block for Q5_0 {
    const GEOMETRY: Geometry = simple::geometry(false, Some(16));
    const BYTES: usize = 22;

    #[inline]
    fn read(bytes: &[u8], parts: &mut Parts) {
        (parts.d, parts.zero) = (f16_at(bytes, 0), 16);
        simple::read_nibbles(&bytes[6..22], parts);
        simple::read_fifth_bits(&bytes[2..6], parts);
    }

    fn write(parts: &Parts, bytes: &mut [u8]) {
        put_f16(bytes, 0, parts.d);
        simple::write_fifth_bits(parts, &mut bytes[2..6]);
        simple::write_nibbles(parts, &mut bytes[6..22]);
    }

    fn fit(values: &[f32], parts: &mut Parts) {
        simple::fit_symmetric(5, values, parts);
    }
}
