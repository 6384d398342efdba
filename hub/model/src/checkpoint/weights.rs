//! Tensors of a checkpoint with the shapes the config gives them.
//!
//! Matrices stay in the checkpoint's format, where they lie, but for those of GPTQ, AWQ and FP8 folders, which are turned
//! into our int4 or into bf16 when they are needed; vectors, being small, become f32.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use moex_kernels::{ExpertFormat, ExpertView, MatrixView, WeightFormat};

use super::{
    fp8::Fp8,
    gptq::Quantised,
    tensors::{Checkpoint, Stored, Tensor},
};
use crate::{error::ModelError, spec::NormWeights};

/// A (rows, cols) = (out, in) matrix of the checkpoint.
#[derive(Clone, Debug)]
pub struct Matrix {
    format: WeightFormat,
    rows: usize,
    cols: usize,
    bytes: Storage,
}

/// Where a matrix's bytes are.
#[derive(Clone, Debug)]
enum Storage {
    /// In the file.
    Mapped(Bytes),
    /// To be made from what is in the file, when they are first asked for; then they are kept.
    Converted { from: Source, bytes: Arc<OnceLock<Vec<u8>>> },
}

/// What a matrix is made of, where its file has none that kernels take.
#[derive(Clone, Debug)]
enum Source {
    Int4(Quantised),
    Fp8(Fp8),
}

impl Source {
    fn format(&self) -> WeightFormat {
        match self {
            Self::Int4(_) => WeightFormat::Int4ZpG128,
            Self::Fp8(_) => Fp8::FORMAT,
        }
    }

    fn convert(&self) -> Vec<u8> {
        match self {
            Self::Int4(from) => from.convert(),
            Self::Fp8(from) => from.convert(),
        }
    }

    fn stored(&self) -> [&[u8]; 3] {
        match self {
            Self::Int4(from) => from.stored(),
            Self::Fp8(from) => from.stored(),
        }
    }
}

impl Matrix {
    /// As the kernels take it.
    pub fn view(&self) -> MatrixView<'_> {
        self.view_of(match &self.bytes {
            Storage::Mapped(bytes) => bytes,
            Storage::Converted { from, bytes } => bytes.get_or_init(|| from.convert()),
        })
    }

    /// The same for `read` alone: what has to be made for it is not kept.
    pub(crate) fn read<R>(&self, read: impl FnOnce(MatrixView<'_>) -> R) -> R {
        match &self.bytes {
            Storage::Converted { from, bytes } if bytes.get().is_none() => {
                read(self.view_of(&from.convert()))
            }
            _ => read(self.view()),
        }
    }

    /// Its height, the width of what comes out.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Its width, that of what goes in.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Its bytes in this format.
    pub fn n_bytes(&self) -> usize {
        self.format.matrix_bytes(self.rows, self.cols)
    }

    /// What is in the file.
    fn stored(&self) -> [&[u8]; 3] {
        match &self.bytes {
            Storage::Mapped(bytes) => [bytes, &[], &[]],
            Storage::Converted { from, .. } => from.stored(),
        }
    }

    fn view_of<'a>(&self, bytes: &'a [u8]) -> MatrixView<'a> {
        MatrixView::new(self.format, self.rows, self.cols, bytes)
            .expect("its length was checked when it was found")
    }
}

/// An MLP of the checkpoint: an expert, or a dense layer's.
#[derive(Clone, Debug)]
pub struct Expert {
    /// `gate_proj` (F, D).
    pub gate: Matrix,
    /// `up_proj` (F, D).
    pub up: Matrix,
    /// `down_proj` (D, F).
    pub down: Matrix,
}

impl Expert {
    /// As the kernels take it.
    pub fn view(&self) -> ExpertView<'_> {
        ExpertView { gate: self.gate.view(), up: self.up.view(), down: self.down.view() }
    }

    /// The same for `read` alone: of a GPTQ, AWQ or FP8 folder nothing is kept in memory.
    pub fn read<R>(&self, read: impl FnOnce(&ExpertView<'_>) -> R) -> R {
        self.gate.read(|gate| self.up.read(|up| self.down.read(|down| read(&ExpertView { gate, up, down }))))
    }

    /// Gives to `part` what tells this expert from another: shapes, formats, and at most `max_bytes` of each tensor's bytes
    /// in the file.
    pub fn describe(&self, max_bytes: usize, mut part: impl FnMut(&[u8])) {
        for matrix in [&self.gate, &self.up, &self.down] {
            part(format!("{} {} {};", matrix.format.name(), matrix.rows, matrix.cols).as_bytes());
            for stored in matrix.stored() {
                part(&stored[..stored.len().min(max_bytes)]);
            }
        }
    }

    /// Its formats in the checkpoint; none if gate and up have different ones.
    pub fn format(&self) -> Option<ExpertFormat> {
        let format = ExpertFormat { gate_up: self.gate.format, down: self.down.format };
        (self.up.format == format.gate_up).then_some(format)
    }

    /// Whether any of its matrices has less than 16 bits a weight.
    pub fn is_quantised(&self) -> bool {
        [&self.gate, &self.up, &self.down].iter().any(|matrix| matrix.format.is_quantised())
    }

    /// Its bytes, in the formats it is computed in.
    pub fn n_bytes(&self) -> usize {
        self.gate.n_bytes() + self.up.n_bytes() + self.down.n_bytes()
    }
}

