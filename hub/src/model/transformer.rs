//! The forward pass, read downwards: embed, layers, norm, head.

use moex_kernels::cpu::{self, OutOfVocabulary, Rope, RopeTable};

use super::{
    config::Config,
    error::ModelError,
    experts::{Experts, ExpertsError},
    files::Checkpoint,
    kv::{KvPool, KvTable},
    layer::{Layer, Routed, absorb},
    weights::{Expert, Matrix},
};

/// A Qwen3-MoE over its mapped checkpoint.
pub struct Model {
    config: Config,
    rope: Rope,
    embed_tokens: Matrix, // (V, D)
    layers: Vec<Layer>,
    norm: Vec<f32>,          // (D)
    lm_head: Option<Matrix>, // (V, D); none where it is the embedding
}

/// Rows of one sequence in a step: tokens that follow what it has cached.
pub struct Span<'a> {
    /// The tokens, at least one.
    pub ids: &'a [u32],
    /// Positions already cached, and the position of the first token.
    pub start: usize,
    /// Its pages, with room for `start + ids.len()` positions.
    pub table: &'a KvTable,
    /// Whose logits are wanted.
    pub wanted: Wanted,
}

/// The rows of a span whose logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// None: a prompt's chunk that others follow.
    Nothing,
    /// The last: the next token is drawn from it.
    Last,
    /// All of them.
    All,
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
    /// Finds every tensor the config asks for and checks its shape and type; reads none of the matrices.
    ///
    /// # Errors
    /// The first tensor that is missing, of another shape or of an unsupported type.
    pub fn load(checkpoint: &Checkpoint) -> Result<Self, ModelError> {
        let config = checkpoint.config.clone();
        let lm_head = match config.tied_head {
            true => None,
            false => Some(checkpoint.matrix("lm_head.weight", config.vocab, config.hidden)?),
        };
        Ok(Self {
            rope: Rope::new(config.head_width, config.rope_theta, config.yarn.as_ref()),
            embed_tokens: checkpoint.matrix("model.embed_tokens.weight", config.vocab, config.hidden)?,
            layers: (0..config.layers.len())
                .map(|index| Layer::load(checkpoint, index))
                .collect::<Result<_, _>>()?,
            norm: checkpoint.vector("model.norm.weight", config.hidden)?,
            lm_head,
            config,
        })
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
        let step = self.step(spans);
        let mut x = self.embed(&step)?; // (T, D)
        for (index, layer) in self.layers.iter().enumerate() {
            layer.attend(&mut x, &step, kv); // (T, D)
            if index + 1 == self.layers.len() {
                x = step.wanted_rows(&x, self.config.hidden); // (W, D)
                if x.is_empty() {
                    return Ok(Vec::new());
                }
            }
            let sum = match layer.route(&x) {
                Routed::Sparse { rows, routing } => experts.apply(index, &rows, &routing)?, // (T, D)
                Routed::Dense(sum) => sum,                                                  // (T, D)
            };
            absorb(&mut x, &sum); // (T, D)
        }
        Ok(self.head(x)) // (W, V)
    }

    /// Its config.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The experts of a layer as they are in the checkpoint, none for a dense layer.
    pub fn experts(&self, layer: usize) -> &[Expert] {
        self.layers.get(layer).map_or(&[], Layer::experts)
    }

    /// Bytes of all that stays on the hub: everything but the experts.
    pub fn shared_bytes(&self) -> usize {
        let outer = self.embed_tokens.n_bytes() + self.lm_head.as_ref().map_or(0, Matrix::n_bytes);
        outer + self.layers.iter().map(Layer::shared_bytes).sum::<usize>()
    }

    pub(super) fn step<'a>(&self, spans: &'a [Span<'a>]) -> Step<'a> {
        let positions: Vec<u32> = positions(spans).map(|(_, position)| position as u32).collect(); // (T)
        Step { spans, rope: self.rope.table(&positions) }
    }

    pub(super) fn embed(&self, step: &Step<'_>) -> Result<Vec<f32>, OutOfVocabulary> {
        let ids = step.spans.iter().flat_map(|span| span.ids).copied().collect::<Vec<_>>(); // (T)
        let mut x = vec![0.0; ids.len() * self.config.hidden]; // (T, D)
        cpu::embed(&self.embed_tokens.view(), &ids, &mut x)?;
        Ok(x)
    }

    /// (W, D) to logits (W, V).
    pub(super) fn head(&self, mut x: Vec<f32>) -> Vec<f32> {
        cpu::rms_norm_in_place(&mut x, &self.norm, self.config.rms_eps);
        let lm_head = self.lm_head.as_ref().unwrap_or(&self.embed_tokens).view();
        let mut logits = vec![0.0; x.len() / self.config.hidden * self.config.vocab];
        cpu::linear(&x, &lm_head, &mut logits);
        logits
    }

    #[cfg(test)]
    pub(super) fn layers(&self) -> &[Layer] {
        &self.layers
    }
}

/// The rows of a step, as the layers see them.
pub(super) struct Step<'a> {
    pub(super) spans: &'a [Span<'a>],
    /// The rotation of each row.
    pub(super) rope: RopeTable,
}

impl<'a> Step<'a> {
    /// T.
    pub(super) fn n_rows(&self) -> usize {
        self.spans.iter().map(|span| span.ids.len()).sum()
    }

    /// The span and position of each row (T).
    pub(super) fn positions(&self) -> impl Iterator<Item = (&'a Span<'a>, usize)> + use<'a> {
        positions(self.spans)
    }

    /// The rows of `x` (T, D) whose logits are wanted (W, D).
    pub(super) fn wanted_rows(&self, x: &[f32], hidden: usize) -> Vec<f32> {
        let mut rows = Vec::new();
        let mut rest = x;
        for span in self.spans {
            let (of_span, others) = rest.split_at(span.ids.len() * hidden);
            rest = others;
            match span.wanted {
                Wanted::Nothing => {}
                Wanted::Last => rows.extend_from_slice(&of_span[of_span.len().saturating_sub(hidden)..]),
                Wanted::All => rows.extend_from_slice(of_span),
            }
        }
        rows
    }
}

fn positions<'a>(spans: &'a [Span<'a>]) -> impl Iterator<Item = (&'a Span<'a>, usize)> + use<'a> {
    spans.iter().flat_map(|span| (0..span.ids.len()).map(move |i| (span, span.start + i)))
}
