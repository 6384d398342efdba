//! Draws from a whole vocabulary. Sorting it, or selecting from it, would take longer than a step of a small model: what cannot be
//! among the drawn is left out first.

use moex_model::{Draw, draw, total, weights};

use super::{Sampling, best::at_least, choose};

/// Draws one of all tokens, given their `logits` (V), of which `best` is the largest, by the sampling's top-p and min-p and as `how`
/// says. `kept` is memory.
pub(super) fn draw_of_all(
    sampling: &Sampling,
    how: Draw,
    logits: &mut [f32],
    best: f32,
    kept: &mut Vec<(u32, f32)>,
) -> Option<u32> {
    if sampling.draws_from_all() {
        return draw(logits, best, how);
    }
    weights(logits, best, how.temperature);
    let weights = logits;
    let total = total(weights);
    let top_p = f64::from(sampling.top_p);
    // All tokens that weigh less weigh together less than what top-p leaves out; half of it, since a product is rounded.
    let left_out = (1.0 - top_p).max(0.0) * total / (2 * weights.len()) as f64;
    let least = (left_out as f32).max(sampling.min_p).max(f32::MIN_POSITIVE);
    kept.clear();
    kept.extend(at_least(weights, least));
    choose(sampling, how, kept, top_p * total)
}
