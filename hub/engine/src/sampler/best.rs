//! The best logits of a vocabulary, found without a look at most of them: a block of which the largest is no candidate has none.

use std::cmp::Ordering;

/// Logits of a block.
const BLOCK: usize = 64;
/// Logits that are compared at once.
const LANES: usize = 16;

/// The largest logit and the second largest.
pub(super) struct Best {
    pub(super) token: u32,
    pub(super) logit: f32,
    pub(super) runner_up: f32,
}

impl Best {
    /// Of `logits` (V): of equals the lowest token; `None` if none is a number above minus infinity.
    pub(super) fn of(logits: &[f32]) -> Option<Self> {
        let mut best: Option<Self> = None;
        for (first, block) in (0..).step_by(BLOCK).zip(logits.chunks(BLOCK)) {
            let least = best.as_ref().map_or(f32::NEG_INFINITY, |best| best.runner_up);
            if largest(block) <= least {
                continue;
            }
            for (token, &logit) in (first..).zip(block).filter(|(_, logit)| **logit > f32::NEG_INFINITY) {
                match &mut best {
                    Some(best) if logit <= best.logit => best.runner_up = best.runner_up.max(logit),
                    _ => {
                        let runner_up = best.map_or(f32::NEG_INFINITY, |best| best.logit);
                        best = Some(Self { token, logit, runner_up });
                    }
                }
            }
        }
        best
    }
}

/// Tokens among which the `n` best of `logits` (V) are, of equals the first, and few others; with their logits, in order.
pub(super) fn candidates(logits: &[f32], n: usize) -> impl Iterator<Item = (u32, f32)> {
    let bound = bound(logits, n);
    // However many equal it, as many as are wanted are enough.
    let mut left = n;
    at_least(logits, bound).filter(move |(_, logit)| match logit.total_cmp(&bound) {
        Ordering::Greater => true,
        Ordering::Equal => left.checked_sub(1).map(|fewer| left = fewer).is_some(),
        Ordering::Less => false,
    })
}

/// A bound that the `n` best of `logits` (V) are not below, so high that few others are above it: the `n`th largest of the blocks'
/// largest.
fn bound(logits: &[f32], n: usize) -> f32 {
    let mut largest: Vec<f32> = logits.chunks(BLOCK).map(largest).collect();
    if n == 0 || n > largest.len() {
        return f32::NEG_INFINITY;
    }
    *largest.select_nth_unstable_by(n - 1, |a, b| b.total_cmp(a)).1
}

/// Those of `values` that are at least `bound` and more than minus infinity, with their places.
pub(super) fn at_least(values: &[f32], bound: f32) -> impl Iterator<Item = (u32, f32)> {
    let blocks = (0..).step_by(BLOCK).zip(values.chunks(BLOCK));
    let blocks = blocks.filter(move |(_, block)| largest(block) >= bound);
    let in_blocks = blocks.flat_map(|(first, block)| (first..).zip(block.iter().copied()));
    in_blocks.filter(move |(_, value)| *value >= bound && *value > f32::NEG_INFINITY)
}

/// The largest number; minus infinity if there is none.
fn largest(block: &[f32]) -> f32 {
    let max = |a: f32, b: f32| if b > a { b } else { a };
    let (vectors, rest) = block.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for values in vectors {
        for (lane, value) in lanes.iter_mut().zip(values) {
            *lane = max(*lane, *value);
        }
    }
    lanes.into_iter().chain(rest.iter().copied()).fold(f32::NEG_INFINITY, max)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn logits() -> impl Strategy<Value = Vec<f32>> {
        let special = [f32::NAN, f32::NEG_INFINITY, f32::INFINITY, 0.0, -0.0];
        let logit = prop_oneof![8 => -3i8..4, 1 => 100i8..105].prop_map(move |x| match x {
            100.. => special[x as usize - 100],
            x => f32::from(x),
        });
        proptest::collection::vec(logit, 0..300)
    }

    proptest! {
        #[test]
        fn the_best_is_the_first_of_the_largest(logits in logits()) {
            let numbers = || (0..).zip(&logits).filter(|(_, logit)| **logit > f32::NEG_INFINITY);
            let best = numbers().fold(None, |best: Option<(u32, f32)>, (token, &logit)| match best {
                Some(best) if logit <= best.1 => Some(best),
                _ => Some((token, logit)),
            });
            let actual = Best::of(&logits);
            prop_assert_eq!(actual.as_ref().map(|best| (best.token, best.logit)), best);
            if let (Some(best), Some(actual)) = (best, actual) {
                let others = numbers().filter(|(token, _)| *token != best.0);
                let runner_up = others.fold(f32::NEG_INFINITY, |largest, (_, &logit)| largest.max(logit));
                prop_assert_eq!(actual.runner_up, runner_up);
            }
        }

        #[test]
        fn the_best_are_not_below_their_bound(logits in logits(), n in 0..9_usize) {
            let bound = bound(&logits, n);
            let n_numbers = logits.iter().filter(|logit| **logit > f32::NEG_INFINITY).count();
            let left: Vec<_> = at_least(&logits, bound).collect();
            prop_assert!(left.len() >= n.min(n_numbers), "{} of {}, {}", left.len(), n_numbers, n);
            let numbers = (0..).zip(logits.iter().copied()).filter(|(_, logit)| *logit > f32::NEG_INFINITY);
            prop_assert_eq!(left, numbers.filter(|(_, logit)| *logit >= bound).collect::<Vec<_>>());
        }
    }
}
