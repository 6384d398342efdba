//! The activation between an expert's projections, sixteen values at once.

use super::isa::{Isa, Kernel, ROWS};

/// `gate[t][row] = silu(gate[t][row]) * up[t][row]`, in place, with `silu(x) = x / (1 + exp(-x))`.
pub(super) struct SiluMul<'a> {
    pub(super) gate: &'a mut [[f32; ROWS]],
    pub(super) up: &'a [[f32; ROWS]],
}

impl Kernel for SiluMul<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        for (gate, up) in self.gate.iter_mut().zip(self.up) {
            let (x, up) = (isa.lanes(gate), isa.lanes(up));
            let denominator = isa.add(isa.splat(1.0), exp(isa, isa.sub(isa.splat(0.0), x)));
            *gate = isa.to_array(isa.mul(isa.div(x, denominator), up));
        }
    }
}

/// `exp(x)` to two units in the last place, of what lies beyond f32's normal numbers the nearest that does not.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`, a polynomial in r (Cephes' `expf`), and n as exponent.
#[inline(always)]
fn exp<I: Isa>(isa: I, x: I::Floats) -> I::Floats {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Simd;

    #[test]
    fn is_close_everywhere_and_the_same_on_every_instruction_set() {
        let x: Vec<f32> =
            (-1000..1000).map(|i| i as f32 / 8.0).chain([f32::NAN, 1e30, -1e30, -0.0]).collect();
        let mut expected: Option<Vec<u32>> = None;
        for simd in Simd::available() {
            let mut bits = Vec::new();
            for x in x.chunks(ROWS) {
                let mut gate = [[0.0; ROWS]];
                gate[0][..x.len()].copy_from_slice(x);
                simd.run(SiluMul { gate: &mut gate, up: &[[2.0; ROWS]] });
                for (x, y) in x.iter().zip(gate[0]) {
                    let exact = 2.0 * f64::from(*x) / (1.0 + (-f64::from(*x)).exp());
                    let error = (f64::from(y) - exact).abs();
                    assert!(
                        if x.is_nan() { y.is_nan() } else { error <= 4e-7 * exact.abs() + 2e-8 },
                        "{simd} {x} {y}"
                    );
                    bits.push(if y.is_nan() { 0 } else { y.to_bits() });
                }
            }
            assert_eq!(*expected.get_or_insert_with(|| bits.clone()), bits, "{simd}");
        }
    }
}
