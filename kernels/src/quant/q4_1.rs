//! q4_1: 4 bits a weight, a scale and a minimum for each 32 columns: `code * d + min`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..4 | `min`, f16; [`Parts::m`] is its negative |
//! | 4..20 | nibbles: byte `i` holds column `i` (low) and column `i + 16` (high) |

use super::{
    definition::{Definition, Minimum},
    format::Integer,
    parts::Parts,
    simple,
};

pub(crate) struct Q4_1;

impl Integer for Q4_1 {
    const DEFINITION: Definition = Definition {
        bytes: 20,
        codes: &[simple::nibbles(4)],
        minimum: Some(Minimum::Added(2)),
        gguf: Some(3),
        ..Definition::BLOCK
    };
    #[cfg(test)]
    const NOISE_LOSS: f64 = 1.2 / (15.0 * 15.0);

    fn fit(values: &[f32], parts: &mut Parts) {
        simple::fit_affine(4, values, parts);
    }
}
