//! q5_1: 5 bits a weight, a scale and a minimum for each 32 columns: `code * d + min`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..4 | `min`, f16; [`Parts::m`] is its negative |
//! | 4..8 | a u32: bit `i` is bit 4 of column `i`'s code |
//! | 8..24 | nibbles, bits 0..4: byte `i` holds column `i` (low) and column `i + 16` (high) |

use super::{
    definition::{Definition, Minimum},
    format::Integer,
    parts::Parts,
    simple,
};

pub(crate) struct Q5_1;

impl Integer for Q5_1 {
    const DEFINITION: Definition = Definition {
        bytes: 24,
        codes: &[simple::nibbles(8), simple::fifth_bits(4)],
        minimum: Some(Minimum::Added(2)),
        gguf: Some(7),
        ..Definition::BLOCK
    };
    #[cfg(test)]
    const NOISE_LOSS: f64 = 1.2 / (31.0 * 31.0);

    fn fit(values: &[f32], parts: &mut Parts) {
        simple::fit_affine(5, values, parts);
    }
}
