//! The forward pass, written once: the operations for the rows of a step, and their tensors. Read [`Forward::pass`]
//! downwards; a shape stands beside every tensor.

mod attention;
mod ffn;

use std::sync::Arc;

use moex_kernels::{
    cpu::Rope,
    graph::{Graph, MatrixId, Recorder, Rounding, Stage, TensorId, VectorId},
};

use super::{
    checkpoint::Checkpoint,
    error::ModelError,
    spec::{FfnSpec, Mixer, NormPlaces, RopeSpec},
};

/// Records the forward pass of a checkpoint's model.
///
/// # Errors
/// If a tensor is missing, or has another shape or an unsupported type; names the first.
pub(super) fn record(checkpoint: &Checkpoint) -> Result<Graph, ModelError> {
    Forward { checkpoint, recorder: Recorder::default(), n_slots: 0, n_states: 0 }.pass()
}

struct Forward<'a> {
    checkpoint: &'a Checkpoint,
    recorder: Recorder,
    /// Number of layers so far with keys and values.
    n_slots: usize,
    /// Number of layers so far with a state.
    n_states: usize,
}

impl Forward<'_> {
    fn pass(mut self) -> Result<Graph, ModelError> {
        let checkpoint = self.checkpoint;
        let spec = &checkpoint.spec;
        let embedding = self.matrix("model.embed_tokens.weight", (spec.vocab, spec.hidden))?;
        let mut x = self.recorder.embed(embedding); // (T, D)
        if spec.embedding_scale != 1.0 {
            self.recorder.scale(x, spec.embedding_scale);
        }
        self.recorder.done(Stage::Embed);
        for (index, layer) in spec.layers.iter().enumerate() {
            let name = format!("model.layers.{index}");
            let has_norms_after = layer.norms == NormPlaces::BeforeAndAfter;

            let rows = self.norm(x, &format!("{name}.input_layernorm"))?; // (T, D)
            let out = match &layer.mixer {
                Mixer::Attention(attention) => {
                    self.attention(rows, attention, &format!("{name}.self_attn"))?
                }
                Mixer::DeltaNet(shape) => self.delta_net(rows, *shape, &format!("{name}.linear_attn"))?,
            }; // (T, D)
            if has_norms_after {
                self.norm_in_place(out, &format!("{name}.attention_output_layernorm"))?;
            }
            self.recorder.add(x, out); // x (T, D)
            self.recorder.done(Stage::Output);
            if index + 1 == spec.layers.len() {
                x = self.recorder.keep_wanted(x); // (W, D)
            }

            let rows = self.norm(x, &format!("{name}.post_attention_layernorm"))?; // (T, D)
            let sum = match layer.ffn {
                FfnSpec::Sparse => self.experts(rows, index, &format!("{name}.mlp"))?,
                FfnSpec::Dense { inner, activation } => {
                    self.dense(rows, (inner, activation), &format!("{name}.mlp"))?
                }
            }; // (T, D)
            if has_norms_after {
                self.norm_in_place(sum, &format!("{name}.feedforward_output_layernorm"))?;
            }
            self.recorder.add(x, sum); // x (T, D)
            self.recorder.done(Stage::Experts);
        }
        let rows = self.norm(x, "model.norm")?; // (W, D)
        let head = match spec.tied_head {
            true => embedding,
            false => self.matrix("lm_head.weight", (spec.vocab, spec.hidden))?,
        };
        let logits = self.recorder.linear("logits", rows, (head, None)); // (W, V)
        if let Some(cap) = spec.logit_softcap {
            self.recorder.soft_cap(logits, cap);
        }
        self.recorder.done(Stage::Head);
        Ok(self.recorder.finish(logits))
    }

    /// The matrix called `name`, (out, in).
    fn matrix(&mut self, name: &str, shape: (usize, usize)) -> Result<MatrixId, ModelError> {
        self.matrix_with(name, shape, Rounding::Allowed)
    }

    fn matrix_with(
        &mut self,
        name: &str,
        (out, input): (usize, usize),
        rounding: Rounding,
    ) -> Result<MatrixId, ModelError> {
        let matrix = self.checkpoint.matrix(name, out, input)?;
        Ok(self.recorder.matrix(Arc::new(matrix), rounding))
    }

    /// The vector called `name`.
    fn vector(&mut self, name: &str, len: usize) -> Result<VectorId, ModelError> {
        let values = self.checkpoint.vector(name, len)?;
        Ok(self.recorder.vector(values))
    }

    /// Multiplies `x` (T, in) by `{name}.weight` (out, in), and adds `{name}.bias` (out) if there is one: (T, out).
    fn linear(
        &mut self,
        x: TensorId,
        (name, part): (&str, &'static str),
        out: usize,
        (has_bias, rounding): (bool, Rounding),
    ) -> Result<TensorId, ModelError> {
        let input = self.recorder.width(x);
        let matrix = self.matrix_with(&format!("{name}.{part}.weight"), (out, input), rounding)?;
        let bias = match has_bias {
            false => None,
            true => Some(self.vector(&format!("{name}.{part}.bias"), out)?),
        };
        Ok(self.recorder.linear(part, x, (matrix, bias)))
    }

    /// RMSNorm of the rows of `x` by `{name}.weight`.
    fn norm(&mut self, x: TensorId, name: &str) -> Result<TensorId, ModelError> {
        let weight = self.norm_weight(name, self.recorder.width(x))?;
        Ok(self.recorder.norm(x, weight, self.checkpoint.spec.rms_eps))
    }

    fn norm_in_place(&mut self, x: TensorId, name: &str) -> Result<(), ModelError> {
        let weight = self.norm_weight(name, self.recorder.width(x))?;
        self.recorder.norm_in_place(x, weight, self.checkpoint.spec.rms_eps);
        Ok(())
    }

    fn norm_weight(&mut self, name: &str, len: usize) -> Result<VectorId, ModelError> {
        let weights = self.checkpoint.norm(&format!("{name}.weight"), len)?;
        Ok(self.recorder.vector(weights))
    }
}

impl RopeSpec {
    /// The rotations.
    fn rope(&self) -> Rope {
        Rope::new(self.width, self.theta, self.scaling.as_ref())
    }
}
