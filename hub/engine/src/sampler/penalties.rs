//! Penalties on tokens that occurred in the prompt or the text.

use std::collections::{HashMap, HashSet};

use super::Sampling;

/// Token counts of one sequence, and its penalties.
#[derive(Debug)]
pub(super) struct Penalties {
    repetition: f32,
    presence: f32,
    frequency: f32,
    /// The prompt's tokens; empty without a repetition penalty.
    prompt: HashSet<u32>,
    /// Occurrences of each token in the text.
    text: HashMap<u32, u32>,
}

impl Penalties {
    pub(super) fn new(sampling: &Sampling, prompt: &[u32]) -> Self {
        let repetition = sampling.repetition_penalty;
        let prompt = if repetition == 1.0 { HashSet::new() } else { prompt.iter().copied().collect() };
        Self {
            repetition,
            presence: sampling.presence_penalty,
            frequency: sampling.frequency_penalty,
            prompt,
            text: HashMap::new(),
        }
    }

    /// Whether they change no logits.
    pub(super) fn are_none(&self) -> bool {
        self.repetition == 1.0 && self.presence == 0.0 && self.frequency == 0.0
    }

    /// Applies the penalties to the logits (V). Repetition includes the prompt, as in transformers; the others count
    /// the text only, as in the OpenAI API.
    pub(super) fn apply(&self, logits: &mut [f32]) {
        if self.repetition != 1.0 {
            for token in self.prompt.union(&self.text.keys().copied().collect()) {
                if let Some(logit) = logits.get_mut(*token as usize) {
                    *logit = if *logit > 0.0 { *logit / self.repetition } else { *logit * self.repetition };
                }
            }
        }
        if self.presence != 0.0 || self.frequency != 0.0 {
            for (token, count) in &self.text {
                if let Some(logit) = logits.get_mut(*token as usize) {
                    *logit -= self.presence + self.frequency * *count as f32;
                }
            }
        }
    }

    /// Counts an occurrence of `token` in the text.
    pub(super) fn count(&mut self, token: u32) {
        *self.text.entry(token).or_default() += 1;
    }
}
