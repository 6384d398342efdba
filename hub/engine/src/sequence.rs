//! A running request: its tokens, how many of them are cached, and its text.

use std::{ops::ControlFlow, time::Duration};

use super::{
    draft::Drafter,
    request::{Client, Event, Failure, Finish, FinishReason, Request, Sink, Timings, Usage},
    stop::{Released, StopText},
    utility::{AcceptanceRate, MAX_GUESSES, StepCost},
};
use crate::sampler::{Sampler, logprobs};
use moex_model::text::{Detokenizer, Special, Text};
use moex_model::{Draw, KvTable, RowLogits};

/// Events that may be unread while a text goes on.
const MAX_UNREAD: usize = 128;

/// How often a request begins again before it fails.
const MAX_RESTARTS: u32 = 3;

/// A running request.
pub(super) struct Sequence {
    /// What was asked for, to begin again.
    request: Request,
    n_restarts: u32,
    pub(super) client: Client,
    /// Prompt and generated tokens.
    pub(super) ids: Vec<u32>,
    n_prompt: usize,
    /// Number of alternatives reported per prompt token, if requested.
    prompt_logprobs: Option<u8>,
    /// Number of prompt tokens already reported, or that need no report, as the first.
    n_told: usize,
    /// Length at which it ends.
    max_ids: usize,
    ignore_eos: bool,
    /// Length before which nothing ends it.
    min_ids: usize,
    /// How many of `ids` are in the KV cache.
    pub(super) cached: usize,
    /// Whether it waits, running: an older sequence computes its prefix, or nobody reads it.
    pub(super) waits: bool,
    /// Prompt tokens found in the prefix cache.
    found: usize,
    pub(super) table: KvTable,
    /// Number of drafted tokens at the end of `ids`, to be verified by the step.
    n_guesses: usize,
    drafter: Drafter,
    acceptance: AcceptanceRate,
    n_guessed: usize,
    n_accepted: usize,
    sampler: Sampler,
    detokenizer: Detokenizer,
    text: StopText,
    /// Start of the first step with its rows.
    began: Option<Duration>,
    first_token: Option<Duration>,
    sink: Sink,
}

/// Whether the sequence continues.
pub(super) type Progress = ControlFlow<()>;

impl Sequence {
    /// `request` has been checked against a context of `context` positions; `special` says how special tokens are
    /// decoded.
    pub(super) fn new(request: Request, context: usize, special: Special, sink: Sink) -> Self {
        let kept = request.clone();
        let n_prompt = request.prompt_ids.len();
        let asked = request.max_tokens.map_or(usize::MAX, |tokens| tokens as usize);
        let drafter = Drafter::new(&request.prediction_ids, &request.prompt_ids);
        Self {
            request: kept,
            n_restarts: 0,
            client: request.client,
            max_ids: n_prompt.saturating_add(asked).min(context),
            ignore_eos: request.ignore_eos,
            min_ids: n_prompt + request.min_tokens as usize,
            sampler: Sampler::new(request.sampling, &request.prompt_ids)
                .held_to(request.grammar.as_deref())
                .telling(request.top_logprobs),
            ids: request.prompt_ids,
            n_prompt,
            prompt_logprobs: request.prompt_logprobs,
            n_told: 1,
            cached: 0,
            waits: false,
            found: 0,
            table: KvTable::default(),
            n_guesses: 0,
            drafter,
            acceptance: AcceptanceRate::default(),
            n_guessed: 0,
            n_accepted: 0,
            detokenizer: Detokenizer::new(special),
            text: StopText::new(request.stop),
            began: None,
            first_token: None,
            sink,
        }
    }

    /// Whether its reader is so far behind that it waits.
    pub(super) fn is_unread(&self) -> bool {
        self.sink.n_unread().is_some_and(|n| n > MAX_UNREAD)
    }

    /// Whether its reader has caught up.
    pub(super) fn is_read_again(&self) -> bool {
        self.sink.n_unread().is_some_and(|n| n <= MAX_UNREAD / 2)
    }

    /// Whether nobody listens any more.
    pub(super) fn is_left(&self) -> bool {
        self.sink.n_unread().is_none()
    }

