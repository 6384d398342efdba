//! The common part of q4_K and q5_K: eight groups of 32 columns, each with a 6-bit scale and a 6-bit minimum; and the
//! fitting of such groups.

use super::{
    definition::{Definition, Minimum, Steps},
    geometry::{MAX_COLS, MAX_GROUPS},
    parts::{Parts, nearest, reciprocal, to_f16},
    planes::Plane,
};

/// The common definition of q4_K and q5_K, without their codes.
pub(super) const BLOCK: Definition = Definition {
    cols: MAX_COLS,
    minimum: Some(Minimum::Subtracted(2)),
    steps: Steps::Affine(4),
    ..Definition::BLOCK
};

/// Of each 64 columns, the first 32 in the low nibbles of 32 bytes, the others in the high ones.
pub(super) const fn nibbles(at: usize) -> Plane {
    Plane { at, bits: 4, width: 32 }
}

/// Codes 0..=`top` in groups of N: each group is fitted alone, then its scale and minimum are rounded to what integers up
/// to `top_step` can say, then its codes are chosen for those.
pub(super) fn fit<const N: usize>(top: u8, top_step: u8, values: &[f32], parts: &mut Parts) {
    let (groups, _) = values.as_chunks::<N>();
    let mut lines = [Line::default(); MAX_GROUPS];
    for (line, values) in lines.iter_mut().zip(groups) {
        *line = Line::through(values, f32::from(top));
    }
    let top_step = f32::from(top_step);
    let largest = |part: fn(&Line) -> f32| lines.iter().map(part).fold(0.0, f32::max);
    parts.d = to_f16(largest(|line| line.scale) / top_step);
    parts.m = to_f16(largest(|line| line.depth) / top_step);
    let (to_scale, to_min) = (reciprocal(parts.d), reciprocal(parts.m));
    for (g, (line, values)) in lines.iter().zip(groups).enumerate() {
        parts.scales[g] = (line.scale * to_scale).round().min(top_step) as i8;
        parts.mins[g] = (line.depth * to_min).round().min(top_step) as u8;
        let inverse = reciprocal(parts.d * f32::from(parts.scales[g]));
        let depth = parts.m * f32::from(parts.mins[g]);
        for (code, x) in parts.codes[g * N..].iter_mut().zip(values) {
            *code = (((x + depth) * inverse).round() as u8).min(top);
        }
    }
}

/// `x = code * scale - depth`, both not negative.
#[derive(Clone, Copy, Default)]
struct Line {
    scale: f32,
    depth: f32,
}

/// Codes tried beyond and short of the top for the largest value, and the step between them.
const CANDIDATES: i8 = 10;
const CANDIDATE_STEP: f32 = 0.1;

impl Line {
    /// The best of several lines: each guess of a scale gives codes, and these codes give a line of least squares.
    fn through(values: &[f32], top: f32) -> Self {
        let min = values.iter().fold(0.0, |m: f32, &x| m.min(x));
        let range = values.iter().fold(0.0, |m: f32, &x| m.max(x)) - min;
        let first = Self { scale: range / top, depth: -min };
        let mut best = (first, first.squared_error(values, top));
        for candidate in -CANDIDATES..=CANDIDATES {
            let scale = range / (top + f32::from(candidate) * CANDIDATE_STEP);
            let line = Self { scale, depth: -min }.refined(values, top);
            let error = line.squared_error(values, top);
            if error < best.1 {
                best = (line, error);
            }
        }
        best.0
    }

    /// The code of `x`, given the scale's reciprocal. NaN becomes 0.
    fn code(self, inverse: f32, x: f32, top: f32) -> f32 {
        nearest(((x + self.depth) * inverse).max(0.0).min(top))
    }

    /// The line of least squares through the codes that this one gives.
    fn refined(self, values: &[f32], top: f32) -> Self {
        let (mut l, mut ll, mut x_sum, mut xl) = (0.0, 0.0, 0.0, 0.0);
        let inverse = reciprocal(self.scale);
        for &x in values {
            let code = self.code(inverse, x, top);
            l += code;
            ll += code * code;
            x_sum += x;
            xl += x * code;
        }
        let n = values.len() as f32;
        let determinant = n * ll - l * l;
        let depth = (l * xl - ll * x_sum) * reciprocal(determinant);
        if determinant > 0.0 && depth >= 0.0 {
            Self { scale: ((n * xl - x_sum * l) / determinant).max(0.0), depth }
        } else {
            Self { scale: (xl * reciprocal(ll)).max(0.0), depth: 0.0 }
        }
    }

    fn squared_error(self, values: &[f32], top: f32) -> f32 {
        let inverse = reciprocal(self.scale);
        values.iter().map(|&x| (self.code(inverse, x, top) * self.scale - self.depth - x).powi(2)).sum()
    }
}
