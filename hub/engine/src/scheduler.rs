//! Chooses the rows of each step: one row of every generating sequence, and chunks of prompts in the remaining space.

mod doubt;
mod groups;
mod turns;

use std::{collections::VecDeque, ops::ControlFlow, sync::Arc, time::Duration};

use super::{
    chunk_length::ChunkLength,
    clock::Clock,
    counts::Counts,
    in_flight::{InFlight, Timed},
    prefix::{PrefixCache, n_common},
    request::{Client, Failure, Request, RequestLimits, Sink, SubmitError},
    sequence::Sequence,
    utility::StepCost,
};
use groups::{FEW_GROUPS, groups, n_best};
use moex_model::text::Text;
use smallvec::SmallVec;

use moex_model::{Experts, KvPool, MicroBatch, Model, PAGE_POSITIONS, RowLogits, StepError, Workspace};

/// Limits of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// T, the maximum rows computed at once, and so the longest chunk of a prompt; while others generate, chunks are as
    /// short as their measured cost demands.
    pub max_rows: usize,
    /// Maximum sequences in a step; values above `max_rows` count as `max_rows`.
    pub max_sequences: usize,
    /// Maximum requests that wait for a running one to end.
    pub max_waiting: usize,
    /// Bytes of the KV cache.
    pub kv_bytes: usize,
    /// Groups of rows in flight; chosen by measured speed if not given.
    pub in_flight: Option<usize>,
    /// Whether to use speculative decoding where it is measured to be faster. Texts do not depend on it.
    pub guesses: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            max_rows: 128,
            max_sequences: 16,
            max_waiting: 128,
            kv_bytes: 1 << 30,
            in_flight: None,
            guesses: true,
        }
    }
}

/// Maximum prompt rows of a step whose logits are computed: each has a value per token of the vocabulary.
const MAX_TOLD_ROWS: usize = 64;

/// All sequences of an engine. A row does not depend on other rows of a step, so no text depends on other requests.
pub struct Scheduler {
    model: Arc<Model>,
    text: Arc<Text>,
    kv: KvPool,
    prefixes: PrefixCache,
    counts: Arc<Counts>,
    /// One workspace for each group of rows in flight.
    spaces: Vec<Workspace>,
    in_flight: InFlight,
    cost: StepCost,
    chunk_length: ChunkLength,
    limits: RequestLimits,
    config: EngineConfig,
    clock: Clock,
    /// Oldest first.
    running: Vec<Sequence>,
    /// Tokens of each running sequence in the step.
    chunks: Vec<usize>,
    /// Oldest first.
    waiting: VecDeque<Sequence>,
    /// Those that nobody reads, while others want their places.
    unread: Vec<Sequence>,
    /// Whose turns the last ones were, the latest at the end.
    turns: VecDeque<Client>,
    /// As the experts said last.
    n_doubts: u64,
}

