//! Samples a token from logits.
//!
//! Steps, in the order of transformers and the OpenAI API's servers: grammar, forbidden tokens, biases, penalties, temperature, top-k,
//! top-p, min-p, draw. All randomness comes from the request's seed. Logits that are not numbers are never drawn.

mod best;
mod constraint;
mod logprobs;
mod penalties;
mod whole;

use std::{cmp::Ordering, ops::RangeInclusive};

pub use constraint::{Constraint, Grammar};
pub use logprobs::{MAX_LOGPROBS, TokenLogprobs, logprobs};

use best::{Best, candidates};
use logprobs::Logprobs;
use moex_model::{Draw, MAX_BEST};
use penalties::Penalties;
use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};
use whole::draw_of_all;

/// Range of a bias on a token's logit.
pub const BIASES: RangeInclusive<f32> = -100.0..=100.0;
/// Maximum biased tokens of a request.
pub const MAX_BIASES: usize = 1024;

/// Sampling parameters. The default is greedy.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the best token; 1 samples from the model's own distribution. 0 to [`Self::MAX_TEMPERATURE`].
    pub temperature: f32,
    /// Only this many of the best tokens are drawn; 0 is all.
    pub top_k: u32,
    /// Only the best tokens that together have this probability are drawn; above 0, 1 is all.
    pub top_p: f32,
    /// Only tokens at least this probable, relative to the best, are drawn; 0 is all.
    pub min_p: f32,
    /// Divides the logits of tokens in the prompt or the text (multiplies negative ones); 1 does nothing.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens in the text; -2 to 2.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit for each occurrence in the text; -2 to 2.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens before all else; each within [`BIASES`].
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of all draws: the same seed gives the same text.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

/// A sampling parameter out of its range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{field} is {value}: it must be {range}")]
pub struct SamplingError {
    /// The field of [`Sampling`].
    pub field: &'static str,
    /// Its value.
    pub value: f32,
    /// Its allowed range.
    pub range: &'static str,
}

impl Sampling {
    /// The highest temperature.
    pub const MAX_TEMPERATURE: f32 = 100.0;

    /// Checks that every parameter is in its range.
    ///
    /// # Errors
    /// The first parameter that is not.
    pub fn check(&self) -> Result<(), SamplingError> {
        let penalty = |value: f32| (-2.0..=2.0).contains(&value);
        let checks = [
            (
                "temperature",
                self.temperature,
                (0.0..=Self::MAX_TEMPERATURE).contains(&self.temperature),
                "between 0 and 100",
            ),
            ("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1"),
            ("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "between 0 and 1"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite(),
                "above 0",
            ),
            ("presence_penalty", self.presence_penalty, penalty(self.presence_penalty), "between -2 and 2"),
            (
                "frequency_penalty",
                self.frequency_penalty,
                penalty(self.frequency_penalty),
                "between -2 and 2",
            ),
        ];
        if let Some((field, value, _, range)) = checks.into_iter().find(|(_, _, valid, _)| !valid) {
            return Err(SamplingError { field, value, range });
        }
        match self.logit_bias.iter().find(|(_, bias)| !BIASES.contains(bias)) {
            Some((_, value)) => {
                Err(SamplingError { field: "logit_bias", value: *value, range: "between -100 and 100" })
            }
            None => Ok(()),
        }
    }

    /// Whether any token of the vocabulary may be drawn.
    fn draws_from_all(&self) -> bool {
        let Self { temperature, top_k, top_p, min_p, .. } = *self;
        temperature > 0.0 && top_k == 0 && top_p >= 1.0 && min_p == 0.0
    }
}

/// Samples the tokens of one sequence.
#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    penalties: Penalties,
    rng: Xoshiro256PlusPlus,
    min_margin: f32,
    constraint: Option<Box<dyn Constraint>>,
    /// Why the constraint failed.
    broken: Option<String>,
    logprobs: Option<Logprobs>,
    told: Option<TokenLogprobs>,
    /// Memory for tokens to draw from, kept: that of a whole vocabulary takes longer to come by than to fill.
    drawn_from: Vec<(u32, f32)>,
}

