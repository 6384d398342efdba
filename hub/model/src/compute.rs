//! What the model's arithmetic runs on.

use std::sync::Arc;

use moex_kernels::{
    WeightFormat,
    engine::ActivationFormat,
    graph::{Graph, KvLayout, Program},
    simd::{KvFormat, Processor},
};

use super::{
    checkpoint::Checkpoint,
    error::ModelError,
    spec::{LayerSpec, Mixer, ModelSpec},
};

/// How everything but the experts is computed.
#[derive(Clone, Debug, Default)]
pub enum Compute {
    /// In f32 by the kernels of [`moex_kernels::cpu`], weights where they lie in the checkpoint: the oracle.
    #[default]
    Exact,
    /// By the kernels of [`moex_kernels::simd`], weights packed at load, activations in int8 where weights are integers.
    Fast(Fast),
}

/// See [`Compute::Fast`].
#[derive(Clone, Debug)]
pub struct Fast {
    /// Instructions and threads.
    pub processor: Arc<Processor>,
    /// What becomes of matrices of floats at load.
    pub weights: FloatWeights,
    /// How keys and values are kept.
    pub kv: KvFormat,
}

/// What the hub's own matrices of floats are rounded to at load, the router's excepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FloatWeights {
    /// To q8_0 in a checkpoint of floats; to nothing in a quantised one, whose floats were left on purpose.
    #[default]
    ByCheckpoint,
    /// To nothing.
    Native,
    /// To this format.
    To(WeightFormat),
}

impl FloatWeights {
    /// The same, settled for one checkpoint.
    fn of(self, checkpoint: &Checkpoint) -> Self {
        match self {
            Self::ByCheckpoint if checkpoint.is_quantised() => Self::Native,
            Self::ByCheckpoint => Self::To(WeightFormat::Q8_0),
            settled => settled,
        }
    }
}

impl Compute {
    /// What rows are when they meet weights.
    pub fn activations(&self) -> ActivationFormat {
        match self {
            Self::Exact => ActivationFormat::F32,
            Self::Fast(_) => ActivationFormat::Int8,
        }
    }

    /// The same, with what depends on the checkpoint settled.
    pub fn of(&self, checkpoint: &Checkpoint) -> Self {
        match self {
            Self::Exact => Self::Exact,
            Self::Fast(fast) => Self::Fast(Fast { weights: fast.weights.of(checkpoint), ..fast.clone() }),
        }
    }

    /// What rows and weights are computed as, in one line for people, with the flags that choose otherwise; `experts` says how
    /// those are packed.
    pub fn describe(&self, experts: &str) -> String {
        match self {
            Self::Exact => format!(
                "f32 activations, experts {experts}, other weights as in the checkpoint \
                 (`--activations int8` is several times as fast on a CPU)"
            ),
            Self::Fast(fast) => {
                let weights = match fast.weights {
                    FloatWeights::To(format) => format.to_string(),
                    FloatWeights::ByCheckpoint | FloatWeights::Native => "as in the checkpoint".to_owned(),
                };
                format!(
                    "int8 activations, experts {experts}, other weights {weights} \
                     (`--activations f32`, `--experts` and `--weights` choose otherwise)"
                )
            }
        }
    }

    /// A recorded forward pass made ready for it; `packed` is called after each matrix that was read.
    ///
    /// # Errors
    /// If there is no memory for the matrices.
    pub(super) fn program(&self, graph: Graph, packed: impl FnMut()) -> Result<Program, ModelError> {
        let Self::Fast(fast) = self else { return Ok(Program::exact(graph)) };
        let weights = match fast.weights {
            FloatWeights::To(format) => Some(format),
            FloatWeights::ByCheckpoint | FloatWeights::Native => None,
        };
        Program::simd(graph, fast.processor.clone(), weights, packed).map_err(ModelError::NoMemory)
    }

    /// What is kept of each position and each sequence of a model of this spec.
    pub fn kv_layout(&self, spec: &ModelSpec) -> KvLayout {
        let attention = spec.cached();
        let packed = match self {
            // What the vector kernels do not compute is attended to in rows.
            Self::Fast(fast) if spec.has_plain_attention() => Some(fast.kv),
            _ => None,
        };
        let state_len = |layer: &LayerSpec| match &layer.mixer {
            Mixer::Attention(_) => None,
            Mixer::DeltaNet(shape) => Some(shape.state_len()),
        };
        KvLayout {
            n_layers: spec.attentions().count(),
            n_kv_heads: attention.n_kv_heads,
            head_width: attention.head_width,
            packed,
            state_lens: spec.layers.iter().filter_map(state_len).collect(),
            max_positions: spec.max_positions,
        }
    }
}
