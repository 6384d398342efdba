//! What q4_K and q5_K share: eight groups of 32 columns, each with a 6-bit scale and a 6-bit minimum.
//!
//! The sixteen 6-bit numbers lie in 12 bytes. For groups 0..4, byte `g` holds the scale and byte `g + 4` the minimum in
//! their low six bits. For groups 4..8, byte `g + 4` holds the low four bits of the scale (low nibble) and of the
//! minimum (high nibble), and the top two bits of bytes `g - 4` and `g` what is missing of the scale and the minimum.

use super::parts::{Geometry, MAX_COLS, Parts, nearest, reciprocal, to_f16};

pub(super) const GROUP: usize = 32;
pub(super) const N_GROUPS: usize = 8;
pub(super) const GEOMETRY: Geometry =
    Geometry { cols: MAX_COLS, group: GROUP, has_minimums: true, zero: None };

/// The largest scale and minimum.
const TOP_SCALE: f32 = 63.0;

#[inline]
pub(super) fn read_scales(bytes: &[u8], parts: &mut Parts) {
    for g in 0..4 {
        parts.scales[g] = (bytes[g] & 63) as i8;
        parts.mins[g] = bytes[g + 4] & 63;
        parts.scales[g + 4] = (bytes[g + 8] & 15 | bytes[g] >> 6 << 4) as i8;
        parts.mins[g + 4] = bytes[g + 8] >> 4 | bytes[g + 4] >> 6 << 4;
    }
}

pub(super) fn write_scales(parts: &Parts, bytes: &mut [u8]) {
    for g in 0..4 {
        let (scale, min) = (parts.scales[g + 4] as u8, parts.mins[g + 4]);
        bytes[g] = parts.scales[g] as u8 | scale >> 4 << 6;
        bytes[g + 4] = parts.mins[g] | min >> 4 << 6;
        bytes[g + 8] = scale & 15 | min << 4;
    }
}

/// The low four bits of all codes: of each 64 columns, the first 32 in the low nibbles of 32 bytes, the others in the
/// high ones.
#[inline]
pub(super) fn read_nibbles(bytes: &[u8], parts: &mut Parts) {
    for (codes, bytes) in parts.codes.chunks_exact_mut(2 * GROUP).zip(bytes.chunks_exact(GROUP)) {
        let (low, high) = codes.split_at_mut(GROUP);
        for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
            (*low, *high) = (byte & 15, byte >> 4);
        }
    }
}

pub(super) fn write_nibbles(parts: &Parts, bytes: &mut [u8]) {
    for (codes, bytes) in parts.codes.chunks_exact(2 * GROUP).zip(bytes.chunks_exact_mut(GROUP)) {
        let (low, high) = codes.split_at(GROUP);
        for ((byte, low), high) in bytes.iter_mut().zip(low).zip(high) {
            *byte = low & 15 | high << 4;
        }
    }
}

/// Codes 0..=`top`: each group is fitted alone, then its scale and minimum are rounded to what six bits can say, then
/// its codes are chosen for those.
pub(super) fn fit(top: u8, values: &[f32], parts: &mut Parts) {
    let mut lines = [Line::default(); N_GROUPS];
    for (line, values) in lines.iter_mut().zip(values.chunks_exact(GROUP)) {
        *line = Line::through(values, f32::from(top));
    }
    let largest = |part: fn(&Line) -> f32| lines.iter().map(part).fold(0.0, f32::max);
    parts.d = to_f16(largest(|line| line.scale) / TOP_SCALE);
    parts.m = to_f16(largest(|line| line.depth) / TOP_SCALE);
    let (to_scale, to_min) = (reciprocal(parts.d), reciprocal(parts.m));
    for (g, line) in lines.iter().enumerate() {
        parts.scales[g] = (line.scale * to_scale).round().min(TOP_SCALE) as i8;
        parts.mins[g] = (line.depth * to_min).round().min(TOP_SCALE) as u8;
        let inverse = reciprocal(parts.d * f32::from(parts.scales[g]));
        let depth = parts.m * f32::from(parts.mins[g]);
        let place = g * GROUP..(g + 1) * GROUP;
        for (code, x) in parts.codes[place.clone()].iter_mut().zip(&values[place]) {
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
    /// The best of some lines: for each guess of a scale the codes it gives, and for those codes the line of least
    /// squares.
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

    /// The code of `x`, given the scale's reciprocal. What is not a number becomes 0.
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
