//! Log probabilities of tokens: the log-softmax of the model's logits, before any sampling parameter is applied.

/// Maximum alternatives per token.
pub const MAX_LOGPROBS: usize = 20;
/// Value for impossible tokens, the same as OpenAI's, since JSON has no infinity.
const IMPOSSIBLE: f64 = -9999.0;

/// A token's log probability, and the most probable alternatives.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The drawn token, or the prompt's.
    pub token: u32,
    /// Natural logarithm of its probability.
    pub logprob: f64,
    /// The most probable tokens with theirs, best first; as many as requested.
    pub top: Vec<(u32, f64)>,
}

/// Log probabilities of `token` and of the `n_top` best (at most [`MAX_LOGPROBS`]), from a position's `logits` (V).
pub fn logprobs(logits: &[f32], token: u32, n_top: usize) -> TokenLogprobs {
    let numbers = || logits.iter().copied().filter(|logit| !logit.is_nan());
    let best = numbers().fold(f32::NEG_INFINITY, f32::max);
    let above =
        |logit: f32| f64::from(logit.clamp(f32::MIN, f32::MAX)) - f64::from(best.clamp(f32::MIN, f32::MAX));
    let log_sum = numbers().map(|logit| above(logit).exp()).sum::<f64>().ln();
    let logprob = |logit: f32| (above(logit) - log_sum).max(IMPOSSIBLE);
    let own = logits.get(token as usize).copied().filter(|logit| !logit.is_nan());
    TokenLogprobs {
        token,
        logprob: own.map_or(IMPOSSIBLE, logprob),
        top: best_tokens(logits, n_top.min(MAX_LOGPROBS))
            .into_iter()
            .map(|(token, logit)| (token, logprob(logit)))
            .collect(),
    }
}

/// The `n` tokens with the largest logits, best first.
fn best_tokens(logits: &[f32], n: usize) -> Vec<(u32, f32)> {
    if n == 0 {
        return Vec::new();
    }
    let mut tokens: Vec<(u32, f32)> =
        (0..).zip(logits.iter().copied()).filter(|(_, logit)| !logit.is_nan()).collect();
    if n < tokens.len() {
        tokens.select_nth_unstable_by(n - 1, super::best_first);
        tokens.truncate(n);
    }
    tokens.sort_unstable_by(super::best_first);
    tokens
}

/// The logits of one position (V), stored until its token is drawn.
#[derive(Debug, Default)]
pub(super) struct Logprobs {
    n_top: usize,
    raw: Vec<f32>,
}

impl Logprobs {
    /// Reports `n_top` alternatives, at most [`MAX_LOGPROBS`].
    pub(super) fn new(n_top: usize) -> Self {
        Self { n_top, raw: Vec::new() }
    }

    /// Stores the model's logits.
    pub(super) fn keep(&mut self, logits: &[f32]) {
        self.raw.clear();
        self.raw.extend_from_slice(logits);
    }

    /// Log probabilities of `token`.
    pub(super) fn of(&self, token: u32) -> TokenLogprobs {
        logprobs(&self.raw, token, self.n_top)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_of_all_tokens_come_to_one() {
        let logits: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.37).sin() * 30.0).collect();
        let sum: f64 = (0..1000).map(|token| logprobs(&logits, token, 0).logprob.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-12, "{sum}");
    }

    #[test]
    fn alternatives_are_the_best_in_order_and_the_lower_id_first_of_equals() {
        let told = logprobs(&[1.0, 3.0, 2.0, 3.0, f32::NAN, f32::NEG_INFINITY], 2, 3);
        assert_eq!(told.top.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [1, 3, 2]);
        assert_eq!(told.logprob, told.top[2].1);
        assert!(told.top.iter().all(|(_, logprob)| *logprob < 0.0));
    }

    #[test]
    fn odd_logits_give_numbers_all_the_same() {
        for logits in [vec![], vec![f32::NAN; 4], vec![f32::INFINITY, 1.0], vec![f32::NEG_INFINITY; 3]] {
            let told = logprobs(&logits, 1, 20);
            assert!(
                told.logprob.is_finite() && told.top.iter().all(|(_, logprob)| logprob.is_finite()),
                "{told:?}"
            );
        }
    }
}
