//! Matrices and vectors of a checkpoint, with the shapes that the config requires.
//!
//! Matrices stay mapped in the checkpoint's format, with two exceptions, which are converted when needed: GPTQ, AWQ and
//! FP8 matrices become int4 or bf16, and rows in another order are rearranged. Vectors are small and become f32.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use moex_kernels::{
    ExpertBiases, ExpertFormat, ExpertKind, ExpertView, MatrixView, WeightFormat, graph::MatrixSource,
};

use super::{
    fp8::Fp8,
    gptq::Quantised,
    llama_cpp::rearranged::{self, Rearranged},
    stacked::{self, Stacked},
    tensors::{Checkpoint, Naming, Stored, Tensor},
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

/// Location of a matrix's bytes.
#[derive(Clone, Debug)]
enum Storage {
    /// Mapped from the file.
    Mapped(Bytes),
    /// Converted on first use, and then kept.
    Converted { from: Source, bytes: Arc<OnceLock<Vec<u8>>> },
}

/// The source of a matrix that kernels cannot use as stored.
#[derive(Clone, Debug)]
enum Source {
    Int4(Quantised),
    Fp8(Fp8),
    Stacked(Stacked),
    Rearranged(Rearranged),
}

impl Source {
    fn format(&self) -> WeightFormat {
        match self {
            Self::Int4(_) => WeightFormat::Int4ZpG128,
            Self::Fp8(_) => Fp8::FORMAT,
            Self::Stacked(from) => from.format(),
            Self::Rearranged(from) => from.format(),
        }
    }

    fn convert(&self) -> Vec<u8> {
        match self {
            Self::Int4(from) => from.convert(),
            Self::Fp8(from) => from.convert(),
            Self::Stacked(from) => from.convert(),
            Self::Rearranged(from) => from.convert(),
        }
    }

    fn stored(&self) -> [&[u8]; 3] {
        match self {
            Self::Int4(from) => from.stored(),
            Self::Fp8(from) => from.stored(),
            Self::Stacked(from) => from.stored(),
            Self::Rearranged(from) => from.stored(),
        }
    }
}

impl Matrix {
    /// The matrix in a form that kernels can use.
    pub fn view(&self) -> MatrixView<'_> {
        self.view_of(match &self.bytes {
            Storage::Mapped(bytes) => bytes,
            Storage::Converted { from, bytes } => bytes.get_or_init(|| from.convert()),
        })
    }

    /// The same for `read` only: a converted matrix is not kept.
    pub(crate) fn read<R>(&self, read: impl FnOnce(MatrixView<'_>) -> R) -> R {
        match &self.bytes {
            Storage::Converted { from, bytes } if bytes.get().is_none() => {
                read(self.view_of(&from.convert()))
            }
            _ => read(self.view()),
        }
    }

    /// Number of rows: the output width.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns: the input width.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes in this format.
    pub fn n_bytes(&self) -> usize {
        self.format.matrix_bytes(self.rows, self.cols)
    }

    /// The stored bytes.
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

impl MatrixSource for Matrix {
    fn shape(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    fn format(&self) -> WeightFormat {
        self.format
    }

    fn view(&self) -> MatrixView<'_> {
        Self::view(self)
    }

    fn read(&self, read: &mut dyn FnMut(MatrixView<'_>)) {
        Self::read(self, read);
    }
}

/// An expert of the checkpoint.
#[derive(Clone, Debug)]
pub struct Expert {
    /// `gate_proj` (F, D).
    pub gate: Matrix,
    /// `up_proj` (F, D).
    pub up: Matrix,
    /// `down_proj` (D, F).
    pub down: Matrix,
    /// The function between them.
    pub kind: ExpertKind,
    /// The biases of gate (F), up (F) and down (D), for kinds that have them.
    biases: Option<Arc<[Vec<f32>; 3]>>,
}

impl Expert {
    /// The expert in a form that kernels can use.
    pub fn view(&self) -> ExpertView<'_> {
        ExpertView {
            gate: self.gate.view(),
            up: self.up.view(),
            down: self.down.view(),
            biases: self.biases(),
        }
    }

    /// The same for `read` only: converted matrices are not kept in memory.
    pub fn read<R>(&self, read: impl FnOnce(&ExpertView<'_>) -> R) -> R {
        let biases = self.biases();
        self.gate.read(|gate| {
            self.up.read(|up| self.down.read(|down| read(&ExpertView { gate, up, down, biases })))
        })
    }

    fn biases(&self) -> Option<ExpertBiases<'_>> {
        let [gate, up, down] = self.biases.as_ref()?.each_ref().map(|bias| {
            MatrixView::of_f32(1, bias.len(), bias).expect("a row of as many columns as there are values")
        });
        Some(ExpertBiases { kind: self.kind, gate, up, down })
    }

    /// Feeds `part` with the fingerprint of this expert: shapes, formats, and at most `max_bytes` of each tensor's
    /// stored bytes.
    pub fn describe(&self, max_bytes: usize, mut part: impl FnMut(&[u8])) {
        for matrix in [&self.gate, &self.up, &self.down] {
            part(format!("{} {} {};", matrix.format.name(), matrix.rows, matrix.cols).as_bytes());
            for stored in matrix.stored() {
                part(&stored[..stored.len().min(max_bytes)]);
            }
        }
        if let Some(biases) = self.biases() {
            for bias in [biases.gate, biases.up, biases.down] {
                part(bias.bytes());
            }
        }
    }

    /// Its formats in the checkpoint; none if gate and up differ.
    pub fn format(&self) -> Option<ExpertFormat> {
        let format = ExpertFormat::new(self.gate.format, self.down.format).of_kind(self.kind);
        (self.up.format == format.gate_up).then_some(format)
    }

    /// Whether any of its matrices has fewer than 16 bits per weight.
    pub fn is_quantised(&self) -> bool {
        [&self.gate, &self.up, &self.down].iter().any(|matrix| matrix.format.is_quantised())
    }

    /// Bytes in the formats that it is computed in.
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
        let values = Matrix { format, rows: 1, cols: len, bytes }.view().dequantize();
        rearranged::vector(self, name, values)
    }

    /// The weights (len) of the RMSNorm called `name`, as rows are multiplied by them: a GGUF stores them in this form.
    pub(crate) fn norm(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        let mut weights = self.vector(name, len)?;
        let is_folder = matches!(self.naming, Naming::HuggingFace(_));
        if is_folder && self.spec.norm_weights == NormWeights::OnePlus {
            weights.iter_mut().for_each(|weight| *weight += 1.0);
        }
        Ok(weights)
    }

    /// The weights (columns, `kernel`) of a depthwise convolution, stored as (columns, 1, `kernel`).
    pub(crate) fn conv(&self, name: &str, columns: usize, kernel: usize) -> Result<Vec<f32>, ModelError> {
        let (tensor, format) = self.checked(name, &[columns, 1, kernel])?;
        let bytes = Storage::Mapped(tensor.bytes);
        Ok(Matrix { format, rows: columns, cols: kernel, bytes }.view().dequantize())
    }

    /// The expert called `name`: its `gate_proj`, `up_proj` and `down_proj`.
    pub(crate) fn expert(&self, name: &str) -> Result<Expert, ModelError> {
        let (hidden, inner, kind) = (self.spec.hidden, self.spec.moe.inner, self.spec.moe.kind);
        let stem = |part: &str| format!("{name}.{part}");
        let biases = match kind.has_biases() {
            false => None,
            true => {
                let of = |part, len| match self.naming {
                    Naming::HuggingFace(_) => stacked::bias(self, &stem(part), len),
                    Naming::Gguf(_) => self.vector(&format!("{name}.{part}.bias"), len),
                };
                Some(Arc::new([of("gate_proj", inner)?, of("up_proj", inner)?, of("down_proj", hidden)?]))
            }
        };
        let matrix = |part, rows, cols| self.matrix(&format!("{name}.{part}.weight"), rows, cols);
        Ok(Expert {
            gate: matrix("gate_proj", inner, hidden)?,
            up: matrix("up_proj", inner, hidden)?,
            down: matrix("down_proj", hidden, inner)?,
            kind,
            biases,
        })
    }

    /// Whether its experts, or its MLP if it has none, have fewer than 16 bits per weight.
    pub fn is_quantised(&self) -> bool {
        let first = match self.spec.sparse_layers().next() {
            Some(layer) => {
                self.expert(&format!("model.layers.{layer}.mlp.experts.0")).map(|e| e.is_quantised())
            }
            None => self
                .matrix("model.layers.0.mlp.down_proj.weight", self.spec.hidden, self.spec.dense_inner)
                .map(|matrix| matrix.format.is_quantised()),
        };
        // Missing tensors are reported when the model is loaded.
        first.unwrap_or(false)
    }

    fn quantised(&self, name: &str, rows: usize, cols: usize) -> Result<Option<Source>, ModelError> {
        let Some(stem) = name.strip_suffix(".weight") else { return Ok(None) };
        if let Some(from) = Quantised::find(self, stem, rows, cols)? {
            return Ok(Some(Source::Int4(from)));
        }
        if let Some(from) = Fp8::find(self, stem, rows, cols)? {
            return Ok(Some(Source::Fp8(from)));
        }
        if let Some(from) = Rearranged::find(self, stem, rows, cols)? {
            return Ok(Some(Source::Rearranged(from)));
        }
        Ok(Stacked::find(self, stem, rows, cols)?.map(Source::Stacked))
    }

    pub(super) fn checked(&self, name: &str, shape: &[usize]) -> Result<(Tensor, WeightFormat), ModelError> {
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
        // A GGUF may omit or add dimensions of size one.
        let is_alike = matches!(self.naming, Naming::Gguf(_))
            && tensor.shape.iter().filter(|n| **n != 1).eq(shape.iter().filter(|n| **n != 1));
        if tensor.shape != shape && !is_alike {
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
