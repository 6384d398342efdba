//! q4_K: 4 bits a weight in blocks of 256 columns; each group of 32 has a 6-bit scale and minimum.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16, the unit of the scales |
//! | 2..4 | `m`, f16, the unit of the minimums |
//! | 4..16 | eight scales and eight minimums, 6 bits each, as in [`super::k_affine`] |
//! | 16..144 | nibbles: byte `32 c + i` holds column `64 c + i` (low) and column `64 c + 32 + i` (high) |

use super::{definition::Definition, format::Integer, k_affine, parts::Parts};

pub(crate) struct Q4K;

impl Integer for Q4K {
    const DEFINITION: Definition =
        Definition { bytes: 144, codes: &[k_affine::nibbles(16)], gguf: Some(12), ..k_affine::BLOCK };
    #[cfg(test)]
    const NOISE_LOSS: f64 = 1.2 / (15.0 * 15.0);

    fn fit(values: &[f32], parts: &mut Parts) {
        k_affine::fit::<32>(15, 63, values, parts);
    }
}
