//! A draw from a whole vocabulary, the same on every device. Weights are multiples of 2^-34, so that in f64 the sum of up to 2^19 of
//! them is exact, in whatever order they are added. GPU twin: `shader/draw.wgsl`.

use super::weights;

/// The number of what every weight is a multiple of in 1: 2^34.
const UNITS: f64 = (1_u64 << 34) as f64;
/// Weights that are added up before they join the whole sum.
const BLOCK: usize = 1024;

/// How a token is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// Above 0; 0 where nothing is drawn.
    pub temperature: f32,
    /// Any of 2^32 numbers, each as likely.
    pub random: u32,
}

impl Draw {
    /// Where nothing is drawn.
    pub const NOTHING: Self = Self { temperature: 0.0, random: 0 };

    /// The inverse of the temperature; 0 where nothing is drawn. The smallest temperatures have an infinite one, which the best logit
    /// must not be multiplied with.
    pub(crate) fn scale(self) -> f32 {
        if self.temperature == 0.0 { 0.0 } else { (1.0 / self.temperature).min(f32::MAX) }
    }

    /// The place that is drawn among weights of `total`, one after another: from 0 to below that.
    pub fn place(self, total: f64) -> f64 {
        let units = (total * UNITS) as u64;
        let place = (u128::from(units) * u128::from(self.random)) >> 32;
        place as f64 / UNITS
    }
}

/// Draws one of all tokens, given their `logits` (V), which become weights, and of which `largest` is the largest; none if no logit
/// is a number above minus infinity.
pub fn draw(logits: &mut [f32], largest: f32, draw: Draw) -> Option<u32> {
    weights(logits, largest, draw.temperature);
    token_at(logits, draw.place(total(logits)))
}

/// The sum of `weights`.
pub fn total(weights: &[f32]) -> f64 {
    weights.chunks(BLOCK).map(sum).sum()
}

/// The token at `place` of `weights`, one after another.
fn token_at(weights: &[f32], mut place: f64) -> Option<u32> {
    for (first, block) in (0..).step_by(BLOCK).zip(weights.chunks(BLOCK)) {
        let of_block = sum(block);
        if place >= of_block {
            place -= of_block;
            continue;
        }
        for (token, weight) in (first..).zip(block) {
            place -= f64::from(*weight);
            if place < 0.0 {
                return Some(token);
            }
        }
    }
    None
}

/// In sixteen sums, so that they are added at once.
fn sum(weights: &[f32]) -> f64 {
    let (vectors, rest) = weights.as_chunks::<16>();
    let mut sums = [0.0; 16];
    for weights in vectors {
        for (sum, weight) in sums.iter_mut().zip(weights) {
            *sum += f64::from(*weight);
        }
    }
    sums.into_iter().chain(rest.iter().map(|weight| f64::from(*weight))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::noise;

    #[test]
    fn every_token_is_drawn_by_as_many_numbers_as_it_weighs() {
        let logits: Vec<f32> = (0..2500).map(|token| (token % 50) as f32 / 10.0).collect();
        let mut weights = logits.clone();
        super::weights(&mut weights, 4.9, 2.0);
        let total = total(&weights);
        let mut first = 0.0;
        for (token, weight) in (0..).zip(&weights) {
            // The first number whose place is this token's, and the last.
            let number = |place: f64| (place / total * 2.0_f64.powi(32)).ceil() as u32;
            let [start, end] = [number(first), number(first + f64::from(*weight))];
            first += f64::from(*weight);
            for random in [start, end - 1] {
                let drawn = draw(&mut logits.clone(), 4.9, Draw { temperature: 2.0, random });
                assert_eq!(drawn, Some(token), "{random}");
            }
        }
    }

    #[test]
    fn sums_of_a_large_vocabulary_are_exact() {
        let mut weights = noise(3, 300_000, 12.0);
        super::weights(&mut weights, 12.0, 0.7);
        let units: u64 = weights.iter().map(|weight| (f64::from(*weight) * UNITS) as u64).sum();
        assert_eq!((total(&weights) * UNITS) as u64, units);
        let of_halves = total(&weights[123_456..]) + total(&weights[..123_456]);
        assert_eq!(of_halves.to_bits(), total(&weights).to_bits());
    }

    #[test]
    fn the_last_number_draws_a_token_and_nothing_is_drawn_from_nothing() {
        for random in [0, u32::MAX] {
            for temperature in [f32::from_bits(1), 1.0, 100.0] {
                let draw_it = Draw { temperature, random };
                let token =
                    draw(&mut [f32::NEG_INFINITY, 3.0, f32::NAN, -1.0, f32::NEG_INFINITY], 3.0, draw_it);
                assert!(token == Some(1) || (token == Some(3) && temperature >= 1.0), "{token:?}");
                assert_eq!(draw(&mut [f32::NEG_INFINITY, f32::NAN], 0.0, draw_it), None);
            }
        }
    }
}
