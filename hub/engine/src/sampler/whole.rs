//! Draws from a whole vocabulary. Sorting it, or selecting from it, would take longer than a step of a small model: what cannot be
//! among the drawn is left out first.

use moex_model::weights;
use rand::{RngExt, rngs::Xoshiro256PlusPlus};

use super::{Sampling, best::at_least, choose};

/// Weights that are added up before they join the whole sum.
const BLOCK: usize = 1024;

/// Draws one of all tokens, given their `logits` (V), of which `best` is the largest, by the sampling's temperature, top-p and min-p.
/// `kept` is memory.
pub(super) fn draw_of_all(
    sampling: &Sampling,
    rng: &mut Xoshiro256PlusPlus,
    logits: &mut [f32],
    best: f32,
    kept: &mut Vec<(u32, f32)>,
) -> Option<u32> {
    weights(logits, best, sampling.temperature);
    let weights = logits;
    let total: f64 = weights.chunks(BLOCK).map(sum).sum();
    let top_p = f64::from(sampling.top_p);
    if top_p >= 1.0 && sampling.min_p == 0.0 {
        return at(weights, f64::from(rng.random::<f32>()) * total);
    }
    // All tokens that weigh less weigh together less than what top-p leaves out; half of it, since sums are rounded.
    let left_out = (1.0 - top_p).max(0.0) * total / (2 * weights.len()) as f64;
    let least = (left_out as f32).max(sampling.min_p).max(f32::MIN_POSITIVE);
    kept.clear();
    kept.extend(at_least(weights, least));
    choose(sampling, rng, kept, top_p * total)
}

/// The token at `place` of all weights, one after another.
fn at(weights: &[f32], mut place: f64) -> Option<u32> {
    let blocks = (0..).step_by(BLOCK).zip(weights.chunks(BLOCK));
    for (first, block) in blocks {
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
        // What rounding leaves goes to the next block.
        place = 0.0;
    }
    // Or to the last token.
    weights.iter().rposition(|weight| *weight > 0.0).map(|token| token as u32)
}

/// In sixteen sums, each upwards, that are added in order; then what is left.
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
