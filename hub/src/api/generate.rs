//! Runs the sequences of one request in the engine and collects their events in one queue.

use std::ops::ControlFlow;
use std::sync::Arc;

use moex_engine::sampler::TokenLogprobs;
use moex_engine::{Event, Failure, Finish, Listener, Request, SubmitError};
use moex_model::{ExpertsError, StepError, SwarmFailure};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::counters::Tap;
use super::error::ApiError;
use super::state::Api;

/// Maximum sequences of one request.
pub(super) const MAX_TEXTS: usize = 64;

/// Sequences being generated. Dropping it, as when the client disconnects, ends them in the engine too.
pub(super) struct Generation {
    events: mpsc::Receiver<(usize, Event)>,
    deadline: Option<Instant>,
    /// Tokens that end a sequence; empty with `ignore_eos`.
    eos: Vec<u32>,
}

/// The next result of a sequence.
pub(super) enum Next {
    /// A piece of the text.
    Text(String),
    /// Log probabilities of the next token: of the prompt first, if requested, then of the text.
    Logprobs(TokenLogprobs),
    /// The text is complete.
    Finished(Finish),
}

impl Generation {
    /// Submits each sequence to the engine. `param` is the field that holds the prompt. Unless `streams`, each text is told once
    /// it is complete.
    pub(super) fn start(
        api: &Arc<Api>,
        asked: Vec<Request>,
        streams: bool,
        param: &'static str,
    ) -> Result<Self, ApiError> {
        let ignores_eos = asked.iter().any(|request| request.ignore_eos);
        let n_texts = asked.len().max(1);
        // Bound on a sequence's events: two per token, one per chunk of the prompt, and its end.
        let (sender, events) = mpsc::channel(n_texts.min(MAX_TEXTS) * (3 * api.context_tokens() + 1));
        for (index, request) in asked.into_iter().enumerate() {
            let sender = sender.clone();
            let held = (!streams).then(Vec::new);
            let tap = Tap::new(api.counters.clone());
            let mailbox = Mailbox { index, n_texts, sender, tap, held, has_told: false };
            // Sequences submitted before it end when the receiver is dropped.
            api.engine.submit(request, Box::new(mailbox)).map_err(|error| refused(error, param))?;
        }
        let deadline = api.request_timeout().map(|time| Instant::now() + time);
        let eos = if ignores_eos { Vec::new() } else { api.text.eos.clone() };
        Ok(Self { events, deadline, eos })
    }

    /// Whether a token ends its sequence, and so is not part of the text.
    pub(super) fn is_end(&self, token: u32) -> bool {
        self.eos.contains(&token)
    }

    /// Returns the next result and the index of its sequence.
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

/// Where the engine leaves the events of a sequence for its reader.
struct Mailbox {
    index: usize,
    /// Sequences that share the reader.
    n_texts: usize,
    sender: mpsc::Sender<(usize, Event)>,
    tap: Tap,
    /// Events of a text that is told once it is complete.
    held: Option<Vec<Event>>,
    has_told: bool,
}

impl Mailbox {
    fn tell(&mut self, event: Event) -> ControlFlow<()> {
        self.has_told = true;
        match self.sender.try_send((self.index, event)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }
}

impl Listener for Mailbox {
    fn hear(&mut self, event: Event) -> ControlFlow<()> {
        self.tap.hear(&event);
        let is_last = matches!(event, Event::Finished(_) | Event::Failed(_));
        match (&mut self.held, event) {
            (_, Event::Prompt { .. }) if !self.sender.is_closed() => ControlFlow::Continue(()),
            (Some(held), event) if !is_last && !self.sender.is_closed() => {
                held.push(event);
                ControlFlow::Continue(())
            }
            (held, event) => {
                let held = held.as_mut().map(std::mem::take).unwrap_or_default();
                held.into_iter().try_for_each(|event| self.tell(event))?;
                self.tell(event)
            }
        }
    }

    fn forgets(&mut self) -> bool {
        if let Some(held) = &mut self.held {
            held.clear();
        }
        !self.has_told
    }

    fn n_unread(&self) -> Option<usize> {
        let n = self.sender.max_capacity() - self.sender.capacity();
        (!self.sender.is_closed()).then_some(n / self.n_texts)
    }
}

/// Seed of one of several sequences: the first uses the request's own.
pub(super) fn seed_of(seed: u64, index: usize) -> u64 {
    /// SplitMix64's step: adjacent indices get unrelated seeds.
    const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
    seed.wrapping_add((index as u64).wrapping_mul(STEP))
}

/// An unpredictable number, for seeds and ids.
pub(super) fn random() -> Result<u64, ApiError> {
    getrandom::u64().map_err(|_| ApiError::internal("The system gave no random numbers."))
}

fn refused(error: SubmitError, prompt: &'static str) -> ApiError {
    match error {
        SubmitError::PromptTooLong { tokens, context } => ApiError::too_long(tokens, context).about(prompt),
        SubmitError::Busy => ApiError::queue_full(),
        SubmitError::Stopped => stopping(),
        SubmitError::EmptyPrompt => ApiError::invalid(
            prompt,
            format!("\"{prompt}\" makes an empty prompt: it must have at least one token."),
        ),
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
            ApiError::uncovered(format!("The answer was aborted: {error}."))
        }
        Failure::Step(StepError::Experts(ExpertsError::Swarm { failure, message })) => {
            let message = format!("The answer was aborted: {message}.");
            match failure {
                SwarmFailure::Busy => ApiError::swarm_busy(message),
                SwarmFailure::Uncovered => ApiError::uncovered(message),
                SwarmFailure::Stopping => stopping(),
                SwarmFailure::Failed => ApiError::swarm_failed(message),
            }
        }
        Failure::InDoubt => ApiError::swarm_failed(format!("The answer was aborted: {failure}.")),
        Failure::NoMemory => {
            ApiError::unavailable("no_memory", format!("The answer was aborted: {failure}."))
        }
        // The schema exceeds the limit of a step: the request's fault, not the hub's.
        Failure::Grammar(why) => ApiError::invalid(
            "response_format",
            format!("The answer was aborted, since its schema is too large to enforce: {why}."),
        ),
        other => ApiError::internal(format!("The answer was aborted: {other}.")),
    }
}

fn stopping() -> ApiError {
    ApiError::unavailable("stopping", "The hub is stopping.")
}
