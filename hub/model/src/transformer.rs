//! A loaded model: its forward pass, prepared for an engine, and its experts in the checkpoint.

use std::{fmt, iter, sync::OnceLock};

use moex_kernels::{
    cpu::OutOfVocabulary,
    graph::{
        DeviceError, DeviceOutput, DevicePass, ExpertsWanted, KvLayout, KvPool, LayerRouting, Pause,
        PlanBytes, Program, Span, Stage, Workspace as Space,
    },
    simd::Draw,
};
use moex_protocol::Routing;

use super::{
    checkpoint::{Checkpoint, Expert},
    compute::Compute,
    error::ModelError,
    experts::{Experts, ExpertsError, LayerRequest, Ticket},
    forward,
    mapped::{self, Mapped},
    spec::{FfnSpec, ModelSpec},
};

/// A model over its mapped checkpoint.
pub struct Model {
    spec: ModelSpec,
    compute: Compute,
    program: Program,
    /// (L): the experts of each layer, none for a dense one.
    experts: Vec<Vec<Expert>>,
    /// Location of matrices that are not packed.
    files: Vec<Mapped>,
    /// The whole pass on another device, experts included, if it runs there.
    device: OnceLock<Box<dyn DevicePass>>,
}

/// Buffers of a step, reused: they grow to the largest step, and then allocate no more.
#[derive(Default)]
pub struct Workspace {
    space: Space,
    routing: Routing,
    /// What a group waits for; none when it is done.
    away: Option<Away>,
    /// What a pass on another device gave.
    on_device: DeviceOutput,
}

/// The logits of a row.
#[derive(Debug)]
pub enum RowLogits<'a> {
    /// (V).
    All(&'a mut [f32]),
    /// Those that are enough.
    Best {
        /// The best, as many as were wanted: tokens and logits, the largest first; minus infinity where there are fewer.
        best: &'a [(u32, f32)],
        /// The token drawn from all, if one was to be.
        drawn: Option<u32>,
    },
}

/// What a group of rows waits for.
enum Away {
    /// Its turn: nothing is computed elsewhere.
    Nothing,
    /// The experts of a layer.
    Layer(ExpertsWanted, Ticket),
}

/// When a step uses what experts elsewhere computed.
#[derive(Clone, Copy)]
enum Finish {
    /// At once: see [`Experts::finish_early`].
    Early,
    /// When it is known to be right.
    Checked,
}

/// Rows that go through the model together, and their memory.
pub struct MicroBatch<'a> {
    /// Rows of sequences.
    pub spans: &'a [Span<'a>],
    /// Its buffers, which contain its logits at the end.
    pub workspace: &'a mut Workspace,
}

/// Why a step failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// A token outside the vocabulary.
    #[error(transparent)]
    Vocabulary(#[from] OutOfVocabulary),
    /// The experts of a layer could not be computed.
    #[error(transparent)]
    Experts(#[from] ExpertsError),
    /// The device that the pass runs on has failed.
    #[error("{0}")]
    Device(String),
    /// A file of the model is not what it was when it was loaded.
    #[error(transparent)]
    Files(#[from] mapped::CutShort),
}

impl From<DeviceError> for StepError {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Vocabulary(error) => Self::Vocabulary(error),
            error @ (DeviceError::Experts | DeviceError::Failed(_)) => Self::Device(error.to_string()),
        }
    }
}

impl Model {
    /// [`Self::load_for`] f32: the oracle.
    ///
    /// # Errors
    /// As [`Self::load_for`].
    pub fn load(checkpoint: &Checkpoint) -> Result<Self, ModelError> {
        Self::load_for(checkpoint, &Compute::Exact)
    }

