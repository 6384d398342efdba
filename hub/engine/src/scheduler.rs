//! Which rows go into the next step: one of every sequence that generates, and chunks of prompts with what is left.

use std::{collections::VecDeque, ops::ControlFlow, sync::Arc, time::Duration};

use super::{
    request::{Failure, Request, RequestLimits, Sink, SubmitError},
    sequence::Sequence,
};
use moex_model::text::Text;
use moex_model::{Experts, KvPool, Model, PAGE_POSITIONS, Span, StepError, Wanted, Workspace};

/// How much an engine takes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// T, the most rows of a step, and so the longest chunk of a prompt.
    pub max_rows: usize,
    /// Sequences that share steps; at most `max_rows` count.
    pub max_sequences: usize,
    /// Requests that wait for one of those to end.
    pub max_waiting: usize,
    /// Bytes of the KV cache.
    pub kv_bytes: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self { max_rows: 128, max_sequences: 16, max_waiting: 64, kv_bytes: 1 << 30 }
    }
}

/// The time since any fixed moment.
pub type Clock = Box<dyn Fn() -> Duration + Send>;

/// All sequences of an engine. Rows do not depend on what else is in a step, so every text is what it would be alone.
pub struct Scheduler {
    model: Arc<Model>,
    text: Arc<Text>,
    kv: KvPool,
    space: Workspace,
    limits: RequestLimits,
    config: EngineConfig,
    clock: Clock,
    /// Oldest first.
    running: Vec<Sequence>,
    /// Oldest first, and younger than all that run.
    waiting: VecDeque<Sequence>,
}

impl Scheduler {
    /// A scheduler without sequences, by a clock that stands still.
    pub fn new(model: Arc<Model>, text: Arc<Text>, config: EngineConfig) -> Self {
        let max_rows = config.max_rows.max(1);
        let max_sequences = config.max_sequences.clamp(1, max_rows);
        let config = EngineConfig { max_rows, max_sequences, ..config };
        let kv = model.kv_pool(config.kv_bytes, max_sequences);
        let context = model.spec().max_positions.min(kv.max_positions());
        let limits = RequestLimits { context, vocabulary: model.spec().vocab };
        let space = model.workspace(config.max_rows, max_sequences);
        let clock: Clock = Box::new(|| Duration::ZERO);
        Self { model, text, kv, space, limits, config, clock, running: Vec::new(), waiting: VecDeque::new() }
    }

    /// The same, measuring its requests by `clock`.
    #[must_use]
    pub fn with_clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    #[cfg(test)]
    pub(super) fn kv(&mut self) -> &mut KvPool {
        &mut self.kv
    }

    /// What a request may ask for.
    pub fn limits(&self) -> RequestLimits {
        self.limits
    }

    /// Whether there is nothing to step.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Whether another sequence may share the steps.
    pub fn has_room(&self) -> bool {
        self.running.len() + self.waiting.len() < self.config.max_sequences
    }

    /// Takes a request on.
    ///
    /// # Errors
    /// What [`RequestLimits::check`] says, or [`SubmitError::Busy`] without [`Self::has_room`]; `sink` then gets nothing.
    pub fn submit(&mut self, request: Request, sink: Sink) -> Result<(), SubmitError> {
        self.limits.check(&request)?;
        if !self.has_room() {
            return Err(SubmitError::Busy);
        }
        let special = self.text.output.special();
        self.waiting.push_back(Sequence::new(request, self.limits.context, special, sink));
        Ok(())
    }

    /// Runs one step and gives its events to the sinks. A step that fails ends the sequences that had rows in it.
    pub fn step(&mut self, experts: &mut dyn Experts) {
        self.admit();
        let chunks = self.plan();
        let now = (self.clock)();
        for (sequence, _) in self.running.iter_mut().zip(&chunks).filter(|(_, n)| **n > 0) {
            sequence.step_begins(now);
        }
        let planned = self.running.iter().zip(&chunks).filter(|(_, n)| **n > 0);
        let spans: Vec<Span<'_>> = planned.map(|(sequence, n)| span(sequence, *n)).collect();
        if spans.is_empty() {
            return;
        }
        experts.step_begins();
        let stepped = self.model.step(&spans, &mut self.kv, experts, &mut self.space);
        let Self { running, kv, text, limits, .. } = self;
        let now = (self.clock)();
        let n_tokens = deliver(running, kv, text, limits.vocabulary, &chunks, stepped, now);
        experts.step_ends(chunks.iter().sum(), n_tokens);
    }

