//! One request on its way: its tokens, what of them is cached, and its text.

use std::{ops::ControlFlow, time::Duration};

use super::{
    request::{Event, Failure, Finish, FinishReason, Request, Sink, Timings, Usage},
    stop::{Released, StopText},
};
use crate::sampler::Sampler;
use moex_model::KvTable;
use moex_model::text::{Detokenizer, Special, Text};

/// A request that has begun.
pub(super) struct Sequence {
    /// Prompt and generated tokens.
    pub(super) ids: Vec<u32>,
    n_prompt: usize,
    /// The length at which it ends.
    max_ids: usize,
    ignore_eos: bool,
    /// How many of `ids` are in the KV cache.
    pub(super) cached: usize,
    pub(super) table: KvTable,
    sampler: Sampler,
    detokenizer: Detokenizer,
    text: StopText,
    /// When the first step with its rows began.
    began: Option<Duration>,
    first_token: Option<Duration>,
    sink: Sink,
}

/// Whether a sequence goes on.
pub(super) type Progress = ControlFlow<()>;

impl Sequence {
    /// `request` has been checked against a context of `context` positions; `special` is what becomes of special tokens.
    pub(super) fn new(request: Request, context: usize, special: Special, sink: Sink) -> Self {
        let n_prompt = request.prompt_ids.len();
        let asked = request.max_tokens.map_or(usize::MAX, |tokens| tokens as usize);
        Self {
            max_ids: n_prompt.saturating_add(asked).min(context),
            ignore_eos: request.ignore_eos,
            sampler: Sampler::new(request.sampling, &request.prompt_ids),
            ids: request.prompt_ids,
            n_prompt,
            cached: 0,
            table: KvTable::default(),
            detokenizer: Detokenizer::new(special),
            text: StopText::new(request.stop),
            began: None,
            first_token: None,
            sink,
        }
    }

    /// Tokens not yet in the cache: one while it generates.
    pub(super) fn n_pending(&self) -> usize {
        self.ids.len() - self.cached
    }

    /// A step with rows of it begins.
    pub(super) fn step_begins(&mut self, now: Duration) {
        self.began.get_or_insert(now);
    }

    /// `n` more tokens are in the cache; with the last of them came `logits` (V).
    pub(super) fn advance(
        &mut self,
        n: usize,
        logits: Option<&mut [f32]>,
        text: &Text,
        now: Duration,
    ) -> Progress {
        self.cached += n;
        if self.ids.len() == self.n_prompt {
            (self.sink)(Event::Prompt { done: self.cached, total: self.n_prompt })?;
        }
        let Some(logits) = logits else { return Progress::Continue(()) };
        match self.sampler.sample(logits) {
            Some(id) => self.push(id, text, now),
            None => self.fail(Failure::NoLogits),
        }
    }

    /// Ends it without success.
    pub(super) fn fail(&mut self, failure: Failure) -> Progress {
        // Nothing follows, whoever listens.
        let _ = (self.sink)(Event::Failed(failure));
        Progress::Break(())
    }

    fn push(&mut self, id: u32, text: &Text, now: Duration) -> Progress {
        self.ids.push(id);
        self.first_token.get_or_insert(now);
        if !self.ignore_eos && text.eos.contains(&id) {
            return self.finish(FinishReason::Stop, now);
        }
        match self.text.push(&self.detokenizer.push(&text.tokenizer, id)) {
            Released::Text(piece) => self.say(piece)?,
            Released::Stopped(piece) => {
                self.say(piece)?;
                return self.end(FinishReason::Stop, now);
            }
        }
        if self.ids.len() >= self.max_ids {
            self.finish(FinishReason::Length, now)
        } else {
            Progress::Continue(())
        }
    }

    /// Says what was held back and ends, unless a stop string turns up in it.
    fn finish(&mut self, reason: FinishReason, now: Duration) -> Progress {
        let rest = self.detokenizer.finish();
        match self.text.push(&rest) {
            Released::Text(piece) => {
                let held = self.text.finish();
                self.say(piece + &held)?;
                self.end(reason, now)
            }
            Released::Stopped(piece) => {
                self.say(piece)?;
                self.end(FinishReason::Stop, now)
            }
        }
    }

    fn say(&mut self, piece: String) -> Progress {
        if piece.is_empty() { Progress::Continue(()) } else { (self.sink)(Event::Text(piece)) }
    }

    fn end(&mut self, reason: FinishReason, now: Duration) -> Progress {
        let first_token = self.first_token.unwrap_or(now);
        let timings = Timings {
            prompt: first_token.saturating_sub(self.began.unwrap_or(first_token)),
            generation: now.saturating_sub(first_token),
        };
        let ids = self.ids[self.n_prompt..].to_vec();
        let usage = Usage { prompt_tokens: self.n_prompt, completion_tokens: ids.len() };
        let _ = (self.sink)(Event::Finished(Finish {
            reason,
            usage,
            timings,
            ids,
            min_margin: self.sampler.min_margin(),
        }));
        Progress::Break(())
    }
}
