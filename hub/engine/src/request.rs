//! Requests and their events.

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use crate::sampler::{Grammar, Sampling, SamplingError, TokenLogprobs};
use moex_model::StepError;

/// Maximum stop strings of a request.
pub const MAX_STOPS: usize = 16;
/// Maximum bytes of a stop string.
pub const MAX_STOP_BYTES: usize = 1024;

/// Who asks: clients take turns. What the number means is the caller's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Client(pub u128);

/// A prompt to continue.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Who asks.
    pub client: Client,
    /// The prompt, at least one token.
    pub prompt_ids: Vec<u32>,
    /// Sampling parameters.
    pub sampling: Sampling,
    /// Strings that end the text; they are not part of it.
    pub stop: Vec<String>,
    /// Whether to continue after an end token.
    pub ignore_eos: bool,
    /// Before this many tokens, nothing ends the text: no end token is drawn, and no stop string is looked for.
    pub min_tokens: u32,
    /// Tokens that the answer probably resembles; speculative decoding drafts from them.
    pub prediction_ids: Vec<u32>,
    /// Maximum tokens to generate, 0 to only prefill the prompt; by default, as many as the context holds.
    pub max_tokens: Option<u32>,
    /// Report log probabilities of each token and of this many alternatives.
    pub top_logprobs: Option<u8>,
    /// Report the same for each prompt token but the first, which has none. The prompt is then computed again, even if
    /// it is cached.
    pub prompt_logprobs: Option<u8>,
    /// Grammar that constrains the text.
    pub grammar: Option<Arc<dyn Grammar>>,
}

/// Receives the events of a request, on the engine's thread: it must not block.
pub trait Listener: Send {
    /// The next event. `Break` means that nobody listens any more, and ends the request.
    fn hear(&mut self, event: Event) -> ControlFlow<()>;

    /// Whether nothing that it has heard has gone further: then it forgets that, and hears the request from its beginning.
    fn forgets(&mut self) -> bool {
        false
    }

    /// How many of the events it has heard are not read yet; none if nobody listens any more. A text that is not read waits.
    fn n_unread(&self) -> Option<usize> {
        Some(0)
    }
}

impl<F: FnMut(Event) -> ControlFlow<()> + Send> Listener for F {
    fn hear(&mut self, event: Event) -> ControlFlow<()> {
        self(event)
    }
}

/// A request's listener.
pub type Sink = Box<dyn Listener>;

/// An event of a request. `Prompt` follows each prefilled chunk, after a `PromptLogprobs` for each of its reported
/// tokens, if requested. `Logprobs` precedes the `Text` that its token completes, if requested. One of the other events
/// is the last.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Progress of the prefill.
    Prompt {
        /// Tokens cached.
        done: usize,
        /// Tokens in the prompt.
        total: usize,
    },
    /// Log probabilities of the next prompt token, from its second on.
    PromptLogprobs(TokenLogprobs),
    /// The next piece of text: whole characters, never part of a stop string.
    Text(String),
    /// Log probabilities of the next token, including the one that ends the text.
    Logprobs(TokenLogprobs),
    /// The text is complete.
    Finished(Finish),
    /// The text was aborted.
    Failed(Failure),
}

/// How a text ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// The reason.
    pub reason: FinishReason,
    /// Token counts.
    pub usage: Usage,
    /// Times.
    pub timings: Timings,
    /// The generated tokens, including the end token.
    pub ids: Vec<u32>,
    /// The smallest gap between the best two logits of any token: how close a greedy text was to another one.
    pub min_margin: f32,
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended it, or a stop string occurred.
    Stop,
    /// It reached its token limit.
    Length,
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Leading prompt tokens that were in the prefix cache.
    pub cached_tokens: usize,
    /// Generated tokens, including the end token.
    pub completion_tokens: usize,
    /// Drafted tokens.
    pub guessed_tokens: usize,
    /// Drafted tokens that were accepted.
    pub accepted_tokens: usize,
}

/// Times of a request by the engine's clock, without its wait before the first step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// From the first step with its rows to its first token.
    pub prompt: Duration,
    /// From its first token to its last.
    pub generation: Duration,
}

/// Why a started request failed. Other requests continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A step with its rows failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// No memory is left for its keys and values.
    #[error("no memory is left for a longer conversation")]
    NoMemory,
    /// An answer of a worker that its rows may depend on was found wrong after it was used, and text had been passed on.
    #[error("a worker's answer that this text may depend on was found wrong after it was used: ask again")]
    InDoubt,
    /// No logit is a number, so no token can be sampled.
    #[error("the model returned no logit that is a number")]
    NoLogits,
    /// The grammar failed.
    #[error("the grammar cannot be followed: {0}")]
    Grammar(String),
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SubmitError {
    /// It has no prompt.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// Its prompt leaves no room for an answer.
    #[error(
        "the prompt has {tokens} tokens; the context holds {context}, including at least one of the answer"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Positions of a sequence.
        context: usize,
    },
    /// A token outside the vocabulary.
    #[error("token {id} is not in the vocabulary of {vocabulary}")]
    NoSuchToken {
        /// The token.
        id: u32,
        /// V.
        vocabulary: usize,
    },
    /// A bias for a token outside the vocabulary.
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
    /// A sampling parameter is out of its range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The queue of waiting requests is full.
    #[error("too many requests are waiting")]
    Busy,
    /// The engine's thread has ended.
    #[error("the engine has stopped")]
    Stopped,
}

/// Limits that the model and the cache set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Positions of a sequence, prompt and answer together.
    pub context: usize,
    /// V.
    pub vocabulary: usize,
}

impl RequestLimits {
    /// Checks whether `request` can begin.
    ///
    /// # Errors
    /// The first problem found.
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
