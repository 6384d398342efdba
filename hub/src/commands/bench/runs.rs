//! Times prefill and decode.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::ensure;

use moex_model::{Experts, KvPool, KvTable, Model, Span, Stage, WantedLogits, Workspace};

/// How long a device computes before it is measured: a card that was idle takes as long to raise its clock.
const DEVICE_WARM_UP: Duration = Duration::from_secs(1);

/// How much each run computes.
pub(super) struct Lengths {
    pub(super) prompt: usize,
    pub(super) generate: usize,
    /// Context lengths before the decoded tokens.
    pub(super) depths: Vec<usize>,
    /// T, the most rows of a step.
    pub(super) max_rows: usize,
}

/// A model, its KV cache, and the best times so far.
pub(super) struct Runs {
    model: Arc<Model>,
    pub(super) lengths: Lengths,
    kv: KvPool,
    table: KvTable,
    space: Workspace,
    stages: Arc<Mutex<Stages>>,
    /// Best times of prefill, of decode with an empty context, and of decode at each depth.
    pub(super) prefill: Duration,
    pub(super) decode: Duration,
    pub(super) at_depth: Vec<Duration>,
}

/// Times of each stage.
struct Stages {
    /// Whether to record: only while single tokens with an empty context are measured.
    is_counting: bool,
    last: Instant,
    times: Vec<(Stage, Duration)>,
}

impl Runs {
    pub(super) fn new(model: &Arc<Model>, lengths: Lengths) -> anyhow::Result<Self> {
        let mut kv = model.kv_pool(usize::MAX, 1);
        let mut table = KvTable::default();
        let longest =
            lengths.depths.iter().copied().max().unwrap_or(0).max(lengths.prompt) + lengths.generate;
        ensure!(kv.reserve(&mut table, longest), "not enough memory for {longest} tokens of context");
        let stages =
            Arc::new(Mutex::new(Stages { is_counting: false, last: Instant::now(), times: Vec::new() }));
        let mut space = Workspace::default();
        let observed = stages.clone();
        space.observe(move |stage| {
            let mut stages = locked(&observed);
            if stages.is_counting {
                let now = Instant::now();
                let taken = now - stages.last;
                stages.times.push((stage, taken));
                stages.last = now;
            }
        });
        let n_depths = lengths.depths.len();
        Ok(Self {
            model: model.clone(),
            lengths,
            kv,
            table,
            space,
            stages,
            prefill: Duration::MAX,
            decode: Duration::MAX,
            at_depth: vec![Duration::MAX; n_depths],
        })
    }

    /// Fills the cache to the greatest depth, so that no measured run pays for first use.
    pub(super) fn warm_up(&mut self, experts: &mut dyn Experts) -> anyhow::Result<()> {
        let deepest = self.lengths.depths.iter().copied().max().unwrap_or(0).max(self.lengths.prompt);
        self.prompt(deepest, experts)?;
        self.tokens(0, 2, experts)?;
        let started = Instant::now();
        while self.model.device().is_some() && started.elapsed() < DEVICE_WARM_UP {
            self.tokens(0, 2, experts)?;
        }
        Ok(())
    }

    /// Measures everything once. The cache beyond the prompt stays what [`Self::warm_up`] made it.
    pub(super) fn repeat(&mut self, experts: &mut dyn Experts) -> anyhow::Result<()> {
        self.prefill = self.prefill.min(self.prompt(self.lengths.prompt, experts)?);
        {
            let mut stages = locked(&self.stages);
            (stages.is_counting, stages.last) = (true, Instant::now());
        }
        let decode = self.tokens(0, self.lengths.generate, experts)?;
        locked(&self.stages).is_counting = false;
        self.decode = self.decode.min(decode);
        for index in 0..self.lengths.depths.len() {
            let taken = self.tokens(self.lengths.depths[index], self.lengths.generate, experts)?;
            self.at_depth[index] = self.at_depth[index].min(taken);
        }
        Ok(())
    }

    /// Median microseconds of each stage for single tokens: per layer, or per step for stages outside of layers.
    pub(super) fn stage_micros(&self) -> Vec<(Stage, f64)> {
        let stages = locked(&self.stages);
        let median = |stage: Stage| {
            let mut times: Vec<Duration> =
                stages.times.iter().filter(|(of, _)| *of == stage).map(|(_, taken)| *taken).collect();
            times.sort_unstable();
            Some((stage, times.get(times.len() / 2)?.as_secs_f64() * 1e6))
        };
        Stage::ALL.into_iter().filter_map(median).collect()
    }

    /// Bytes of the cache.
    pub(super) fn kv_bytes(&self) -> usize {
        let longest = self.lengths.depths.iter().copied().max().unwrap_or(0).max(self.lengths.prompt);
        (longest + self.lengths.generate) * self.model.compute().kv_layout(self.model.spec()).position_bytes()
    }

    fn prompt(&mut self, n: usize, experts: &mut dyn Experts) -> anyhow::Result<Duration> {
        let ids: Vec<u32> = (0..n).map(|position| self.id(position)).collect();
        let started = Instant::now();
        for (chunk, ids) in ids.chunks(self.lengths.max_rows).enumerate() {
            let start = chunk * self.lengths.max_rows;
            let wanted = if start + ids.len() == n { WantedLogits::Last } else { WantedLogits::Nothing };
            self.step(ids, start, wanted, experts)?;
        }
        Ok(started.elapsed())
    }

    fn tokens(&mut self, start: usize, n: usize, experts: &mut dyn Experts) -> anyhow::Result<Duration> {
        let started = Instant::now();
        for position in start..start + n {
            self.step(&[self.id(position)], position, WantedLogits::Last, experts)?;
        }
        Ok(started.elapsed())
    }

    fn step(
        &mut self,
        ids: &[u32],
        start: usize,
        wanted: WantedLogits,
        experts: &mut dyn Experts,
    ) -> anyhow::Result<()> {
        let span = Span { ids, start, table: &self.table, wanted };
        // As a greedy text does.
        self.space.want_best(2, std::iter::empty());
        self.model.step(&[span], &mut self.kv, experts, &mut self.space)?;
        Ok(())
    }

    /// Returns some token of the vocabulary; the text does not matter here.
    fn id(&self, position: usize) -> u32 {
        ((position * 7919 + 17) % self.model.spec().vocab) as u32
    }
}

fn locked(stages: &Mutex<Stages>) -> MutexGuard<'_, Stages> {
    stages.lock().unwrap_or_else(PoisonError::into_inner)
}
