//! A model: its forward pass made ready for an engine, and its experts where they lie in the checkpoint.

use std::fmt;

use moex_kernels::{
    cpu::OutOfVocabulary,
    graph::{KvPool, Pause, PlanBytes, Program, Span, Stage, Workspace as Space},
};
use moex_protocol::Routing;

use super::{
    checkpoint::{Checkpoint, Expert},
    compute::Compute,
    error::ModelError,
    experts::{Experts, ExpertsError},
    forward,
    mapped::Mapped,
    spec::{FfnSpec, ModelSpec},
};

/// A model over its mapped checkpoint.
pub struct Model {
    spec: ModelSpec,
    compute: Compute,
    program: Program,
    /// (L): the experts of each layer, none of a dense one.
    experts: Vec<Vec<Expert>>,
    /// Where matrices lie that are not packed.
    files: Vec<Mapped>,
}

/// The memory of a step, kept from one to the next: it grows to the largest step, then allocates no more.
#[derive(Default)]
pub struct Workspace {
    space: Space,
    routing: Routing,
}

/// Why a step gave no logits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// A token the model has no embedding for.
    #[error(transparent)]
    Vocabulary(#[from] OutOfVocabulary),
    /// The experts of a layer could not be computed.
    #[error(transparent)]
    Experts(#[from] ExpertsError),
}

impl Model {
    /// [`Self::load_for`] f32: the oracle.
    ///
    /// # Errors
    /// As [`Self::load_for`].
    pub fn load(checkpoint: &Checkpoint) -> Result<Self, ModelError> {
        Self::load_for(checkpoint, &Compute::Exact)
    }

    /// Finds every tensor the config asks for and checks its shape and type. For [`Compute::Exact`] it reads none of the
    /// matrices; for [`Compute::Fast`] it packs all but the experts.
    ///
    /// # Errors
    /// The first tensor that is missing, of another shape or of an unsupported type, or that there is no memory.
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
        let model = Self { spec, compute, program, experts, files: checkpoint.files.clone() };
        model.release();
        Ok(model)
    }

    /// Gives back the memory that the checkpoint was read into; it is read again where it is needed.
    pub fn release(&self) {
        self.files.iter().for_each(Mapped::release);
    }

    /// A pool of keys and values for it, of as many whole pages as fit into `budget_bytes`, at least one and at most what
    /// `n_sequences` of full length need.
    pub fn kv_pool(&self, budget_bytes: usize, n_sequences: usize) -> KvPool {
        KvPool::new(self.compute.kv_layout(&self.spec), budget_bytes, n_sequences)
    }

    /// Memory for steps of up to `n_rows`, of `n_wanted` of which logits are wanted.
    pub fn workspace(&self, n_rows: usize, n_wanted: usize) -> Workspace {
        Workspace { space: self.program.workspace(n_rows, n_wanted), routing: Routing::default() }
    }

    /// Logits (W, V) of the wanted rows of all spans, in their order; the spans' keys and values enter `kv`.
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

    /// [`Self::forward`] in memory the caller keeps: the logits (W, V) stay in `space` until the next step.
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
        let Workspace { space, routing } = workspace;
        self.program.begin(spans, space);
        while let Pause::Experts(wanted) = self.program.advance(spans, kv, space)? {
            let call = self.program.experts(space, wanted);
            routing.k = call.n_chosen;
            routing.experts.clear();
            routing.experts.extend_from_slice(call.experts);
            routing.gates.clear();
            routing.gates.extend_from_slice(call.gates);
            experts.apply_into(wanted.layer, call.rows, routing, call.sum)?;
        }
        Ok(self.program.logits(space))
    }

    /// What it is.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The experts of a layer as they are in the checkpoint, none for a dense layer.
    pub fn experts(&self, layer: usize) -> &[Expert] {
        self.experts.get(layer).map_or(&[], Vec::as_slice)
    }

    /// What it is computed with.
    pub fn compute(&self) -> &Compute {
        &self.compute
    }

    /// Bytes of all that stays on the hub: everything but the experts.
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

    #[cfg(test)]
    pub(super) fn program(&self) -> &Program {
        &self.program
    }
}

impl Workspace {
    /// Has `observer` told of every stage when it is done: for those who have a clock.
    pub fn observe(&mut self, observer: impl FnMut(Stage) + Send + 'static) {
        self.space.observe(observer);
    }
}

impl fmt::Debug for Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.space.fmt(f)
    }
}
