//! Texts on their way out of the engine: all those of one request, their events in one queue.

use std::ops::ControlFlow;
use std::sync::Arc;

use moex_engine::sampler::TokenLogprobs;
use moex_engine::{Event, Failure, Finish, Request, SubmitError};
use moex_model::{ExpertsError, StepError, SwarmFailure};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::counters::Tap;
use super::error::ApiError;
use super::state::Api;

/// The most texts of one request.
pub(super) const MAX_TEXTS: usize = 64;

/// Texts being written. Dropping it, as happens when its client goes away, ends them in the engine too.
pub(super) struct Generation {
    events: mpsc::Receiver<(usize, Event)>,
    deadline: Option<Instant>,
    /// Tokens that end a text; empty if it goes on beyond them.
    eos: Vec<u32>,
}

/// What comes next.
pub(super) enum Next {
    /// A piece of the text.
    Text(String),
    /// How probable the next token was: of the prompt, if that is told of, then of the text.
    Logprobs(TokenLogprobs),
    /// The text is complete.
    Finished(Finish),
}

impl Generation {
    /// Queues a request for each text. `param` is the field that holds the prompt.
    pub(super) fn start(api: &Arc<Api>, asked: Vec<Request>, param: &'static str) -> Result<Self, ApiError> {
        let ignores_eos = asked.iter().any(|request| request.ignore_eos);
        // No text has more events than this: two for each token, one for each chunk of the prompt, and its end.
        let (sender, events) =
            mpsc::channel(asked.len().clamp(1, MAX_TEXTS) * (3 * api.context_tokens() + 1));
        for (index, request) in asked.into_iter().enumerate() {
            let sender = sender.clone();
            let mut tap = Tap::new(api.counters.clone());
            let sink = move |event| {
                tap.hear(&event);
                match event {
                    Event::Prompt { .. } if !sender.is_closed() => ControlFlow::Continue(()),
                    event => match sender.try_send((index, event)) {
                        Ok(()) => ControlFlow::Continue(()),
                        Err(_) => ControlFlow::Break(()),
                    },
                }
            };
            // Those queued before it end with the receiver.
            api.engine.submit(request, Box::new(sink)).map_err(|error| refused(error, param))?;
        }
        let deadline = api.request_timeout().map(|time| Instant::now() + time);
        let eos = if ignores_eos { Vec::new() } else { api.text.eos.clone() };
        Ok(Self { events, deadline, eos })
    }

    /// Whether a token ends its text, and so is no part of it.
    pub(super) fn is_end(&self, token: u32) -> bool {
        self.eos.contains(&token)
    }

    /// Of which text, and what.
    pub(super) async fn next(&mut self) -> Result<(usize, Next), ApiError> {
        loop {
            let received = match self.deadline {
                Some(deadline) => {
                    timeout_at(deadline, self.events.recv()).await.map_err(|_| ApiError::timed_out())?
                }
                None => self.events.recv().await,
            };
            let (index, event) = received.ok_or_else(stopping)?;
            return Ok((
                index,
                match event {
                    Event::Prompt { .. } => continue,
                    Event::PromptLogprobs(told) | Event::Logprobs(told) => Next::Logprobs(told),
                    Event::Text(text) => Next::Text(text),
                    Event::Finished(finish) => Next::Finished(finish),
                    Event::Failed(failure) => return Err(failed(&failure)),
                },
            ));
        }
    }
}

/// The seed of one of several texts: the first has the request's own.
pub(super) fn seed_of(seed: u64, index: usize) -> u64 {
    /// SplitMix64's step: neighbours come far apart.
    const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
    seed.wrapping_add((index as u64).wrapping_mul(STEP))
}

/// A number nobody can guess, for seeds and ids.
pub(super) fn random() -> Result<u64, ApiError> {
    getrandom::u64().map_err(|_| ApiError::internal("The system gave no random numbers."))
}

fn refused(error: SubmitError, prompt: &'static str) -> ApiError {
    match error {
        SubmitError::PromptTooLong { tokens, context } => ApiError::too_long(tokens, context).about(prompt),
        SubmitError::Busy => ApiError::queue_full(),
        SubmitError::Stopped => stopping(),
        SubmitError::EmptyPrompt => {
            ApiError::invalid(prompt, format!("\"{prompt}\" makes an empty prompt: it must say something."))
        }
        SubmitError::Stops => ApiError::invalid("stop", format!("{error}.")),
        SubmitError::NoSuchBias { .. } => ApiError::invalid("logit_bias", format!("{error}.")),
        SubmitError::Sampling(error) => ApiError::invalid(error.field, format!("{error}.")),
        SubmitError::NoSuchToken { .. } if prompt == "prompt" => {
            ApiError::invalid(prompt, format!("{error}."))
        }
        SubmitError::NoSuchToken { .. } => {
            ApiError::internal(format!("The tokenizer and the model differ: {error}."))
        }
    }
}

fn failed(failure: &Failure) -> ApiError {
    match failure {
        Failure::Step(StepError::Experts(error @ ExpertsError::NotCovered { .. })) => {
            ApiError::uncovered(format!("The answer was given up: {error}."))
        }
        Failure::Step(StepError::Experts(ExpertsError::Swarm { failure, message })) => {
            let message = format!("The answer was given up: {message}.");
            match failure {
                SwarmFailure::Busy => ApiError::swarm_busy(message),
                SwarmFailure::Uncovered => ApiError::uncovered(message),
                SwarmFailure::Stopping => stopping(),
                SwarmFailure::Failed => ApiError::swarm_failed(message),
            }
        }
        Failure::NoMemory => {
            ApiError::unavailable("no_memory", format!("The answer was given up: {failure}."))
        }
        // A schema that takes more than a step may: the request's, not the hub's.
        Failure::Grammar(why) => ApiError::invalid(
            "response_format",
            format!("The answer was given up, since its schema is too large to be kept to: {why}."),
        ),
        other => ApiError::internal(format!("The answer was given up: {other}.")),
    }
}

fn stopping() -> ApiError {
    ApiError::unavailable("stopping", "The hub is stopping.")
}
