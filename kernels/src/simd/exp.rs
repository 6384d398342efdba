//! The exponential, sixteen values at once.

use super::isa::Isa;

/// `exp(x)` to two units in the last place. Results beyond f32's normal numbers become the nearest normal one.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`, a polynomial in r (Cephes' `expf`), and n as exponent.
#[inline(always)]
pub(super) fn exp<I: Isa>(isa: I, x: I::Floats) -> I::Floats {
    /// Adding 1.5 * 2^23 leaves no bits behind the point, so that the addition itself rounds.
    const ROUNDER: f32 = 12_582_912.0;
    const EXPONENT_BIAS: f32 = 127.0;
    /// ln 2 in two parts, the first with few enough bits that its products with n are exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    const POLYNOMIAL: [f32; 6] =
        [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
    let x = isa.at_most(isa.at_least(x, -87.0), 88.0);
    let rounded = isa.add(isa.mul(x, isa.splat(std::f32::consts::LOG2_E)), isa.splat(ROUNDER));
    let n = isa.sub(rounded, isa.splat(ROUNDER));
    let r = isa.sub(x, isa.mul(n, isa.splat(LN_2[0])));
    let r = isa.sub(r, isa.mul(n, isa.splat(LN_2[1])));
    let mut sum = isa.splat(POLYNOMIAL[0]);
    for coefficient in &POLYNOMIAL[1..] {
        sum = isa.add(isa.mul(sum, r), isa.splat(*coefficient));
    }
    let sum = isa.add(isa.mul(isa.mul(sum, r), r), isa.add(r, isa.splat(1.0)));
    let power = isa.to_exponent(isa.add(rounded, isa.splat(EXPONENT_BIAS)));
    isa.mul(sum, power)
}
