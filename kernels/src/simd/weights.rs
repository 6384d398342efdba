//! What each token of a vocabulary weighs when one is drawn.

use super::{
    Draw, Simd,
    exp::exp,
    isa::{Isa, Kernel, ROWS},
};

/// From here on numbers are multiples of 2^-34: adding it to smaller ones rounds them to that, ties to even.
const ROUNDER: f32 = 1.0 / 2048.0;

/// Each of `logits` becomes `exp((logit - largest) / temperature)`, at most 1, to two units in the last place, then to a multiple of
/// 2^-34, and the same on every machine; 0 for minus infinity and for what is no number.
pub fn weights(logits: &mut [f32], largest: f32, temperature: f32) {
    let simd = Simd::detect();
    let scale = Draw { temperature, random: 0 }.scale();
    for logit in &mut *logits {
        *logit = if *logit > f32::NEG_INFINITY { *logit } else { f32::NEG_INFINITY };
    }
    let (vectors, rest) = logits.as_chunks_mut::<ROWS>();
    simd.run(Weights { logits: vectors, largest, scale });
    let mut last = [[f32::NEG_INFINITY; ROWS]];
    last[0][..rest.len()].copy_from_slice(rest);
    simd.run(Weights { logits: &mut last, largest, scale });
    rest.copy_from_slice(&last[0][..rest.len()]);
}

struct Weights<'a> {
    logits: &'a mut [[f32; ROWS]],
    largest: f32,
    scale: f32,
}

impl Kernel for Weights<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        for logits in self.logits {
            let below = isa.mul(isa.sub(isa.lanes(logits), isa.splat(self.largest)), isa.splat(self.scale));
            let weights = isa.to_array(exp(isa, isa.at_most(below, 0.0)));
            *logits =
                weights.map(|weight| if weight < ROUNDER { weight + ROUNDER - ROUNDER } else { weight });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::noise;

    #[test]
    fn weights_are_exponentials_and_what_cannot_be_drawn_weighs_nothing() {
        let mut logits: Vec<f32> = noise(7, 1003, 20.0);
        logits.extend([f32::NEG_INFINITY, f32::NAN, f32::MIN, 20.0]);
        for temperature in [0.1_f32, 1.0, 3.0] {
            let mut actual = logits.clone();
            weights(&mut actual, 20.0, temperature);
            for (logit, weight) in logits.iter().zip(&actual) {
                let expected = ((f64::from(*logit) - 20.0) / f64::from(temperature)).exp();
                // Two units, two of the quotient's roundings in an exponent of at most 70, and half a unit of 2^-34.
                let near = (f64::from(*weight) - expected).abs() <= expected * 1e-5 + 2.0_f64.powi(-35);
                assert!(near || (*weight == 0.0 && logit.is_nan()), "{logit}: {weight}, {expected}");
                assert_eq!((f64::from(*weight) * 2.0_f64.powi(34)).fract(), 0.0);
            }
            assert_eq!(actual[1003..], [0.0, 0.0, 0.0, 1.0]);
        }
        // However low the temperature.
        for temperature in [f32::MIN_POSITIVE, f32::from_bits(1)] {
            let mut logits = [2.0, 2.0, 1.999];
            weights(&mut logits, 2.0, temperature);
            assert_eq!(logits, [1.0, 1.0, 0.0]);
        }
        // The largest may be infinite: then it is given as the largest number.
        let mut infinite = [f32::INFINITY, f32::MAX, 0.0];
        weights(&mut infinite, f32::MAX, 1.0);
        assert_eq!(infinite, [1.0, 1.0, 0.0]);
    }

    #[test]
    fn every_instruction_set_weighs_alike() {
        let logits = noise(8, 64 * ROWS, 30.0);
        let all = Simd::available().map(|simd| {
            let mut logits = logits.clone();
            simd.run(Weights { logits: logits.as_chunks_mut().0, largest: 30.0, scale: 1.25 });
            logits.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        });
        let all: Vec<_> = all.collect();
        assert!(all.windows(2).all(|two| two[0] == two[1]));
    }
}
