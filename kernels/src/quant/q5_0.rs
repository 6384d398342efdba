//! q5_0: 5 bits a weight and one scale for each 32 columns, symmetric: `(code - 16) * d`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..6 | a u32: bit `i` is bit 4 of column `i`'s code |
//! | 6..22 | nibbles, bits 0..4: byte `i` holds column `i` (low) and column `i + 16` (high) |

use super::{
    definition::{Definition, Zero},
    format::Integer,
    parts::Parts,
    simple,
};

pub(crate) struct Q5_0;

impl Integer for Q5_0 {
    const DEFINITION: Definition = Definition {
        bytes: 22,
        codes: &[simple::nibbles(6), simple::fifth_bits(2)],
        zero: Zero::Fixed(16),
        gguf: Some(6),
        ..Definition::BLOCK
    };
    #[cfg(test)]
    const NOISE_LOSS: f64 = 1.2 / (32.0 * 32.0);

    fn fit(values: &[f32], parts: &mut Parts) {
        simple::fit_symmetric(5, values, parts);
    }
}
