//! What the model's arithmetic runs on, and its matrices made ready for it.

use std::sync::Arc;

use moex_kernels::{
    WeightFormat, cpu,
    engine::ActivationFormat,
    quant::Activations,
    simd::{self, KvFormat, PackedShape, PageSize, Processor, Slab},
};

use super::{
    checkpoint::{Checkpoint, Matrix},
    error::ModelError,
    packing::Packing,
};

/// How everything but the experts is computed.
#[derive(Clone, Debug, Default)]
pub enum Compute {
    /// In f32 by the kernels of [`cpu`], weights where they lie in the checkpoint: the oracle.
    #[default]
    Exact,
    /// By the kernels of [`simd`], weights packed at load, activations in int8 where weights are integers.
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
    AsTheyAre,
    /// To this format.
    To(WeightFormat),
}

impl FloatWeights {
    /// The same, settled for one checkpoint.
    fn of(self, checkpoint: &Checkpoint) -> Self {
        match self {
            Self::ByCheckpoint if checkpoint.is_quantised() => Self::AsTheyAre,
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

    /// What rows and weights are computed as, in one line for people, with the flags that choose otherwise.
    pub fn describe(&self, experts: Packing) -> String {
        let experts = match experts {
            Packing::AsTheyAre => "as in the checkpoint".to_owned(),
            Packing::To(format) => format.to_string(),
        };
        match self {
            Self::Exact => format!(
                "f32 activations, experts {experts}, other weights as in the checkpoint \
                 (`--activations int8` is several times as fast on a CPU)"
            ),
            Self::Fast(fast) => {
                let weights = match fast.weights {
                    FloatWeights::To(format) => format.to_string(),
                    FloatWeights::ByCheckpoint | FloatWeights::AsTheyAre => "as in the checkpoint".to_owned(),
                };
                format!(
                    "int8 activations, experts {experts}, other weights {weights} \
                     (`--activations f32`, `--experts` and `--weights` choose otherwise)"
                )
            }
        }
    }

    /// Runs `work(t, row)` for each row (T, `width`), in any order.
    pub(super) fn each_row(&self, rows: &mut [f32], width: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
        match self {
            Self::Exact => rows.chunks_exact_mut(width).enumerate().for_each(|(t, row)| work(t, row)),
            Self::Fast(fast) => fast.processor.each_row(rows, width, work),
        }
    }

    /// RMSNorm of `x` (T, D) to `out` (T, D).
    pub(super) fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        let width = weight.len();
        self.each_row(out, width, |t, out| cpu::rms_norm(&x[t * width..][..width], weight, eps, out));
    }

    /// [`Self::rms_norm`] where the rows are.
    pub(super) fn rms_norm_in_place(&self, rows: &mut [f32], weight: &[f32], eps: f32) {
        self.each_row(rows, weight.len(), |_, row| cpu::rms_norm_in_place(row, weight, eps));
    }

    /// `x` (T, D) += `y` (T, D).
    pub(super) fn add(&self, x: &mut [f32], y: &[f32], width: usize) {
        self.each_row(x, width, |t, x| cpu::add(x, &y[t * width..][..width]));
    }
}

/// Whether a matrix of floats may be rounded as [`Fast::weights`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rounding {
    /// As its user wishes.
    Allowed,
    /// What is small and decides much stays as it is.
    Never,
}

/// A projection, ready for products, with its bias if it has one.
#[derive(Debug)]
pub(super) struct Linear {
    weights: Weights,       // (out, in)
    bias: Option<Vec<f32>>, // (out)
}

#[derive(Debug)]
enum Weights {
    Exact(Matrix),
    Packed { processor: Arc<Processor>, shape: PackedShape, panels: Slab },
}

/// Rows on their way through matrices, quantised once for all of one format.
pub(super) struct Rows<'a> {
    /// (T, in).
    x: &'a [f32],
    int8: &'a mut Activations,
    is_filled: bool,
}

impl<'a> Rows<'a> {
    pub(super) fn new(x: &'a [f32], int8: &'a mut Activations) -> Self {
        Self { x, int8, is_filled: false }
    }

    /// As matrices of this format and width take them.
    fn quantized(&mut self, processor: &Processor, shape: PackedShape) -> &Activations {
        if !self.is_filled || !self.int8.fits(shape.format, shape.cols) {
            simd::fill(processor.simd(), processor.pool(), self.int8, shape.format, shape.cols, self.x);
            self.is_filled = true;
        }
        self.int8
    }
}

impl Linear {
    /// `{name}.weight` (out, in), and `{name}.bias` (out) if there is to be one.
    pub(super) fn load(
        checkpoint: &Checkpoint,
        compute: &Compute,
        name: &str,
        (out, input): (usize, usize),
        has_bias: bool,
    ) -> Result<Self, ModelError> {
        let matrix = checkpoint.matrix(&format!("{name}.weight"), out, input)?;
        let bias = has_bias.then(|| checkpoint.vector(&format!("{name}.bias"), out));
        Ok(Self { bias: bias.transpose()?, ..Self::new(matrix, compute, Rounding::Allowed)? })
    }

    /// A matrix without bias.
    pub(super) fn new(matrix: Matrix, compute: &Compute, rounding: Rounding) -> Result<Self, ModelError> {
        let Compute::Fast(fast) = compute else {
            return Ok(Self { weights: Weights::Exact(matrix), bias: None });
        };
        let processor = fast.processor.clone();
        matrix.read(|view| {
            let shape = PackedShape::of(&view);
            let is_float = matches!(shape.format, WeightFormat::F32 | WeightFormat::F16 | WeightFormat::Bf16);
            let format = match fast.weights {
                FloatWeights::To(format) if is_float && rounding == Rounding::Allowed => format,
                _ => shape.format,
            };
            let shape = PackedShape { format, ..shape };
            let mut panels = Slab::new(shape.bytes(), PageSize::Huge).map_err(ModelError::NoMemory)?;
            shape.pack_as(processor.pool(), &view, &mut panels);
            Ok(Self { weights: Weights::Packed { processor, shape, panels }, bias: None })
        })
    }

    /// (T, in) to `out` (T, out).
    pub(super) fn forward(&self, rows: &mut Rows<'_>, out: &mut [f32]) {
        match &self.weights {
            Weights::Exact(matrix) => cpu::linear(rows.x, &matrix.view(), out),
            Weights::Packed { processor, shape, panels } => {
                let view = shape.view(panels).expect("packed in this shape");
                let x = rows.quantized(processor, *shape);
                simd::linear(processor.simd(), processor.pool(), &view, x, out);
            }
        }
        if let Some(bias) = &self.bias {
            cpu::add_bias(out, bias);
        }
    }

    /// Its width out and in.
    pub(super) fn shape(&self) -> (usize, usize) {
        match &self.weights {
            Weights::Exact(matrix) => (matrix.rows(), matrix.cols()),
            Weights::Packed { shape, .. } => (shape.rows, shape.cols),
        }
    }

    /// Bytes of its weights as they are computed with.
    pub(super) fn n_bytes(&self) -> usize {
        match &self.weights {
            Weights::Exact(matrix) => matrix.n_bytes(),
            Weights::Packed { panels, .. } => panels.len(),
        }
    }
}
