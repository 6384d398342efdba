//! q4_0: 4 bits a weight and one scale for each 32 columns, symmetric: `(code - 8) * d`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..18 | nibbles: byte `i` holds column `i` (low) and column `i + 16` (high) |

use super::{
    definition::{Definition, Zero},
    format::Integer,
    parts::Parts,
    simple,
};

pub(crate) struct Q4_0;

impl Integer for Q4_0 {
    const DEFINITION: Definition = Definition {
        bytes: 18,
        codes: &[simple::nibbles(2)],
        zero: Zero::Fixed(8),
        gguf: Some(2),
        ..Definition::BLOCK
    };
    #[cfg(test)]
    const NOISE_LOSS: f64 = 1.2 / (16.0 * 16.0);

    fn fit(values: &[f32], parts: &mut Parts) {
        simple::fit_symmetric(4, values, parts);
    }
}
