//! An opened block of columns, the same for every integer format.
//!
//! A format's [`Definition`](super::Definition) says where its bits lie. This file says once what they mean, for
//! decoding and for the integer dot product.

use half::f16;

use super::geometry::{MAX_COLS, MAX_GROUPS};

/// A block, opened: column `i` of group `g = i / group` is `d * scales[g] * (value - zero) - m * mins[g]`, rounded after
/// each operation from the left, where the value is `codes[i]`, or what the format's table has for it.
///
/// Formats without integer scales have the scale 1, those without minimums an `m` of 0: both change no bit.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    /// The scale.
    pub(crate) d: f32,
    /// The scale of the minimums.
    pub(crate) m: f32,
    /// What stands for weight 0.
    pub(crate) zero: u8,
    /// One for each column.
    pub(crate) codes: [u8; MAX_COLS],
    /// One for each group.
    pub(crate) scales: [i8; MAX_GROUPS],
    /// One for each group.
    pub(crate) mins: [u8; MAX_GROUPS],
}

impl Default for Parts {
    fn default() -> Self {
        Self { d: 0.0, m: 0.0, zero: 0, codes: [0; MAX_COLS], scales: [1; MAX_GROUPS], mins: [1; MAX_GROUPS] }
    }
}

/// The f16 nearest to `value`, as f32. Values beyond the largest f16 become that one; NaN becomes 0.
pub(super) fn to_f16(value: f32) -> f32 {
    let max = f16::MAX.to_f32();
    if value.is_nan() { 0.0 } else { f16::from_f32(value.clamp(-max, max)).to_f32() }
}

/// `1 / x`, or 0 for 0.
pub(super) fn reciprocal(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// The value of the largest magnitude, with its sign; the first of equals.
pub(super) fn extreme(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |m: f32, &x| if x.abs() > m.abs() { x } else { m })
}

/// The nearest integer to `x`, ties to even, where `|x|` is at most 2^22. It takes an addition and a subtraction, which
/// every processor has for whole vectors; `f32::round` is a call where the compiler does not know of the instruction.
pub(super) fn nearest(x: f32) -> f32 {
    const BIAS: f32 = 12_582_912.0; // 1.5 x 2^23: above it, one step is 1
    (x + BIAS) - BIAS
}
