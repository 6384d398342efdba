//! iq4_nl and iq4_xs: 4 bits a weight, codes of a table that is denser around zero; a scale for each 32 columns.
//!
//! | iq4_nl | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..18 | nibbles: byte `i` holds column `i` (low) and column `i + 16` (high) |
//!
//! iq4_xs has blocks of 256 columns, and a 6-bit integer scale less 32 for each group of 32 of them:
//!
//! | iq4_xs | field |
//! |---|---|
//! | 0..2 | `d`, f16, the unit of the scales |
//! | 2..4 | bits 4 and 5 of the scales, a u16: bits `2 g` and `2 g + 1` are group `g`'s |
//! | 4..8 | bits 0..4 of the scales, two groups a byte, the first in the low nibble |
//! | 8..136 | nibbles of the groups in order, each as in iq4_nl |

use super::{
    definition::{Definition, Steps, Zero},
    format::Integer,
    geometry::MAX_COLS,
    parts::{Parts, extreme, reciprocal, to_f16},
    planes::Plane,
    simple,
};

/// The columns of a group.
const GROUP: usize = 32;
/// The value that stands for weight 0. It is not in the table: the nearest are -10 and 1.
const ZERO: u8 = 128;
/// -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113, and 128.
const TABLE: [u8; 16] = [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241];

pub(crate) struct Iq4Nl;

impl Integer for Iq4Nl {
    const DEFINITION: Definition = Definition {
        bytes: 18,
        codes: &[simple::nibbles(2)],
        table: Some(&TABLE),
        zero: Zero::Fixed(ZERO),
        gguf: Some(20),
        ..Definition::BLOCK
    };
    /// The widest steps are those of 10 levels.
    #[cfg(test)]
    const NOISE_LOSS: f64 = 1.2 / (10.0 * 10.0);

    fn fit(values: &[f32], parts: &mut Parts) {
        parts.d = to_f16(best_scale(values));
        put_codes(parts.d, values, &mut parts.codes);
    }
}

pub(crate) struct Iq4Xs;

impl Integer for Iq4Xs {
    const DEFINITION: Definition = Definition {
        cols: MAX_COLS,
        group: GROUP,
        bytes: 136,
        codes: &[Plane { at: 8, bits: 4, width: 16 }],
        table: Some(&TABLE),
        zero: Zero::Fixed(ZERO),
        steps: Steps::Planes {
            planes: &[Plane { at: 4, bits: 4, width: 1 }, Plane { at: 2, bits: 2, width: 1 }],
            zero: 32,
            top: 32,
        },
        gguf: Some(23),
        ..Definition::BLOCK
    };
    #[cfg(test)]
    const NOISE_LOSS: f64 = 1.2 / (10.0 * 10.0);

    /// Each group is fitted alone, then its scale is rounded to what six bits can say, then its codes are chosen for that.
    fn fit(values: &[f32], parts: &mut Parts) {
        let (groups, _) = values.as_chunks::<GROUP>();
        let mut scales = [0.0; MAX_COLS / GROUP];
        for (scale, values) in scales.iter_mut().zip(groups) {
            *scale = best_scale(values);
        }
        parts.d = to_f16(extreme(&scales) / -32.0);
        let inverse = reciprocal(parts.d);
        for (g, (scale, values)) in scales.iter().zip(groups).enumerate() {
            parts.scales[g] = (scale * inverse).round().clamp(-32.0, 31.0) as i8;
            let scale = parts.d * f32::from(parts.scales[g]);
            put_codes(scale, values, &mut parts.codes[g * GROUP..]);
        }
    }
}

/// Scales tried: those that take the value of the largest magnitude to -127, and to a little less or more.
const CANDIDATES: i8 = 7;
const CANDIDATE_STEP: f32 = 2.0;

/// Tries the codes of each candidate with their least-squares scale; returns the scale with the smallest error.
fn best_scale(values: &[f32]) -> f32 {
    let extreme = extreme(values);
    let mut best = (extreme / -127.0, f32::INFINITY);
    for candidate in -CANDIDATES..=CANDIDATES {
        let inverse = -(127.0 + f32::from(candidate) * CANDIDATE_STEP) * reciprocal(extreme);
        let (mut xl, mut ll) = (0.0, 0.0);
        for &x in values {
            let value = value(nearest(x * inverse));
            xl += x * value;
            ll += value * value;
        }
        let scale = xl * reciprocal(ll);
        let error = values.iter().map(|&x| (value(nearest(x * inverse)) * scale - x).powi(2)).sum();
        if error < best.1 {
            best = (scale, error);
        }
    }
    best.0
}

fn put_codes(scale: f32, values: &[f32], codes: &mut [u8]) {
    let inverse = reciprocal(scale);
    for (code, x) in codes.iter_mut().zip(values) {
        *code = nearest(x * inverse);
    }
}

fn value(code: u8) -> f32 {
    f32::from(TABLE[usize::from(code)]) - f32::from(ZERO)
}

/// The code whose value is nearest to `x`: it counts the middles between neighbouring values that lie below `x`. NaN
/// gives 8, the code of 1.
fn nearest(x: f32) -> u8 {
    if x.is_nan() {
        return 8;
    }
    (1..16).map(|code| u8::from(x > (value(code - 1) + value(code)) / 2.0)).sum()
}
