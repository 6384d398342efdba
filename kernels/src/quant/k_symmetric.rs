//! Fits groups of 16 columns to an integer scale each, without minimums: for q3_K and q6_K.

use super::geometry::MAX_GROUPS;
use super::parts::{Parts, extreme, nearest, reciprocal, to_f16};

pub(super) const GROUP: usize = 16;

/// Scales tried for each group: those that take the value of the largest magnitude to the lowest code and to a little less
/// or more.
const CANDIDATES: i8 = 9;
const CANDIDATE_STEP: f32 = 0.1;

/// Codes 0..2 `zero`: each group is fitted alone, then its scale is rounded to what integers down to `-top_step` can say,
/// then its codes are chosen for that.
pub(super) fn fit(zero: u8, top_step: u8, values: &[f32], parts: &mut Parts) {
    let zero = f32::from(zero);
    let mut scales = [0.0; MAX_GROUPS];
    let (groups, _) = values.as_chunks::<GROUP>();
    for (scale, values) in scales.iter_mut().zip(groups) {
        *scale = best_scale(zero, values);
    }
    let top_step = f32::from(top_step);
    parts.d = to_f16(extreme(&scales) / -top_step);
    let inverse = reciprocal(parts.d);
    for (g, (scale, values)) in scales.iter().zip(groups).enumerate() {
        // NaN becomes 0.
        parts.scales[g] = (scale * inverse).round().clamp(-top_step, top_step - 1.0) as i8;
        let inverse = reciprocal(parts.d * f32::from(parts.scales[g]));
        for (place, &x) in parts.codes[g * GROUP..].iter_mut().zip(values) {
            *place = (code(zero, x, inverse) + zero) as u8;
        }
    }
}

/// Tries the codes of each candidate with their least-squares scale; returns the scale with the smallest error.
fn best_scale(zero: f32, values: &[f32]) -> f32 {
    let extreme = extreme(values);
    let mut best = (extreme / -zero, f32::INFINITY);
    for candidate in -CANDIDATES..=CANDIDATES {
        let inverse = -(zero + f32::from(candidate) * CANDIDATE_STEP) * reciprocal(extreme);
        let (mut xl, mut ll) = (0.0, 0.0);
        for &x in values {
            let code = code(zero, x, inverse);
            xl += x * code;
            ll += code * code;
        }
        let scale = xl * reciprocal(ll);
        let error = values.iter().map(|&x| (code(zero, x, inverse) * scale - x).powi(2)).sum();
        if error < best.1 {
            best = (scale, error);
        }
    }
    best.0
}

/// The code less its zero; NaN becomes 0.
fn code(zero: f32, x: f32, inverse: f32) -> f32 {
    let code = x * inverse;
    nearest(if code.is_nan() { 0.0 } else { code.clamp(-zero, zero - 1.0) })
}