    /// Tokens not yet in the cache, without drafts: one while it generates.
    pub(super) fn n_pending(&self) -> usize {
        self.ids.len() - self.n_guesses - self.cached
    }

    /// Whether the logits of all remaining prompt rows are needed, not only of the last.
    pub(super) fn tells_prompt(&self) -> bool {
        self.prompt_logprobs.is_some() && self.n_told < self.n_prompt
    }

    /// Number of leading tokens whose logits nobody needs: they are not computed if they are cached.
    pub(super) fn n_needless(&self) -> usize {
        let n = if self.tells_prompt() { self.n_told } else { self.ids.len() };
        n - 1
    }

    /// Drafted rows that the next step verifies.
    pub(super) fn n_guesses(&self) -> usize {
        self.n_guesses
    }

    /// Drafts up to `n` tokens, as many as pay in a step of `n_rows` rows.
    pub(super) fn guess(&mut self, n: usize, n_rows: usize, cost: &StepCost) {
        let room = self.max_ids.saturating_sub(self.ids.len() + 1);
        let n = cost.worth(n.min(room).min(MAX_GUESSES), self.acceptance.p(), n_rows);
        let before = self.ids.len();
        self.ids.extend(self.drafter.guess(n));
        self.n_guesses = self.ids.len() - before;
        if self.n_guesses == 0 {
            self.acceptance.rest();
        }
    }

    /// Removes the drafts.
    pub(super) fn forget_guesses(&mut self) {
        self.ids.truncate(self.ids.len() - self.n_guesses);
        self.n_guesses = 0;
    }

    /// The first `n` tokens were found in the prefix cache.
    pub(super) fn take_up(&mut self, n: usize) {
        self.cached = n;
        // After a preemption in the middle of its text, it finds more than the prompt.
        self.found = n.min(self.n_prompt);
    }

    /// A step with its rows begins.
    pub(super) fn step_begins(&mut self, now: Duration) {
        self.began.get_or_insert(now);
    }

    /// How many of the best logits of each of its rows are enough in the next step, if some are.
    pub(super) fn n_best(&self) -> Option<usize> {
        let forbids = self.ids.len() - self.n_guesses < self.min_ids;
        if forbids || self.tells_prompt() { None } else { self.sampler.n_best() }
    }

    /// How tokens are drawn from all logits of its rows that want some, one after another.
    pub(super) fn draws(&self) -> impl Iterator<Item = Draw> + use<> {
        self.sampler.draws()
    }

    /// `n` more tokens are in the cache; `logits` are those of the last.
    pub(super) fn advance(
        &mut self,
        n: usize,
        logits: Option<RowLogits<'_>>,
        text: &Text,
        now: Duration,
    ) -> Progress {
        self.read(n)?;
        let Some(logits) = logits else { return Progress::Continue(()) };
        self.draw(logits, text, now)
    }