    /// Finds every tensor that the config requires and checks its shape and type. With [`Compute::Exact`] it reads no
    /// matrices; with [`Compute::Fast`] it packs all but the experts.
    ///
    /// # Errors
    /// If a tensor is missing, or has another shape or an unsupported type (names the first), or memory is exhausted.
    pub fn load_for(checkpoint: &Checkpoint, compute: &Compute) -> Result<Self, ModelError> {
        let spec = checkpoint.spec.clone();
        let compute = compute.of(checkpoint);
        let graph = forward::record(checkpoint)?;
        let of_layer = |(index, layer): (usize, &crate::spec::LayerSpec)| match layer.ffn {
            FfnSpec::Dense { .. } => Ok(Vec::new()),
            FfnSpec::Sparse => (0..spec.moe.n_experts)
                .map(|expert| checkpoint.expert(&format!("model.layers.{index}.mlp.experts.{expert}")))
                .collect(),
        };
        let experts = spec.layers.iter().enumerate().map(of_layer).collect::<Result<_, _>>()?;
        let program = compute.program(graph, || checkpoint.files.iter().for_each(Mapped::release))?;
        let model = Self {
            spec,
            compute,
            program,
            experts,
            files: checkpoint.files.clone(),
            device: OnceLock::new(),
        };
        model.release();
        mapped::check()?;
        Ok(model)
    }

    /// Releases the memory of the mapped checkpoint; it is read again where needed.
    pub fn release(&self) {
        self.files.iter().for_each(Mapped::release);
    }

    /// Creates a KV pool with as many whole pages as fit into `budget_bytes`, at least one, and at most as many as
    /// `n_sequences` of full length need.
    pub fn kv_pool(&self, budget_bytes: usize, n_sequences: usize) -> KvPool {
        match self.device() {
            Some(device) => device.kv_pool(self.kv_layout(), budget_bytes, n_sequences),
            None => KvPool::new(self.kv_layout(), budget_bytes, n_sequences),
        }
    }

    /// What a pool of this model's keys and values consists of.
    pub fn kv_layout(&self) -> KvLayout {
        self.compute.kv_layout(&self.spec)
    }

    /// Runs all further steps on a device, over pools made from now on. Of layers whose experts it holds, [`Experts`] only learn
    /// what was chosen. The first device stays.
    pub fn run_on(&self, device: Box<dyn DevicePass>) {
        // A second one would find pools of the first.
        let _ = self.device.set(device);
    }

    /// The device that steps run on, if it is not this machine's processor.
    pub fn device(&self) -> Option<&dyn DevicePass> {
        self.device.get().map(|device| &**device)
    }

    /// The recorded pass, prepared for this machine's processor.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Buffers for steps of up to `n_rows`, with logits for up to `n_wanted` rows.
    pub fn workspace(&self, n_rows: usize, n_wanted: usize) -> Workspace {
        Workspace { space: self.program.workspace(n_rows, n_wanted), ..Workspace::default() }
    }

    /// Returns the logits (W, V) of the wanted rows of all spans, in order; the spans' keys and values go into `kv`.
    ///
    /// # Errors
    /// [`StepError`]; the spans' rows then count as not cached.
    ///
    /// # Panics
    /// If a span has no room reserved in `kv`.
    pub fn forward(
        &self,
        spans: &[Span<'_>],
        kv: &mut KvPool,
        experts: &mut dyn Experts,
    ) -> Result<Vec<f32>, StepError> {
        Ok(self.step(spans, kv, experts, &mut Workspace::default())?.to_vec())
    }

    /// [`Self::forward`] with reused buffers: the logits (W, V) stay in `space` until the next step.
    ///
    /// # Errors
    /// As [`Self::forward`].
    ///
    /// # Panics
    /// As [`Self::forward`].
    pub fn step<'w>(
        &self,
        spans: &[Span<'_>],
        kv: &mut KvPool,
        experts: &mut dyn Experts,
        workspace: &'w mut Workspace,
    ) -> Result<&'w mut [f32], StepError> {
        let batch = MicroBatch { spans, workspace: &mut *workspace };
        self.step_together(&mut [batch], kv, experts)?;
        Ok(self.logits(workspace))
    }