    /// Lets those begin whose tokens the cache has room for.
    fn admit(&mut self) {
        while let Some(next) = self.waiting.front() {
            // A page more for each that runs, or it would be sent back at their next token.
            let needed = (next.ids.len() + 1).div_ceil(PAGE_POSITIONS) + self.running.len();
            if !self.running.is_empty() && needed > self.kv.free_pages() {
                return;
            }
            self.running.extend(self.waiting.pop_front());
        }
    }

    /// How many tokens of each running sequence go into the step; all of them have room in the cache.
    fn plan(&mut self) -> Vec<usize> {
        // What generates goes first: its row is one, and somebody reads along.
        let generating = |sequence: &Sequence| sequence.n_pending() == 1;
        let mut rows_left = self.config.max_rows - self.running.iter().filter(|s| generating(s)).count();
        let mut chunks: Vec<usize> = Vec::with_capacity(self.running.len());
        for sequence in &self.running {
            chunks.push(if generating(sequence) {
                1
            } else {
                let n = sequence.n_pending().min(rows_left);
                rows_left -= n;
                n
            });
        }
        let mut index = 0;
        while index < self.running.len() {
            let sequence = &mut self.running[index];
            if self.kv.reserve(&mut sequence.table, sequence.cached + chunks[index]) {
                index += 1;
            } else if self.running.len() > 1 {
                // The youngest gives way and begins anew later.
                self.send_back();
            } else {
                // The pool has pages for the oldest alone: it is the system that has no memory for them.
                self.give_up();
            }
        }
        chunks.truncate(self.running.len());
        chunks
    }

    /// The only running sequence fails.
    fn give_up(&mut self) {
        if let Some(mut oldest) = self.running.pop() {
            self.kv.release(&mut oldest.table);
            // It is over, whoever listens.
            let _ = oldest.fail(Failure::NoMemory);
        }
    }

    /// The youngest running sequence waits again, with nothing cached.
    fn send_back(&mut self) {
        if let Some(mut youngest) = self.running.pop() {
            self.kv.release(&mut youngest.table);
            youngest.cached = 0;
            self.waiting.push_front(youngest);
        }
    }
}

/// Gives every sequence of the step its logits (V), or all of them the failure; ends those that are done. How many
/// got logits.
fn deliver(
    running: &mut Vec<Sequence>,
    kv: &mut KvPool,
    text: &Text,
    vocabulary: usize,
    chunks: &[usize],
    stepped: Result<&mut [f32], StepError>,
    now: Duration,
) -> usize {
    let mut failure = None;
    let logits = stepped.unwrap_or_else(|error| {
        failure = Some(Failure::Step(error));
        &mut []
    });
    let mut logits = logits.chunks_exact_mut(vocabulary);
    let mut chunks = chunks.iter();
    let mut n_tokens = 0;
    running.retain_mut(|sequence| {
        let n = *chunks.next().expect("a chunk for each running sequence");
        let progress = match &failure {
            _ if n == 0 => ControlFlow::Continue(()),
            Some(failure) => sequence.fail(failure.clone()),
            None if n < sequence.n_pending() => sequence.advance(n, None, text, now),
            None => {
                n_tokens += 1;
                sequence.advance(n, logits.next(), text, now)
            }
        };
        if progress.is_break() {
            kv.release(&mut sequence.table);
        }
        progress.is_continue()
    });
    n_tokens
}

/// The next `n` tokens of a sequence.
fn span(sequence: &Sequence, n: usize) -> Span<'_> {
    Span {
        ids: &sequence.ids[sequence.cached..][..n],
        start: sequence.cached,
        table: &sequence.table,
        wanted: if n == sequence.n_pending() { Wanted::Last } else { Wanted::Nothing },
    }
}