    /// `n` more prompt tokens are in the cache, each with its `logits`: those of the next token, the last of the first token after
    /// the prompt.
    pub(super) fn tell_prompt<'l>(
        &mut self,
        n: usize,
        logits: impl Iterator<Item = RowLogits<'l>>,
        text: &Text,
        now: Duration,
    ) -> Progress {
        let n_top = usize::from(self.prompt_logprobs.unwrap_or_default());
        let mut last = None;
        for (next, logits) in (self.cached + 1..).zip(logits) {
            match self.ids.get(next) {
                // After a preemption in the middle of its prompt, some are already reported.
                Some(_) if next < self.n_told => {}
                Some(token) => {
                    let RowLogits::All(logits) = logits else { unreachable!("it asks for all logits") };
                    self.sink.hear(Event::PromptLogprobs(logprobs(logits, *token, n_top)))?;
                    self.n_told = next + 1;
                }
                None => last = Some(logits),
            }
        }
        self.advance(n, last, text, now)
    }

    /// `n` more tokens are in the cache.
    fn read(&mut self, n: usize) -> Progress {
        self.cached += n;
        if self.ids.len() == self.n_prompt {
            self.sink.hear(Event::Prompt { done: self.cached, total: self.n_prompt })?;
        }
        Progress::Continue(())
    }

    /// The step has computed the pending token and its drafts: tokens are sampled from their `logits` as they would be one by one,
    /// up to the first wrong draft.
    pub(super) fn check_guesses<'l>(
        &mut self,
        logits: impl Iterator<Item = RowLogits<'l>>,
        text: &Text,
        now: Duration,
    ) -> Progress {
        let guesses = self.ids.split_off(self.ids.len() - self.n_guesses);
        self.n_guesses = 0;
        self.n_guessed += guesses.len();
        let mut n_right = 0;
        for (n, logits) in logits.enumerate() {
            self.read(1)?;
            self.draw(logits, text, now)?;
            if self.ids.last() != guesses.get(n) {
                break;
            }
            n_right += 1;
            self.n_accepted += 1;
        }
        self.acceptance.learn(guesses.len(), n_right);
        Progress::Continue(())
    }

    /// Samples the next token from its `logits`, unless the text has ended.
    fn draw(&mut self, logits: RowLogits<'_>, text: &Text, now: Duration) -> Progress {
        if self.ids.len() >= self.max_ids {
            return self.finish(FinishReason::Length, now);
        }
        let forbidden = if self.ids.len() < self.min_ids { text.eos.as_slice() } else { &[] };
        let drawn = match logits {
            RowLogits::All(logits) => self.sampler.sample(logits, forbidden),
            RowLogits::Best { best, drawn } => self.sampler.sample_best(best, drawn),
        };
        match drawn {
            Some(id) => {
                if let Some(logprobs) = self.sampler.take_logprobs() {
                    self.sink.hear(Event::Logprobs(logprobs))?;
                }
                self.push(id, text, now)
            }
            None => match self.sampler.take_broken() {
                Some(why) => self.fail(Failure::Grammar(why)),
                None => self.fail(Failure::NoLogits),
            },
        }
    }

    /// Ends the sequence with a failure.
    pub(super) fn fail(&mut self, failure: Failure) -> Progress {
        // It ends even if nobody listens.
        let _ = self.sink.hear(Event::Failed(failure));
        Progress::Break(())
    }

    /// Whether anything of it was computed: its listener may have heard something.
    pub(super) fn has_begun(&self) -> bool {
        self.began.is_some()
    }

    /// The request from its beginning, if nobody has seen anything of its text; otherwise it fails.
    pub(super) fn again(mut self, context: usize, special: Special) -> Option<Self> {
        if self.n_restarts < MAX_RESTARTS && self.sink.forgets() {
            let n_restarts = self.n_restarts + 1;
            return Some(Self { n_restarts, ..Self::new(self.request, context, special, self.sink) });
        }
        let _ = self.fail(Failure::InDoubt);
        None
    }

    fn push(&mut self, id: u32, text: &Text, now: Duration) -> Progress {
        self.ids.push(id);
        self.drafter.push(id);
        self.first_token.get_or_insert(now);
        if !self.ignore_eos && text.eos.contains(&id) {
            return self.finish(FinishReason::Stop, now);
        }
        let piece = self.detokenizer.push(&text.tokenizer, id);
        let released =
            if self.ids.len() < self.min_ids { Released::Text(piece) } else { self.text.push(piece) };
        match released {
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

    /// Emits the text held back and ends, unless it contains a stop string.
    fn finish(&mut self, reason: FinishReason, now: Duration) -> Progress {
        let rest = self.detokenizer.finish();
        match self.text.push(rest) {
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
        if piece.is_empty() { Progress::Continue(()) } else { self.sink.hear(Event::Text(piece)) }
    }

    fn end(&mut self, reason: FinishReason, now: Duration) -> Progress {
        let first_token = self.first_token.unwrap_or(now);
        let timings = Timings {
            prompt: first_token.saturating_sub(self.began.unwrap_or(first_token)),
            generation: now.saturating_sub(first_token),
        };
        let ids = self.ids[self.n_prompt..].to_vec();
        let usage = Usage {
            prompt_tokens: self.n_prompt,
            cached_tokens: self.found,
            completion_tokens: ids.len(),
            guessed_tokens: self.n_guessed,
            accepted_tokens: self.n_accepted,
        };
        let _ = self.sink.hear(Event::Finished(Finish {
            reason,
            usage,
            timings,
            ids,
            min_margin: self.sampler.min_margin(),
        }));
        Progress::Break(())
    }
}
