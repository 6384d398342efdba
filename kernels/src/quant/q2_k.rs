//! q2_K: 2 bits a weight in blocks of 256 columns; each group of 16 has a 4-bit scale and minimum.
//!
//! | bytes | field |
//! |---|---|
//! | 0..16 | a scale (low nibble) and a minimum (high nibble) for each group |
//! | 16..80 | codes: of each 128 columns in 32 bytes, bits `2 s` and `2 s + 1` of byte `i` are column `32 s + i`'s |
//! | 80..82 | `d`, f16, the unit of the scales |
//! | 82..84 | `m`, f16, the unit of the minimums |

use super::{
    definition::{Definition, Minimum, Scale, Steps},
    format::Integer,
    geometry::MAX_COLS,
    k_affine,
    parts::Parts,
    planes::Plane,
};

pub(crate) struct Q2K;

const GROUP: usize = 16;

impl Integer for Q2K {
    const DEFINITION: Definition = Definition {
        cols: MAX_COLS,
        group: GROUP,
        bytes: 84,
        codes: &[Plane { at: 16, bits: 2, width: 32 }],
        scale: Scale::F16(80),
        minimum: Some(Minimum::Subtracted(82)),
        // The minimums behind the scales are the second run of sixteen.
        steps: Steps::Planes { planes: &[Plane { at: 0, bits: 4, width: GROUP }], zero: 0, top: 15 },
        gguf: Some(10),
        ..Definition::BLOCK
    };
    /// Four-bit scales cost more than the fifth that six-bit scales cost.
    #[cfg(test)]
    const NOISE_LOSS: f64 = 1.4 / (3.0 * 3.0);

    fn fit(values: &[f32], parts: &mut Parts) {
        k_affine::fit::<GROUP>(3, 15, values, parts);
    }
}
