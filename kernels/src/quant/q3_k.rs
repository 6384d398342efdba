//! q3_K: 3 bits a weight in blocks of 256 columns, symmetric; each group of 16 has a 6-bit scale: `d * scale * (code - 4)`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..32 | bit `g` of byte `i` is bit 2 of the code of column `32 g + i` |
//! | 32..96 | bits 0 and 1: of each 128 columns in 32 bytes, bits `2 s` and `2 s + 1` of byte `i` are column `32 s + i`'s |
//! | 96..104 | bits 0..4 of the scales and 32: of group `g` in byte `g % 8`, the first eight in the low nibbles |
//! | 104..108 | bits 4 and 5: of group `g` bits `2 (g / 4)` and the next of byte `g % 4` |
//! | 108..110 | `d`, f16, the unit of the scales |

use super::{
    definition::{Definition, Scale, Steps, Zero},
    format::Integer,
    geometry::MAX_COLS,
    k_symmetric,
    parts::Parts,
    planes::Plane,
};

pub(crate) struct Q3K;

impl Integer for Q3K {
    const DEFINITION: Definition = Definition {
        cols: MAX_COLS,
        group: k_symmetric::GROUP,
        bytes: 110,
        codes: &[Plane { at: 32, bits: 2, width: 32 }, Plane { at: 0, bits: 1, width: 32 }],
        zero: Zero::Fixed(4),
        scale: Scale::F16(108),
        steps: Steps::Planes {
            planes: &[Plane { at: 96, bits: 4, width: 8 }, Plane { at: 104, bits: 2, width: 4 }],
            zero: 32,
            top: 32,
        },
        gguf: Some(11),
        ..Definition::BLOCK
    };
    #[cfg(test)]
    const NOISE_LOSS: f64 = 1.2 / (7.0 * 7.0);

    fn fit(values: &[f32], parts: &mut Parts) {
        k_symmetric::fit(4, 32, values, parts);
    }
}
