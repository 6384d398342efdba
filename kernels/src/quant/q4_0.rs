//! q4_0: 4 bits a weight and one scale for each 32 columns, symmetric: `(code - 8) * d`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..18 | nibbles: byte `i` holds column `i` (low) and column `i + 16` (high) |

use super::{
    parts::{Block, Geometry, Parts, f16_at, put_f16},
    simple,
};

pub(super) struct Q4_0;

impl Block for Q4_0 {
    const GEOMETRY: Geometry = simple::geometry(false, Some(8));
    const BYTES: usize = 18;

    #[inline]
    fn read(bytes: &[u8], parts: &mut Parts) {
        (parts.d, parts.zero) = (f16_at(bytes, 0), 8);
        simple::read_nibbles(&bytes[2..18], parts);
    }

    fn write(parts: &Parts, bytes: &mut [u8]) {
        put_f16(bytes, 0, parts.d);
        simple::write_nibbles(parts, &mut bytes[2..18]);
    }

    fn fit(values: &[f32], parts: &mut Parts) {
        simple::fit_symmetric(4, values, parts);
    }
}
