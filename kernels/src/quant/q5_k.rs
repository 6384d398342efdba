//! q5_K: 5 bits a weight in blocks of 256 columns; each group of 32 has a 6-bit scale and minimum.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16, the unit of the scales |
//! | 2..4 | `m`, f16, the unit of the minimums |
//! | 4..16 | eight scales and eight minimums, 6 bits each, as in [`super::k_affine`] |
//! | 16..48 | bit `g` of byte `i` is bit 4 of the code of column `32 g + i` |
//! | 48..176 | nibbles: byte `32 c + i` holds column `64 c + i` (low) and column `64 c + 32 + i` (high) |

use super::{definition::Definition, format::Integer, k_affine, parts::Parts, planes::Plane};

pub(crate) struct Q5K;

impl Integer for Q5K {
    const DEFINITION: Definition = Definition {
        bytes: 176,
        codes: &[k_affine::nibbles(48), Plane { at: 16, bits: 1, width: 32 }],
        gguf: Some(13),
        ..k_affine::BLOCK
    };
    #[cfg(test)]
    const NOISE_LOSS: f64 = 1.2 / (31.0 * 31.0);

    fn fit(values: &[f32], parts: &mut Parts) {
        k_affine::fit::<32>(31, 63, values, parts);
    }
}
