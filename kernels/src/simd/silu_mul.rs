//! The activations between an expert's projections, sixteen values at once.

use super::{
    Simd,
    exp::exp,
    isa::{Isa, Kernel, ROWS},
};
use crate::{
    ExpertKind,
    cpu::{SWIGLU_ALPHA, SWIGLU_LIMIT},
};

/// The function of an expert of this kind between its projections, in place: `gate` and `up` (F), and their biases, if
/// it has any, (F) padded to whole panels.
pub(crate) fn activate(
    simd: Simd,
    kind: ExpertKind,
    gate: &mut [f32],
    up: &[f32],
    biases: Option<&[Vec<f32>; 2]>,
) {
    // Whole panels at once; a biased expert's one by one, with their biases, as is what is left.
    let n_whole = if biases.is_none() { gate.len() / ROWS } else { 0 };
    let (whole, gate) = gate.split_at_mut(n_whole * ROWS);
    let (whole_up, up) = up.split_at(n_whole * ROWS);
    simd.run(SiluMul { gate: whole.as_chunks_mut().0, up: whole_up.as_chunks().0 });
    for (n, (gate, up)) in gate.chunks_mut(ROWS).zip(up.chunks(ROWS)).enumerate() {
        let (mut g, mut u) = ([[0.0; ROWS]], [[0.0; ROWS]]);
        g[0][..gate.len()].copy_from_slice(gate);
        u[0][..up.len()].copy_from_slice(up);
        match (kind, biases) {
            (ExpertKind::ClampedSwiglu, Some(biases)) => {
                let [gate_bias, up_bias] = [0, 1].map(|which| {
                    biases[which][n * ROWS..].first_chunk::<ROWS>().expect("biases are whole panels")
                });
                simd.run(ClampedSwiglu { gate: &mut g, up: &u, gate_bias, up_bias });
            }
            _ => simd.run(SiluMul { gate: &mut g, up: &u }),
        }
        gate.copy_from_slice(&g[0][..gate.len()]);
    }
}

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

/// `gate[t][row] = (u + 1) g sigmoid(1.702 g)`, in place, with `g` the gate plus its bias cut to at most 7, `u` the up plus
/// its bias cut to between -7 and 7.
pub(super) struct ClampedSwiglu<'a> {
    pub(super) gate: &'a mut [[f32; ROWS]],
    pub(super) up: &'a [[f32; ROWS]],
    pub(super) gate_bias: &'a [f32; ROWS],
    pub(super) up_bias: &'a [f32; ROWS],
}

impl Kernel for ClampedSwiglu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let (gate_bias, up_bias) = (isa.lanes(self.gate_bias), isa.lanes(self.up_bias));
        for (gate, up) in self.gate.iter_mut().zip(self.up) {
            let g = isa.at_most(isa.add(isa.lanes(gate), gate_bias), SWIGLU_LIMIT);
            let u = isa.at_least(isa.add(isa.lanes(up), up_bias), -SWIGLU_LIMIT);
            let u = isa.at_most(u, SWIGLU_LIMIT);
            let exponent = isa.mul(isa.splat(-SWIGLU_ALPHA), g);
            let denominator = isa.add(isa.splat(1.0), exp(isa, exponent));
            *gate = isa.to_array(isa.mul(isa.add(u, isa.splat(1.0)), isa.div(g, denominator)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn the_clamped_kind_is_close_everywhere_and_the_same_on_every_instruction_set() {
        let x: Vec<f32> = (-800..800).map(|i| i as f32 / 64.0).chain([1e30, -1e30, -0.0]).collect();
        let mut expected: Option<Vec<u32>> = None;
        for simd in Simd::available() {
            let mut bits = Vec::new();
            for x in x.chunks(ROWS) {
                let (mut gate, mut up) = ([[0.0; ROWS]], [[0.0; ROWS]]);
                gate[0][..x.len()].copy_from_slice(x);
                up[0][..x.len()].copy_from_slice(x);
                let (gate_bias, up_bias) = (&[0.5; ROWS], &[-0.25; ROWS]);
                simd.run(ClampedSwiglu { gate: &mut gate, up: &up, gate_bias, up_bias });
                for (x, y) in x.iter().zip(gate[0]) {
                    let mut exact = [x + 0.5];
                    crate::cpu::clamped_swiglu(&mut exact, &[x - 0.25]);
                    assert!((y - exact[0]).abs() <= 1e-6 * exact[0].abs() + 1e-7, "{simd} {x} {y}");
                    bits.push(y.to_bits());
                }
            }
            assert_eq!(*expected.get_or_insert_with(|| bits.clone()), bits, "{simd}");
        }
    }
}