impl Checkpoint {
    /// The (rows, cols) matrix called `name`.
    pub(crate) fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Matrix, ModelError> {
        if let Some(from) = self.quantised(name, rows, cols)? {
            let format = from.format();
            let bytes = Storage::Converted { from, bytes: Arc::default() };
            return Ok(Matrix { format, rows, cols, bytes });
        }
        let (tensor, format) = self.checked(name, &[rows, cols])?;
        Ok(Matrix { format, rows, cols, bytes: Storage::Mapped(tensor.bytes) })
    }

    /// The (len) vector called `name`, as f32.
    pub(crate) fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        let (tensor, format) = self.checked(name, &[len])?;
        let bytes = Storage::Mapped(tensor.bytes);
        Ok(Matrix { format, rows: 1, cols: len, bytes }.view().dequantize())
    }

    /// The weights (len) of the RMSNorm called `name`, as rows are multiplied by them.
    pub(crate) fn norm(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        let mut weights = self.vector(name, len)?;
        if self.spec.norm_weights == NormWeights::OnePlus {
            weights.iter_mut().for_each(|weight| *weight += 1.0);
        }
        Ok(weights)
    }

    /// `{name}.gate_proj` and its two companions, F wide inside.
    pub(crate) fn expert(&self, name: &str, inner: usize) -> Result<Expert, ModelError> {
        let hidden = self.spec.hidden;
        Ok(Expert {
            gate: self.matrix(&format!("{name}.gate_proj.weight"), inner, hidden)?,
            up: self.matrix(&format!("{name}.up_proj.weight"), inner, hidden)?,
            down: self.matrix(&format!("{name}.down_proj.weight"), hidden, inner)?,
        })
    }

    /// Whether its experts, or its MLP where it has none, are stored in less than 16 bits a weight.
    pub fn is_quantised(&self) -> bool {
        let first = match self.spec.sparse_layers().next() {
            Some(layer) => self.expert(&format!("model.layers.{layer}.mlp.experts.0"), self.spec.moe.inner),
            None => self.expert("model.layers.0.mlp", self.spec.dense_inner),
        };
        // What is missing is said when the model is loaded.
        first.is_ok_and(|expert| expert.is_quantised())
    }

    fn quantised(&self, name: &str, rows: usize, cols: usize) -> Result<Option<Source>, ModelError> {
        let Some(stem) = name.strip_suffix(".weight") else { return Ok(None) };
        if let Some(from) = Quantised::find(self, stem, rows, cols)? {
            return Ok(Some(Source::Int4(from)));
        }
        Ok(Fp8::find(self, stem, rows, cols)?.map(Source::Fp8))
    }

    fn checked(&self, name: &str, shape: &[usize]) -> Result<(Tensor, WeightFormat), ModelError> {
        let tensor = self.tensor(name)?;
        let format = match &tensor.stored {
            Stored::Weights(format) => *format,
            Stored::Other(dtype) => {
                return Err(ModelError::UnsupportedDtype {
                    tensor: name.to_owned(),
                    file: tensor.file,
                    dtype: dtype.clone(),
                });
            }
        };
        if tensor.shape != shape {
            return Err(ModelError::Shape {
                tensor: name.to_owned(),
                file: tensor.file,
                actual: tensor.shape,
                expected: shape.to_vec(),
            });
        }
        let (cols, rows) = shape.split_last().map_or((1, 1), |(cols, rows)| (*cols, rows.iter().product()));
        let expected = format.matrix_bytes(rows, cols);
        if tensor.bytes.len() != expected {
            let reason = format!("{name} has {} bytes where its shape makes {expected}", tensor.bytes.len());
            return Err(ModelError::BadFile { file: tensor.file, reason });
        }
        Ok((tensor, format))
    }
}