impl Scheduler {
    /// Creates a scheduler without sequences, with a clock that does not advance.
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
            spaces: vec![space],
            in_flight: InFlight::new(config.in_flight),
            cost: StepCost::default(),
            chunk_length: ChunkLength::default(),
            limits,
            config,
            clock,
            running: Vec::new(),
            chunks: Vec::new(),
            waiting: VecDeque::new(),
            unread: Vec::new(),
            turns: VecDeque::new(),
            n_doubts: 0,
        }
    }

    /// Replaces the clock.
    #[must_use]
    pub fn with_clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    #[cfg(test)]
    pub(super) fn kv(&mut self) -> &mut KvPool {
        &mut self.kv
    }

    /// Limits on a request.
    pub fn limits(&self) -> RequestLimits {
        self.limits
    }

    /// Maximum sequences in a step.
    pub fn max_sequences(&self) -> usize {
        self.config.max_sequences
    }

    /// Counters, for other threads to read.
    pub fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
    }

    /// Whether there is nothing to compute.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty() && self.unread.is_empty()
    }

    /// Whether one more request can be accepted.
    pub fn has_room(&self) -> bool {
        self.running.len() + self.waiting.len() + self.unread.len() < self.max_requests()
    }

    /// Maximum requests, running and waiting.
    pub(super) fn max_requests(&self) -> usize {
        self.config.max_sequences + self.config.max_waiting
    }

    /// Accepts a request.
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

    /// Runs one step and passes its events to the sinks; false if there was nothing to compute. A step that fails ends the
    /// sequences with rows in it.
    pub fn step(&mut self, experts: &mut dyn Experts) -> bool {
        self.is_in_doubt(experts);
        self.forget_those_left();
        self.set_unread_aside();
        self.admit();
        let most = experts.max_in_flight();
        let max_rows = self.config.max_rows;
        let mut chunks = std::mem::take(&mut self.chunks);
        self.plan(max_rows * self.in_flight.of_prompts(most), &mut chunks);
        let n_rows: usize = chunks.iter().sum();
        if n_rows == 0 {
            self.chunks = chunks;
            return false;
        }
        let decodes = |(sequence, n): &(&Sequence, &usize)| **n == 1 + sequence.n_guesses();
        let n_decoding: usize = self.running.iter().zip(&chunks).filter(decodes).map(|(_, n)| n).sum();
        let n_sequences = chunks.iter().filter(|n| **n > 0).count();
        let begun = (self.clock)();
        for (sequence, _) in self.running.iter_mut().zip(&chunks).filter(|(_, n)| **n > 0) {
            sequence.step_begins(begun);
        }
        let n_groups = if n_rows > max_rows {
            n_rows.div_ceil(max_rows)
        } else {
            self.in_flight.of_step(n_sequences, most)
        };
        self.spaces.resize_with(self.spaces.len().max(n_groups), Workspace::default);
        let groups = groups(&self.running, &chunks, n_rows.div_ceil(n_groups));
        let n_best = n_best(&self.running, &chunks);
        let batches = groups.iter().zip(&mut self.spaces).map(|(group, workspace)| {
            workspace.want_best(n_best, group.draws.iter().copied());
            MicroBatch { spans: &group.spans, workspace }
        });
        let mut batches: SmallVec<[MicroBatch<'_>; FEW_GROUPS]> = batches.collect();
        experts.step_begins(n_rows);
        let mut timed = Timed::new(experts, &self.clock);
        let stepped = self.model.step_together(&mut batches, &mut self.kv, &mut timed);
        let times = timed.times;
        let n_groups = batches.len();
        drop(batches);
        drop(groups);
        if self.is_in_doubt(experts) {
            self.chunks = chunks;
            experts.step_ends(n_rows, 0);
            return true;
        }
        let now = (self.clock)();
        let Self { model, running, kv, prefixes, text, spaces, .. } = self;
        let logits = spaces[..n_groups].iter_mut().flat_map(|space| model.row_logits(space));
        let n_tokens = deliver(running, &mut Cache { kv, prefixes }, text, &chunks, stepped, logits, now);
        let took = now.saturating_sub(begun);
        if n_rows == n_decoding {
            self.cost.learn(n_rows, took);
        } else {
            self.chunk_length.learn(n_rows - n_decoding, took, self.cost.step(n_decoding));
        }
        self.in_flight.learn(n_sequences, n_groups, took, &times);
        self.counts.add_step(n_rows, n_tokens, took, times.waited);
        self.counts.set_kv(self.kv.pages_in_tables(), self.kv.max_pages());
        self.chunks = chunks;
        experts.step_ends(n_rows, n_tokens);
        true
    }

    /// Chooses the tokens of each running sequence for the step, and reserves their space in the cache.
    fn plan(&mut self, max_rows: usize, chunks: &mut Vec<usize>) {
        for index in 0..self.running.len() {
            self.running[index].waits = self.running[index].is_unread() || self.waits(index);
        }
        for sequence in self.running.iter_mut().filter(|sequence| !sequence.waits) {
            if sequence.cached == 0 && !self.kv.has_states() {
                // The last token is always computed, even if it is cached, since it gives the logits.
                let known = &sequence.ids[..sequence.n_needless()];
                let n = self.prefixes.take_up(known, &mut self.kv, &mut sequence.table);
                sequence.take_up(n);
                self.counts.add_cached(n);
            }
        }
        // Decode rows go first: they are single rows, and someone is reading along. Prompts share the rest.
        let generating = |sequence: &Sequence| sequence.n_pending() == 1 && !sequence.waits;
        let n_generating = self.running.iter().filter(|s| generating(s)).count();
        let mut rows_left = max_rows - n_generating;
        // A layer's state that has advanced cannot be restored.
        if self.config.guesses && !self.kv.has_states() {
            for sequence in self.running.iter_mut().filter(|s| generating(s)) {
                sequence.guess(rows_left, n_generating, &self.cost);
                rows_left -= sequence.n_guesses();
            }
        }
        if n_generating > 0 {
            let base = self.cost.step(max_rows - rows_left);
            rows_left = self.chunk_length.choose(base, rows_left);
        }
        let mut n_reading = self.running.iter().filter(|s| !generating(s) && !s.waits).count();
        let mut told_left = MAX_TOLD_ROWS;
        chunks.clear();
        for sequence in &self.running {
            chunks.push(if generating(sequence) {
                1 + sequence.n_guesses()
            } else if sequence.waits {
                0
            } else {
                let mut n = sequence.n_pending().min(rows_left.div_ceil(n_reading));
                if sequence.tells_prompt() {
                    n = n.min(told_left);
                    told_left -= n;
                }
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
                // Retry with the freed pages.
            } else if sequence.n_guesses() > 0 {
                sequence.forget_guesses();
                chunks[index] = 1;
            } else if chunks[index] > PAGE_POSITIONS && self.kv.has_windows() {
                // A shorter chunk needs fewer pages until windows leave them; one of a page's positions fits into any pool.
                chunks[index] = (chunks[index] / 2).max(PAGE_POSITIONS);
            } else if self.running.len() > 1 {
                // Preempts the youngest sequence; it is recomputed later.
                self.send_back();
            } else {
                // The whole pool holds only the oldest sequence: the system has no memory for more pages.
                self.give_up();
            }
        }
        chunks.truncate(self.running.len());
    }

    /// Whether a waiting sequence should wait longer, because an older one computes its prefix.
    fn waits(&self, index: usize) -> bool {
        let own = &self.running[index];
        let is_ahead = |older: &Sequence| {
            let n = n_common(&older.ids, &own.ids);
            !older.is_unread() && older.n_pending() > 1 && n >= PAGE_POSITIONS && older.cached < n
        };
        let may_take_up = own.cached == 0 && !own.tells_prompt() && !self.kv.has_states();
        may_take_up && self.running[..index].iter().any(is_ahead)
    }
}

/// The KV pool and the prefix cache.
struct Cache<'a> {
    kv: &'a mut KvPool,
    prefixes: &'a mut PrefixCache,
}

