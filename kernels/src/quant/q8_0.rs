//! q8_0: 8 bits a weight and one scale for each 32 columns: `q * d`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..34 | `q`, an i8 for each column; its code is `q + 128` |

use super::{
    definition::{Definition, Zero},
    format::Integer,
    parts::{Parts, extreme, reciprocal, to_f16},
    planes::Plane,
};

pub(crate) struct Q8_0;

/// The code of weight 0, and what turns an i8 into its code and back.
const ZERO: u8 = 0x80;

impl Integer for Q8_0 {
    const DEFINITION: Definition = Definition {
        bytes: 34,
        codes: &[Plane { at: 2, bits: 8, width: 32 }],
        flip: ZERO,
        zero: Zero::Fixed(ZERO),
        gguf: Some(8),
        ..Definition::BLOCK
    };
    #[cfg(test)]
    const NOISE_LOSS: f64 = 1.2 / (254.0 * 254.0);

    fn fit(values: &[f32], parts: &mut Parts) {
        let d = extreme(values).abs() / 127.0;
        let inverse = reciprocal(d);
        for (code, x) in parts.codes.iter_mut().zip(values) {
            *code = ((x * inverse).round() as i8) as u8 ^ ZERO;
        }
        parts.d = to_f16(d);
    }
}