impl Sampler {
    /// For a sequence that begins with `prompt`.
    pub fn new(sampling: Sampling, prompt: &[u32]) -> Self {
        let rng = Xoshiro256PlusPlus::seed_from_u64(sampling.seed);
        Self {
            penalties: Penalties::new(&sampling, prompt),
            sampling,
            rng,
            min_margin: f32::INFINITY,
            constraint: None,
            broken: None,
            logprobs: None,
            told: None,
            drawn_from: Vec::new(),
        }
    }

    /// Adds a grammar as constraint.
    #[must_use]
    pub fn held_to(self, grammar: Option<&dyn Grammar>) -> Self {
        Self { constraint: grammar.map(Grammar::begin), ..self }
    }

    /// Turns on log probabilities of each drawn token and this many alternatives, if requested.
    #[must_use]
    pub fn telling(self, n_top_logprobs: Option<u8>) -> Self {
        Self { logprobs: n_top_logprobs.map(|n| Logprobs::new(usize::from(n))), ..self }
    }

    /// How many of a row's best logits are enough to sample its next token, if some are: beside a token drawn from all, where
    /// [`Self::draws`] says one.
    pub fn n_best(&self) -> Option<usize> {
        let Sampling { temperature, top_k, ref logit_bias, .. } = self.sampling;
        let is_plain = self.constraint.is_none()
            && self.logprobs.is_none()
            && logit_bias.is_empty()
            && self.penalties.are_none();
        let n = if temperature == 0.0 || self.sampling.draws_from_all() { 1 } else { top_k as usize };
        // The second tells how close the text was to another.
        (is_plain && (1..=MAX_BEST).contains(&n)).then_some(n.max(2))
    }

    /// How the next tokens are drawn from all logits of their rows, one after another; nothing where the best are enough.
    pub fn draws(&self) -> impl Iterator<Item = Draw> + use<> {
        let temperature = if self.sampling.draws_from_all() { self.sampling.temperature } else { 0.0 };
        let mut rng = self.rng.clone();
        std::iter::repeat_with(move || match temperature {
            0.0 => Draw::NOTHING,
            _ => Draw { temperature, random: rng.random() },
        })
    }

    /// [`Self::sample`] from the best logits, at least [`Self::n_best`], the largest first, of equals the lower token; where
    /// [`Self::draws`] says so, `drawn` is the token drawn from all.
    pub fn sample_best(&mut self, best: &[(u32, f32)], drawn: Option<u32>) -> Option<u32> {
        let n = best.iter().take_while(|(_, logit)| *logit > f32::NEG_INFINITY).count();
        let (token, logit) = *best[..n].first()?;
        let runner_up = best[..n].get(1).map_or(f32::NEG_INFINITY, |(_, logit)| *logit);
        self.min_margin = self.min_margin.min(logit - runner_up);
        match self.sampling.temperature {
            0.0 => Some(token),
            _ if self.sampling.draws_from_all() => {
                self.next_draw();
                drawn
            }
            _ => self.draw(best[..n].iter().copied(), finite(logit)),
        }
    }

    /// Samples the next token from its `logits` (V), which it modifies, without those in `forbidden`; `None` if none of the
    /// others is a number.
    pub fn sample(&mut self, logits: &mut [f32], forbidden: &[u32]) -> Option<u32> {
        if let Some(logprobs) = &mut self.logprobs {
            logprobs.keep(logits);
        }
        if let Some(constraint) = &mut self.constraint
            && let Err(why) = constraint.allow(logits)
        {
            self.broken = Some(why);
            return None;
        }
        for token in forbidden {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        for (token, bias) in &self.sampling.logit_bias {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit += bias;
            }
        }
        self.penalties.apply(logits);
        let best = Best::of(logits)?;
        self.min_margin = self.min_margin.min(best.logit - best.runner_up);
        let token = match self.sampling.temperature {
            0.0 => best.token,
            _ => self.draw_from(logits, finite(best.logit))?,
        };
        self.penalties.count(token);
        if let Some(constraint) = &mut self.constraint
            && let Err(why) = constraint.accept(token)
        {
            self.broken = Some(why);
            return None;
        }
        self.told = self.logprobs.as_ref().map(|logprobs| logprobs.of(token));
        Some(token)
    }

    /// The log probabilities of the last drawn token; returned once.
    pub fn take_logprobs(&mut self) -> Option<TokenLogprobs> {
        self.told.take()
    }

