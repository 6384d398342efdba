//! q8_0: 8 bits a weight and one scale for each 32 columns: `q * d`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..34 | `q`, an i8 for each column; its code is `q + 128` |

use super::{
    parts::{Block, Geometry, Parts, extreme, f16_at, put_f16, reciprocal, to_f16},
    simple,
};

pub(super) struct Q8_0;

/// The code of weight 0, and what turns an i8 into its code and back.
const ZERO: u8 = 0x80;

impl Block for Q8_0 {
    const GEOMETRY: Geometry = simple::geometry(false, Some(ZERO));
    const BYTES: usize = 34;

    #[inline]
    fn read(bytes: &[u8], parts: &mut Parts) {
        (parts.d, parts.zero) = (f16_at(bytes, 0), ZERO);
        for (code, byte) in parts.codes.iter_mut().zip(&bytes[2..34]) {
            *code = byte ^ ZERO;
        }
    }

    fn write(parts: &Parts, bytes: &mut [u8]) {
        put_f16(bytes, 0, parts.d);
        for (byte, code) in bytes[2..34].iter_mut().zip(&parts.codes) {
            *byte = code ^ ZERO;
        }
    }

    fn fit(values: &[f32], parts: &mut Parts) {
        let d = extreme(values).abs() / 127.0;
        let inverse = reciprocal(d);
        for (code, x) in parts.codes.iter_mut().zip(values) {
            *code = ((x * inverse).round() as i8) as u8 ^ ZERO;
        }
        (parts.d, parts.zero) = (to_f16(d), ZERO);
    }
}