    /// [`Self::step`] for several groups of rows in turn: one is computed here while the experts of the others are
    /// away. Rows of one sequence may be in several groups, in order: each layer of a group is done before that of the
    /// next begins. Sums of experts are used before they are known to be right; if one was false, the step begins again, and
    /// its keys and values are overwritten.
    ///
    /// # Errors
    /// As [`Self::forward`], for all groups.
    ///
    /// # Panics
    /// As [`Self::forward`].
    pub fn step_together(
        &self,
        batches: &mut [MicroBatch<'_>],
        kv: &mut KvPool,
        experts: &mut dyn Experts,
    ) -> Result<(), StepError> {
        if let Some(device) = self.device() {
            return match on_device(device, batches, kv, experts, Finish::Early) {
                Err(StepError::Experts(ExpertsError::FalseAnswer)) => {
                    on_device(device, batches, kv, experts, Finish::Checked)
                }
                done => done,
            };
        }
        // A layer's state that has advanced cannot be restored.
        if !kv.has_states() {
            match self.try_together(batches, kv, experts, Finish::Early) {
                Err(StepError::Experts(ExpertsError::FalseAnswer)) => {}
                done => return done,
            }
        }
        self.try_together(batches, kv, experts, Finish::Checked)
    }

    fn try_together(
        &self,
        batches: &mut [MicroBatch<'_>],
        kv: &mut KvPool,
        experts: &mut dyn Experts,
        how: Finish,
    ) -> Result<(), StepError> {
        for batch in &mut *batches {
            self.program.begin(batch.spans, &mut batch.workspace.space);
            batch.workspace.away = Some(Away::Nothing);
        }
        let mut n_left = batches.len();
        while n_left > 0 {
            for batch in &mut *batches {
                let Some(away) = batch.workspace.away.take() else { continue };
                batch.workspace.away = self.advance(batch, away, kv, experts, how)?;
                n_left -= usize::from(batch.workspace.away.is_none());
            }
        }
        experts.confirm()?;
        Ok(mapped::check()?)
    }

    /// Fetches the experts' results and continues through the next layer with experts, also where they are computed at once: the rows
    /// of the next group may need the keys and values of this one's, so that all groups are in the same layer. None if the group
    /// is done.
    fn advance(
        &self,
        batch: &mut MicroBatch<'_>,
        away: Away,
        kv: &mut KvPool,
        experts: &mut dyn Experts,
        how: Finish,
    ) -> Result<Option<Away>, StepError> {
        let Workspace { space, routing, .. } = &mut *batch.workspace;
        if let Away::Layer(wanted, ticket) = away {
            let sum = self.program.experts(space, wanted).sum;
            match how {
                Finish::Early => experts.finish_early(ticket, sum)?,
                Finish::Checked => experts.finish(ticket, sum)?,
            }
        }
        let Pause::Experts(wanted) = self.program.advance(batch.spans, kv, space)? else { return Ok(None) };
        let call = self.program.experts(space, wanted);
        routing.k = call.n_chosen;
        routing.experts.clear();
        routing.experts.extend_from_slice(call.experts);
        routing.gates.clear();
        routing.gates.extend_from_slice(call.gates);
        let asked = LayerRequest { layer: wanted.layer, rows: call.rows, routing };
        let ticket = experts.begin(asked, call.sum)?;
        Ok(Some(ticket.map_or(Away::Nothing, |ticket| Away::Layer(wanted, ticket))))
    }

    /// The logits (W, V) of the last step in this workspace.
    pub fn logits<'w>(&self, workspace: &'w mut Workspace) -> &'w mut [f32] {
        match self.device() {
            Some(_) => &mut workspace.on_device.logits,
            None => self.program.logits(&mut workspace.space),
        }
    }

