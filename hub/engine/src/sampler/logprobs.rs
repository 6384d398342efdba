//! How probable the model itself found a token: the log-softmax of its logits, before anything is done to them.

/// The most alternatives that are told beside a drawn token.
pub const MAX_LOGPROBS: usize = 20;
/// What is told of a token that cannot come: JSON has no infinity, and OpenAI says this.
const IMPOSSIBLE: f64 = -9999.0;

/// A drawn token, and the most probable ones in its place.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The token that was drawn.
    pub token: u32,
    /// The natural logarithm of its probability.
    pub logprob: f64,
    /// The most probable tokens with theirs, best first; as many as were asked for.
    pub top: Vec<(u32, f64)>,
}

/// The logits of one position (V), kept until its token is drawn.
#[derive(Debug, Default)]
pub(super) struct Logprobs {
    n_top: usize,
    raw: Vec<f32>,
}

impl Logprobs {
    /// `n_top` alternatives are told, [`MAX_LOGPROBS`] at most.
    pub(super) fn new(n_top: usize) -> Self {
        Self { n_top: n_top.min(MAX_LOGPROBS), raw: Vec::new() }
    }

    /// Keeps the logits as the model gave them.
    pub(super) fn keep(&mut self, logits: &[f32]) {
        self.raw.clear();
        self.raw.extend_from_slice(logits);
    }

    /// What they say of `token`.
    pub(super) fn of(&self, token: u32) -> TokenLogprobs {
        let best = self.raw.iter().copied().filter(|logit| !logit.is_nan()).fold(f32::NEG_INFINITY, f32::max);
        let above = |logit: f32| {
            f64::from(logit.clamp(f32::MIN, f32::MAX)) - f64::from(best.clamp(f32::MIN, f32::MAX))
        };
        let numbers = || self.raw.iter().copied().filter(|logit| !logit.is_nan());
        let log_sum = numbers().map(|logit| above(logit).exp()).sum::<f64>().ln();
        let logprob = |logit: f32| (above(logit) - log_sum).max(IMPOSSIBLE);
        let mut top: Vec<(u32, f32)> =
            (0..).zip(self.raw.iter().copied()).filter(|(_, logit)| !logit.is_nan()).collect();
        if self.n_top < top.len() {
            if self.n_top > 0 {
                top.select_nth_unstable_by(self.n_top - 1, super::best_first);
            }
            top.truncate(self.n_top);
        }
        top.sort_unstable_by(super::best_first);
        let drawn = self.raw.get(token as usize).copied().filter(|logit| !logit.is_nan());
        TokenLogprobs {
            token,
            logprob: drawn.map_or(IMPOSSIBLE, logprob),
            top: top.into_iter().map(|(token, logit)| (token, logprob(logit))).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(logits: &[f32], token: u32, n_top: usize) -> TokenLogprobs {
        let mut logprobs = Logprobs::new(n_top);
        logprobs.keep(logits);
        logprobs.of(token)
    }

    #[test]
    fn probabilities_of_all_tokens_come_to_one() {
        let logits: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.37).sin() * 30.0).collect();
        let sum: f64 = (0..1000).map(|token| of(&logits, token, 0).logprob.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-12, "{sum}");
    }

    #[test]
    fn alternatives_are_the_best_in_order_and_the_lower_id_first_of_equals() {
        let told = of(&[1.0, 3.0, 2.0, 3.0, f32::NAN, f32::NEG_INFINITY], 2, 3);
        assert_eq!(told.top.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [1, 3, 2]);
        assert_eq!(told.logprob, told.top[2].1);
        assert!(told.top.iter().all(|(_, logprob)| *logprob < 0.0));
    }

    #[test]
    fn odd_logits_give_numbers_all_the_same() {
        for logits in [vec![], vec![f32::NAN; 4], vec![f32::INFINITY, 1.0], vec![f32::NEG_INFINITY; 3]] {
            let told = of(&logits, 1, 20);
            assert!(
                told.logprob.is_finite() && told.top.iter().all(|(_, logprob)| logprob.is_finite()),
                "{told:?}"
            );
        }
    }
}
