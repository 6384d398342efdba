//! q6_K: 6 bits a weight in blocks of 256 columns, symmetric; each group of 16 has an 8-bit scale:
//! `d * scale * (code - 32)`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..128 | bits 0..4 of the codes: of each 128 columns in 64 bytes, columns 0..64 in the low nibbles, 64..128 in the high ones |
//! | 128..192 | bits 4..6: of each 128 columns in 32 bytes, bits `2 s` and `2 s + 1` of byte `i` are column `32 s + i`'s |
//! | 192..208 | sixteen scales, i8 |
//! | 208..210 | `d`, f16 |

use super::{
    definition::{Definition, Scale, Steps, Zero},
    format::Integer,
    geometry::MAX_COLS,
    k_symmetric,
    parts::Parts,
    planes::Plane,
};

pub(crate) struct Q6K;

impl Integer for Q6K {
    const DEFINITION: Definition = Definition {
        cols: MAX_COLS,
        group: k_symmetric::GROUP,
        bytes: 210,
        codes: &[Plane { at: 0, bits: 4, width: 64 }, Plane { at: 128, bits: 2, width: 32 }],
        zero: Zero::Fixed(32),
        scale: Scale::F16(208),
        steps: Steps::Planes { planes: &[Plane { at: 192, bits: 8, width: 16 }], zero: 0, top: 128 },
        gguf: Some(14),
        ..Definition::BLOCK
    };
    #[cfg(test)]
    const NOISE_LOSS: f64 = 1.2 / (63.0 * 63.0);

    fn fit(values: &[f32], parts: &mut Parts) {
        k_symmetric::fit(32, 128, values, parts);
    }
}