    /// Why no token could be drawn, if the grammar was the reason.
    pub fn take_broken(&mut self) -> Option<String> {
        self.broken.take()
    }

    /// The smallest gap between the best two logits so far: how close a greedy text was to another one.
    pub fn min_margin(&self) -> f32 {
        self.min_margin
    }

    /// How the next token is drawn.
    fn next_draw(&mut self) -> Draw {
        Draw { temperature: self.sampling.temperature, random: self.rng.random() }
    }

    /// Draws one of all tokens, given their `logits` (V), of which `best` is the largest.
    fn draw_from(&mut self, logits: &mut [f32], best: f32) -> Option<u32> {
        if self.sampling.top_k == 0 {
            let how = self.next_draw();
            return draw_of_all(&self.sampling, how, logits, best, &mut self.drawn_from);
        }
        let candidates = candidates(logits, self.sampling.top_k as usize);
        self.draw(candidates, best)
    }

    /// Draws one of the best `top_k` of these tokens, given with their logits, of which `best` is the largest.
    fn draw(&mut self, tokens: impl Iterator<Item = (u32, f32)>, best: f32) -> Option<u32> {
        let how = self.next_draw();
        let Self { drawn_from: tokens_kept, sampling, .. } = self;
        tokens_kept.clear();
        tokens_kept.extend(tokens);
        let tokens = tokens_kept;
        let top_k = sampling.top_k as usize;
        if top_k < tokens.len() {
            tokens.select_nth_unstable_by(top_k, best_first);
            tokens.truncate(top_k);
        }
        // The same draw from the best logits alone, which come in another order.
        tokens.sort_unstable_by_key(|(token, _)| *token);
        // Weights relative to the best token's, which is 1, so that no exponential overflows.
        for (_, logit) in &mut *tokens {
            *logit = ((finite(*logit) - best) / sampling.temperature).exp();
        }
        tokens.retain(|(_, weight)| *weight > 0.0);
        let enough = f64::from(sampling.top_p) * mass(tokens);
        tokens.retain(|(_, weight)| *weight >= sampling.min_p); // the best token's weight is 1
        choose(sampling, how, tokens, enough)
    }
}

/// Draws one of the fewest best of these tokens, given with their weights, that weigh `enough`.
fn choose(sampling: &Sampling, how: Draw, tokens: &mut Vec<(u32, f32)>, enough: f64) -> Option<u32> {
    if sampling.top_p < 1.0 {
        let kept = nucleus(tokens, enough);
        tokens.truncate(kept);
    }
    let mut left = how.place(mass(tokens));
    for (token, weight) in &*tokens {
        left -= f64::from(*weight);
        if left < 0.0 {
            return Some(*token);
        }
    }
    // Rounding may leave a remainder, which goes to the last token.
    tokens.last().map(|(token, _)| *token)
}

/// Sum of the weights of `tokens`.
fn mass(tokens: &[(u32, f32)]) -> f64 {
    tokens.iter().map(|(_, weight)| f64::from(*weight)).sum()
}

/// Moves the fewest best tokens whose weights reach `enough`, at least one, to the front, and returns their number. It
/// bisects the part with the last of them, since sorting a vocabulary would take several times as long.
fn nucleus(tokens: &mut [(u32, f32)], enough: f64) -> usize {
    const SORTED: usize = 64;
    let (mut start, mut end) = (0, tokens.len());
    let mut before = 0.0;
    while end - start > SORTED {
        let half = (end - start) / 2;
        tokens[start..end].select_nth_unstable_by(half, best_first);
        let of_half = mass(&tokens[start..start + half]);
        if before + of_half >= enough {
            end = start + half;
        } else {
            before += of_half;
            start += half;
        }
    }
    tokens[start..end].sort_unstable_by(best_first);
    for (i, (_, weight)) in tokens[start..end].iter().enumerate() {
        before += f64::from(*weight);
        if before >= enough {
            return start + i + 1;
        }
    }
    end
}

/// Best first; of equals, the lower id first.
fn best_first(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Differences of infinities are not numbers.
fn finite(logit: f32) -> f32 {
    logit.clamp(f32::MIN, f32::MAX)
}

#[cfg(test)]
mod tests;
