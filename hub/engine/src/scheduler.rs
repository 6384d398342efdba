//! Which rows go into the next step: one of every sequence that generates, and chunks of prompts with what is left.

use std::{collections::VecDeque, ops::ControlFlow, sync::Arc, time::Duration};

use super::{
    counts::Counts,
    prefix::{PrefixCache, n_common},
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
    prefixes: PrefixCache,
    counts: Arc<Counts>,
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
        Self {
            model,
            text,
            kv,
            prefixes: PrefixCache::default(),
            counts: Arc::default(),
            space,
            limits,
            config,
            clock,
            running: Vec::new(),
            waiting: VecDeque::new(),
        }
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

    /// What it has done so far, for others to read.
    pub fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
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
        self.waiting.push_back(Sequence::new(request, self.limits.context, sink));
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
        let Self { running, kv, prefixes, text, limits, .. } = self;
        let now = (self.clock)();
        let mut cache = Cache { kv, prefixes };
        let n_tokens = deliver(running, &mut cache, text, limits.vocabulary, &chunks, stepped, now);
        let n_rows = chunks.iter().sum();
        self.counts.add_step(n_rows, n_tokens);
        experts.step_ends(n_rows, n_tokens);
    }

    /// Lets those begin whose tokens the cache has room for.
    fn admit(&mut self) {
        while let Some(next) = self.waiting.front() {
            // A page more for each that runs, or it would be sent back at their next token.
            let needed = (next.ids.len() + 1).div_ceil(PAGE_POSITIONS) + self.running.len();
            let free = || self.kv.free_pages() + self.prefixes.n_idle(&self.kv);
            if !self.running.is_empty() && needed > free() {
                return;
            }
            self.running.extend(self.waiting.pop_front());
        }
    }

    /// How many tokens of each running sequence go into the step; all of them have room in the cache.
    fn plan(&mut self) -> Vec<usize> {
        let waits: Vec<bool> = (0..self.running.len()).map(|index| self.waits(index)).collect();
        for (sequence, _) in self.running.iter_mut().zip(&waits).filter(|(_, waits)| !**waits) {
            if sequence.cached == 0 && !self.kv.has_states() {
                // The last token is computed whatever is cached: it gives the logits.
                let known = &sequence.ids[..sequence.ids.len() - 1];
                let n = self.prefixes.take_up(known, &mut self.kv, &mut sequence.table);
                sequence.take_up(n);
                self.counts.add_cached(n);
            }
        }
        // What generates goes first: its row is one, and somebody reads along. Prompts share what is left.
        let generating = |sequence: &Sequence| sequence.n_pending() == 1;
        let mut rows_left = self.config.max_rows - self.running.iter().filter(|s| generating(s)).count();
        let is_reading = |(sequence, waits): &(&Sequence, &bool)| !generating(sequence) && !**waits;
        let mut n_reading = self.running.iter().zip(&waits).filter(is_reading).count();
        let mut chunks: Vec<usize> = Vec::with_capacity(self.running.len());
        for (sequence, waits) in self.running.iter().zip(&waits) {
            chunks.push(if generating(sequence) {
                1
            } else if *waits {
                0
            } else {
                let n = sequence.n_pending().min(rows_left.div_ceil(n_reading));
                n_reading -= 1;
                rows_left -= n;
                n
            });
        }
        let mut index = 0;
        while index < self.running.len() {
            let sequence = &mut self.running[index];
            if self.kv.reserve(&mut sequence.table, sequence.cached + chunks[index]) {
                index += 1;
            } else if self.prefixes.let_one_go(&mut self.kv) {
                // Tried again.
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

    /// Whether a sequence that has not begun had better wait: an older one computes what it begins with.
    fn waits(&self, index: usize) -> bool {
        let own = &self.running[index];
        let is_ahead = |older: &Sequence| {
            let n = n_common(&older.ids, &own.ids);
            older.n_pending() > 1 && n >= PAGE_POSITIONS && older.cached < n
        };
        own.cached == 0 && !self.kv.has_states() && self.running[..index].iter().any(is_ahead)
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
            Cache { kv: &mut self.kv, prefixes: &mut self.prefixes }.end(&mut youngest);
            youngest.cached = 0;
            self.waiting.push_front(youngest);
        }
    }
}

/// Where keys and values lie, those that are kept for later among them.
struct Cache<'a> {
    kv: &'a mut KvPool,
    prefixes: &'a mut PrefixCache,
}

impl Cache<'_> {
    /// Keeps what `sequence` has cached, of its last page only what nobody will write to.
    fn keep(&mut self, sequence: &Sequence, n: usize) {
        if !self.kv.has_states() {
            self.prefixes.keep(&sequence.ids[..n], self.kv, &sequence.table);
        }
    }

    /// Takes back the pages of a sequence that is over, and keeps them for the next.
    fn end(&mut self, sequence: &mut Sequence) {
        self.keep(sequence, sequence.cached);
        self.kv.release(&mut sequence.table);
    }
}

/// Gives every sequence of the step its logits (V), or all of them the failure; ends those that are done. How many
/// got logits.
fn deliver(
    running: &mut Vec<Sequence>,
    cache: &mut Cache<'_>,
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
        let is_reading = sequence.n_pending() > 1;
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
            cache.end(sequence);
        } else if is_reading && failure.is_none() {
            // A prompt's full pages are for all that begin alike, at once.
            cache.keep(sequence, sequence.cached / PAGE_POSITIONS * PAGE_POSITIONS);
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