impl Cache<'_> {
    /// Caches the pages of `sequence`; of its last page only what nobody will write to.
    fn keep(&mut self, sequence: &Sequence, n: usize) {
        if !self.kv.has_states() {
            self.prefixes.keep(&sequence.ids[..n], self.kv, &sequence.table);
        }
    }

    /// Releases the pages of an ended sequence to the prefix cache.
    fn end(&mut self, sequence: &mut Sequence) {
        self.keep(sequence, sequence.cached);
        self.kv.release(&mut sequence.table);
    }
}

/// Passes its logits, or the failure, to every sequence of the step, and ends those that are done. Returns the
/// number of drawn tokens.
fn deliver<'l>(
    running: &mut Vec<Sequence>,
    cache: &mut Cache<'_>,
    text: &Text,
    chunks: &[usize],
    stepped: Result<(), StepError>,
    mut logits: impl Iterator<Item = RowLogits<'l>>,
    now: Duration,
) -> usize {
    let failure = stepped.err().map(Failure::Step);
    let mut chunks = chunks.iter();
    let mut n_tokens = 0;
    running.retain_mut(|sequence| {
        let n_before = sequence.ids.len() - sequence.n_guesses();
        let n = *chunks.next().expect("a chunk for each running sequence");
        let is_reading = sequence.n_pending() > 1;
        let progress = match &failure {
            _ if n == 0 => ControlFlow::Continue(()),
            Some(failure) => sequence.fail(failure.clone()),
            None if sequence.tells_prompt() => {
                let mut own = logits.by_ref().take(n);
                let progress = sequence.tell_prompt(n, &mut own, text, now);
                // Sequences that nobody listens to any more.
                own.for_each(drop);
                progress
            }
            None if n < sequence.n_pending() => sequence.advance(n, None, text, now),
            None if sequence.n_guesses() > 0 => {
                let mut own = logits.by_ref().take(n);
                let progress = sequence.check_guesses(&mut own, text, now);
                // Logits after a wrong draft are unused.
                own.for_each(drop);
                progress
            }
            None => sequence.advance(n, logits.next(), text, now),
        };
        if failure.is_none() {
            n_tokens += sequence.ids.len() - sequence.n_guesses() - n_before;
        }
        if progress.is_break() {
            cache.end(sequence);
        } else if is_reading && failure.is_none() {
            // A prompt's full pages are shared at once with sequences that have the same prefix.
            cache.keep(sequence, sequence.cached / PAGE_POSITIONS * PAGE_POSITIONS);
        }
        if progress.is_continue() {
            cache.kv.release_unseen(&mut sequence.table, sequence.cached);
        }
        progress.is_continue()
    });
    n_tokens
}
