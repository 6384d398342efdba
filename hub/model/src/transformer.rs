//! The forward pass, read downwards: embed, layers, norm, head.

use moex_kernels::cpu::{self, OutOfVocabulary, Rope};

use super::{
    checkpoint::{Checkpoint, Expert, Matrix},
    compute::{Compute, Linear, Rounding, Rows},
    error::ModelError,
    experts::Experts,
    kv::KvPool,
    layer::{Layer, Routed},
    mapped::Mapped,
    spec::{ModelSpec, RopeSpec},
    step::{Span, StepError},
    workspace::{Stage, Workspace, sized},
};

/// A model over its mapped checkpoint.
pub struct Model {
    spec: ModelSpec,
    compute: Compute,
    /// The rotations that its layers have, each once.
    ropes: Vec<Rope>,
    embed_tokens: Matrix, // (V, D)
    layers: Vec<Layer>,
    norm: Vec<f32>,  // (D)
    lm_head: Linear, // (V, D); the embedding where the head is tied
    is_tied: bool,
    /// Where matrices lie that are not packed.
    files: Vec<Mapped>,
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
        let compute = &compute.of(checkpoint);
        let embed_tokens = checkpoint.matrix("model.embed_tokens.weight", spec.vocab, spec.hidden)?;
        let lm_head = match spec.tied_head {
            true => embed_tokens.clone(),
            false => checkpoint.matrix("lm_head.weight", spec.vocab, spec.hidden)?,
        };
        let mut rotations: Vec<&RopeSpec> = Vec::new();
        let mut layers = Vec::with_capacity(spec.layers.len());
        for (index, layer) in spec.layers.iter().enumerate() {
            let own = &layer.attention.rope;
            let rope = rotations.iter().position(|rope| *rope == own).unwrap_or(rotations.len());
            if rope == rotations.len() {
                rotations.push(own);
            }
            layers.push(Layer::load(checkpoint, compute, index, rope)?);
            checkpoint.files.iter().for_each(Mapped::release);
        }
        let model = Self {
            ropes: rotations
                .iter()
                .map(|rope| Rope::new(rope.width, rope.theta, rope.scaling.as_ref()))
                .collect(),
            embed_tokens,
            layers,
            norm: checkpoint.norm("model.norm.weight", spec.hidden)?,
            lm_head: Linear::new(lm_head, compute, Rounding::Allowed)?,
            is_tied: spec.tied_head,
            compute: compute.clone(),
            files: checkpoint.files.clone(),
            spec,
        };
        model.release();
        Ok(model)
    }

    /// Gives back the memory that the checkpoint was read into; it is read again where it is needed.
    pub fn release(&self) {
        self.files.iter().for_each(Mapped::release);
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
        let mut space = Workspace::default();
        self.step(spans, kv, experts, &mut space)?;
        Ok(space.logits)
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
        space: &'w mut Workspace,
    ) -> Result<&'w mut [f32], StepError> {
        space.begin(spans, &self.ropes);
        self.embed(spans, space)?; // x (T, D)
        for (index, layer) in self.layers.iter().enumerate() {
            layer.attend(&self.compute, spans, kv, space); // x (T, D)
            if index + 1 == self.layers.len() {
                space.keep_wanted(spans, self.spec.hidden); // x (W, D)
                if space.x.is_empty() {
                    space.logits.clear();
                    return Ok(&mut space.logits);
                }
            }
            if layer.route(&self.compute, space) == Routed::Sparse {
                experts.apply_into(index, &space.rows, &space.routing, &mut space.sum)?; // sum (T, D)
            }
            layer.absorb(&self.compute, space); // x (T, D)
        }
        self.head(space); // logits (W, V)
        Ok(&mut space.logits)
    }

    /// What it is.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The experts of a layer as they are in the checkpoint, none for a dense layer.
    pub fn experts(&self, layer: usize) -> &[Expert] {
        self.layers.get(layer).map_or(&[], Layer::experts)
    }

    /// What it is computed with.
    pub fn compute(&self) -> &Compute {
        &self.compute
    }

    /// Bytes of all that stays on the hub: everything but the experts.
    pub fn shared_bytes(&self) -> usize {
        let head = match (self.is_tied, &self.compute) {
            (true, Compute::Exact) => 0,
            _ => self.lm_head.n_bytes(),
        };
        self.embed_tokens.n_bytes() + head + self.layers.iter().map(Layer::shared_bytes).sum::<usize>()
    }

    /// To `space`'s x (T, D).
    pub(super) fn embed(&self, spans: &[Span<'_>], space: &mut Workspace) -> Result<(), OutOfVocabulary> {
        let hidden = self.spec.hidden;
        let mut rest = sized(&mut space.x, space.step.places.len() * hidden);
        for span in spans {
            let rows;
            (rows, rest) = rest.split_at_mut(span.ids.len() * hidden);
            cpu::embed(&self.embed_tokens.view(), span.ids, rows)?;
        }
        if self.spec.embedding_scale != 1.0 {
            space.x.iter_mut().for_each(|x| *x *= self.spec.embedding_scale);
        }
        space.done(Stage::Embed);
        Ok(())
    }

    /// From `space`'s x (W, D) to its logits (W, V).
    pub(super) fn head(&self, space: &mut Workspace) {
        let n_values = space.x.len();
        let rows = sized(&mut space.rows, n_values);
        self.compute.rms_norm(&space.x, &self.norm, self.spec.rms_eps, rows);
        let logits = sized(&mut space.logits, n_values / self.spec.hidden * self.spec.vocab);
        self.lm_head.forward(&mut Rows::new(rows, &mut space.int8), logits);
        if let Some(cap) = self.spec.logit_softcap {
            logits.iter_mut().for_each(|logit| *logit = cpu::soft_cap(*logit, cap));
        }
        space.done(Stage::Head);
    }

    #[cfg(test)]
    pub(super) fn layers(&self) -> &[Layer] {
        &self.layers
    }

    #[cfg(test)]
    pub(super) fn ropes(&self) -> &[Rope] {
        &self.ropes
    }
}
