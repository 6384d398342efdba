//! The activation between an expert's projections, sixteen values at once.

use super::{
    exp::exp,
    isa::{Isa, Kernel, ROWS},
};

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
