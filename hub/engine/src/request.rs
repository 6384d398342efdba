//! What a request asks for, and what comes back.

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use crate::sampler::{Grammar, Sampling, SamplingError, TokenLogprobs};
use moex_model::StepError;

/// The most stop strings of a request.
pub const MAX_STOPS: usize = 16;
/// The longest stop string.
pub const MAX_STOP_BYTES: usize = 1024;

/// A prompt to continue.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The prompt, at least one token.
    pub prompt_ids: Vec<u32>,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Strings that end the text; they are not part of it.
    pub stop: Vec<String>,
    /// Whether the text goes on where the model would end it.
    pub ignore_eos: bool,
    /// What the text is expected to be much like, in tokens: what it repeats of this comes several tokens at a time.
    pub prediction_ids: Vec<u32>,
    /// The most tokens to generate, 0 to read the prompt alone; without it, as many as the context has room for.
    pub max_tokens: Option<u32>,
    /// Tell how probable each token was, and so many of the most probable ones in its place.
    pub top_logprobs: Option<u8>,
    /// Tell the same of each token of the prompt but the first, which nothing stands before. The prompt is then read anew,
    /// whatever of it is cached.
    pub prompt_logprobs: Option<u8>,
    /// What the text is held to.
    pub grammar: Option<Arc<dyn Grammar>>,
}

/// Where the events of a request go. `Break` says that nobody listens any more, and ends the request.
pub type Sink = Box<dyn FnMut(Event) -> ControlFlow<()> + Send>;

/// What happens to a request: `Prompt` for each chunk of it, and before that `PromptLogprobs` for each of the tokens that the
/// chunk tells of, if asked for; `Logprobs` for each token, if asked for, before the `Text` that it completes; then one of
/// the others, which is the last.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// So many of the prompt's tokens are in the cache.
    Prompt {
        /// Tokens cached.
        done: usize,
        /// Tokens in the prompt.
        total: usize,
    },
    /// How probable the next token of the prompt was, from its second on.
    PromptLogprobs(TokenLogprobs),
    /// The next piece of the text: whole characters, never part of a stop string.
    Text(String),
    /// How probable the next token was, the one that ends the text included.
    Logprobs(TokenLogprobs),
    /// The text is complete.
    Finished(Finish),
    /// There will be no more text.
    Failed(Failure),
}

/// How a text ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// Why.
    pub reason: FinishReason,
    /// What it cost.
    pub usage: Usage,
    /// How long it took.
    pub timings: Timings,
    /// The generated tokens, the one that ended the text included.
    pub ids: Vec<u32>,
    /// The smallest gap between the best two logits on the way: how near a greedy text was to being another.
    pub min_margin: f32,
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended it, or a stop string came.
    Stop,
    /// It has as many tokens as it may.
    Length,
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// In the prompt.
    pub prompt_tokens: usize,
    /// Of those, the first ones whose keys and values were there already, from a text that began alike.
    pub cached_tokens: usize,
    /// Generated, the one that ended the text included.
    pub completion_tokens: usize,
    /// Tokens that were guessed, and of those the ones that were right.
    pub guessed_tokens: usize,
    /// See `guessed_tokens`.
    pub accepted_tokens: usize,
}

/// How long a request took by the engine's clock; what it waited before its first step is in neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// From the first step with its rows to its first token.
    pub prompt: Duration,
    /// From its first token to its last.
    pub generation: Duration,
}

/// Why a request that had begun did not finish. Others go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A step it had rows in failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The system has no memory for its keys and values.
    #[error("there is no memory left for a longer conversation")]
    NoMemory,
    /// There is no token to draw.
    #[error("the model gave no logit that is a number")]
    NoLogits,
    /// The grammar that the text is held to cannot be followed.
    #[error("the grammar cannot be followed: {0}")]
    Grammar(String),
}

/// Why a request never began.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SubmitError {
    /// It has no prompt.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// Its prompt leaves no room for an answer.
    #[error(
        "the prompt has {tokens} tokens, and the context has room for {context} with at least one of the answer"
    )]
    PromptTooLong {
        /// In the prompt.
        tokens: usize,
        /// Positions a sequence may have.
        context: usize,
    },
    /// A token the model does not have.
    #[error("token {id} is not in the vocabulary of {vocabulary}")]
    NoSuchToken {
        /// The token.
        id: u32,
        /// V.
        vocabulary: usize,
    },
    /// A bias for a token the model does not have.
    #[error("logit_bias names the token {id}, which is not in the vocabulary of {vocabulary}")]
    NoSuchBias {
        /// The token.
        id: u32,
        /// V.
        vocabulary: usize,
    },
    /// Stop strings beyond [`MAX_STOPS`] or [`MAX_STOP_BYTES`], or an empty one.
    #[error("stop must be at most {MAX_STOPS} strings of 1 to {MAX_STOP_BYTES} bytes")]
    Stops,
    /// A sampling number out of its range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// As many requests wait as may.
    #[error("too many requests are waiting")]
    Busy,
    /// The engine's thread is gone.
    #[error("the engine has stopped")]
    Stopped,
}

/// What the model and the cache allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Positions a sequence may have, prompt and answer together.
    pub context: usize,
    /// V.
    pub vocabulary: usize,
}

impl RequestLimits {
    /// Whether `request` can begin.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn check(&self, request: &Request) -> Result<(), SubmitError> {
        let tokens = request.prompt_ids.len();
        if tokens == 0 {
            return Err(SubmitError::EmptyPrompt);
        }
        if tokens >= self.context {
            return Err(SubmitError::PromptTooLong { tokens, context: self.context });
        }
        if let Some(&id) = request.prompt_ids.iter().find(|id| **id as usize >= self.vocabulary) {
            return Err(SubmitError::NoSuchToken { id, vocabulary: self.vocabulary });
        }
        let biases = &request.sampling.logit_bias;
        if let Some((id, _)) = biases.iter().find(|(id, _)| *id as usize >= self.vocabulary) {
            return Err(SubmitError::NoSuchBias { id: *id, vocabulary: self.vocabulary });
        }
        let is_stop = |stop: &String| (1..=MAX_STOP_BYTES).contains(&stop.len());
        if request.stop.len() > MAX_STOPS || !request.stop.iter().all(is_stop) {
            return Err(SubmitError::Stops);
        }
        Ok(request.sampling.check()?)
    }
}