    /// What the last step in this workspace gave for each row whose logits were wanted, in order.
    pub fn row_logits<'w>(
        &self,
        workspace: &'w mut Workspace,
    ) -> impl Iterator<Item = RowLogits<'w>> + use<'w> {
        let n_best = workspace.on_device.n_best.max(1);
        let vocabulary = self.spec.vocab;
        let DeviceOutput { best, drawn, logits, .. } = &mut workspace.on_device;
        let (best, drawn, logits): (&[_], &[_], &mut [f32]) = match self.device() {
            Some(_) => (best, drawn, logits),
            None => (&[], &[], self.program.logits(&mut workspace.space)),
        };
        let drawn = drawn.iter().map(|token| Some(*token).filter(|token| *token != u32::MAX));
        let rows = best.chunks_exact(n_best).zip(drawn.chain(iter::repeat(None)));
        let all = logits.chunks_exact_mut(vocabulary).map(RowLogits::All);
        all.chain(rows.map(|(best, drawn)| RowLogits::Best { best, drawn }))
    }

    /// What it is.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// A layer's experts in the checkpoint's formats, none for a dense layer.
    pub fn experts(&self, layer: usize) -> &[Expert] {
        self.experts.get(layer).map_or(&[], Vec::as_slice)
    }

    /// What it is computed with.
    pub fn compute(&self) -> &Compute {
        &self.compute
    }

    /// Bytes of everything on the hub except the experts.
    pub fn shared_bytes(&self) -> usize {
        self.program.weight_bytes()
    }

    /// Bytes of the intermediates of a step of `n_rows`, of `n_wanted` of which logits are wanted, computed with `compute`.
    pub fn intermediate_bytes(&self, compute: &Compute, n_rows: usize, n_wanted: usize) -> PlanBytes {
        let graph = self.program.graph();
        match compute {
            Compute::Exact => graph.recorded_bytes(n_rows, n_wanted),
            Compute::Fast(_) => graph.joined_bytes(n_rows, n_wanted),
        }
    }
}

/// Runs groups of rows one after another on a device, with `experts` for layers whose experts it does not hold.
fn on_device(
    device: &dyn DevicePass,
    batches: &mut [MicroBatch<'_>],
    kv: &KvPool,
    experts: &mut dyn Experts,
    how: Finish,
) -> Result<(), StepError> {
    for batch in batches {
        let Workspace { on_device, routing, .. } = &mut *batch.workspace;
        let mut failed = None;
        let mut elsewhere = |chosen: &LayerRouting, rows: &[f32], sum: &mut [f32]| {
            routing.k = chosen.n_chosen;
            routing.experts.clone_from(&chosen.experts);
            routing.gates.clone_from(&chosen.gates);
            let asked = LayerRequest { layer: chosen.layer, rows, routing };
            let computed = match (experts.begin(asked, sum), how) {
                (Ok(Some(ticket)), Finish::Early) => experts.finish_early(ticket, sum),
                (Ok(Some(ticket)), Finish::Checked) => experts.finish(ticket, sum),
                (begun, _) => begun.map(drop),
            };
            computed.map_err(|error| {
                failed = Some(error);
                DeviceError::Experts
            })
        };
        match (device.step(batch.spans, kv, &mut elsewhere, on_device), failed) {
            (Err(DeviceError::Experts), Some(error)) => return Err(error.into()),
            (stepped, _) => stepped?,
        }
        for of_layer in &mut on_device.routing {
            routing.k = of_layer.n_chosen;
            std::mem::swap(&mut routing.experts, &mut of_layer.experts);
            std::mem::swap(&mut routing.gates, &mut of_layer.gates);
            experts.computed_elsewhere(of_layer.layer, routing);
        }
    }
    experts.confirm()?;
    Ok(mapped::check()?)
}

impl Workspace {
    /// So many of the best logits of each row are enough in the next step; 0 if all are wanted. Another device than the processor
    /// then keeps the others, and draws a token from all, if `draws` say how for each row whose logits are wanted.
    pub fn want_best(&mut self, n: usize, draws: impl Iterator<Item = Draw>) {
        self.on_device.n_best = n;
        self.on_device.draws.clear();
        self.on_device.draws.extend(draws);
    }

    /// Calls `observer` after every stage, for timing.
    pub fn observe(&mut self, observer: impl FnMut(Stage) + Send + 'static) {
        self.space.observe(observer);
    }
}

impl fmt::Debug for Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.space.fmt(f)
    }
}
