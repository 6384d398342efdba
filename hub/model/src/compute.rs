//! Formats, instructions and threads of the hub's computation.

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

/// How everything except the experts is computed.
#[derive(Clone, Debug, Default)]
pub enum Compute {
    /// In f32 by the kernels of [`moex_kernels::cpu`], with weights mapped from the checkpoint: the oracle.
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
    /// Rounding of float matrices at load.
    pub weights: FloatWeights,
    /// Format of keys and values.
    pub kv: KvFormat,
}

/// Rounding of the hub's own float matrices at load, except the router's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FloatWeights {
    /// To q8_0 in a float checkpoint; none in a quantised one, whose float matrices are intentional.
    #[default]
    ByCheckpoint,
    /// None.
    Native,
    /// To this format.
    To(WeightFormat),
}

impl FloatWeights {
    /// The same, resolved for one checkpoint.
    fn of(self, checkpoint: &Checkpoint) -> Self {
        match self {
            Self::ByCheckpoint if checkpoint.is_quantised() => Self::Native,
            Self::ByCheckpoint => Self::To(WeightFormat::Q8_0),
            settled => settled,
        }
    }
}

impl Compute {
    /// Format of activations multiplied with weights.
    pub fn activations(&self) -> ActivationFormat {
        match self {
            Self::Exact => ActivationFormat::F32,
            Self::Fast(_) => ActivationFormat::Int8,
        }
    }

    /// Resolves what depends on the checkpoint.
    pub fn of(&self, checkpoint: &Checkpoint) -> Self {
        match self {
            Self::Exact => Self::Exact,
            Self::Fast(fast) => Self::Fast(Fast { weights: fast.weights.of(checkpoint), ..fast.clone() }),
        }
    }

    /// One line for the user with the formats of activations, weights, keys and values of a model with this spec, and the
    /// flags that change them; `experts` is the experts' format.
    pub fn describe(&self, experts: &str, spec: &ModelSpec) -> String {
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
                let int8 =
                    format!("int8 activations, experts {experts}, other weights {weights}, keys and values");
                match self.kv_layout(spec).packed {
                    Some(kv) => format!(
                        "{int8} {kv} (`--activations f32`, `--experts`, `--weights` and `--kv` choose otherwise)"
                    ),
                    None => format!(
                        "{int8} f32, since `--kv` does not apply to this model's kind of attention \
                         (`--activations f32`, `--experts` and `--weights` choose otherwise)"
                    ),
                }
            }
        }
    }

    /// Prepares a recorded forward pass for this computation; calls `packed` after each matrix read.
    ///
    /// # Errors
    /// If memory for the matrices is exhausted.
    pub(super) fn program(&self, graph: Graph, packed: impl FnMut()) -> Result<Program, ModelError> {
        let Self::Fast(fast) = self else { return Ok(Program::exact(graph)) };
        let weights = match fast.weights {
            FloatWeights::To(format) => Some(format),
            FloatWeights::ByCheckpoint | FloatWeights::Native => None,
        };
        Program::simd(graph, fast.processor.clone(), weights, packed).map_err(ModelError::NoMemory)
    }

    /// Layout of the KV cache and states of a model with this spec.
    pub fn kv_layout(&self, spec: &ModelSpec) -> KvLayout {
        let attention = spec.cached();
        let packed = match self {
            // Windows, sinks, soft caps and narrow values have no vector kernel: there keys and values are rows of f32.
            Self::Fast(fast) if spec.has_plain_attention() => Some(fast.kv),
            _ => None,
        };
        let state_len = |layer: &LayerSpec| match &layer.mixer {
            Mixer::Attention(_) => None,
            Mixer::DeltaNet(shape) => Some(shape.state_len()),
        };
        KvLayout {
            windows: spec.attentions().map(|attention| attention.window).collect(),
            n_kv_heads: attention.n_kv_heads,
            head_width: attention.head_width,
            packed,
            state_lens: spec.layers.iter().filter_map(state_len).collect(),
            max_positions: spec.max_positions,
        }
    }
}
