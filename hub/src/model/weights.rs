//! Tensors of a checkpoint with the shapes the config gives them.
//!
//! Matrices stay in the checkpoint's format, where they lie; vectors, being small, become f32.

use bytes::Bytes;
use moex_kernels::{ExpertShape, ExpertView, MatrixView, WeightFormat};

use super::{
    error::ModelError,
    files::{Checkpoint, Stored, Tensor},
};

/// A (rows, cols) = (out, in) matrix of the checkpoint.
#[derive(Clone, Debug)]
pub struct Matrix {
    format: WeightFormat,
    rows: usize,
    cols: usize,
    bytes: Bytes,
}

impl Matrix {
    /// As the kernels take it.
    pub fn view(&self) -> MatrixView<'_> {
        MatrixView::new(self.format, self.rows, self.cols, &self.bytes)
            .expect("its length was checked when it was read")
    }

    /// Its bytes in the checkpoint.
    pub fn n_bytes(&self) -> usize {
        self.bytes.len()
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

    /// Its block in another format: what a worker holds.
    pub fn pack(&self, format: WeightFormat) -> Vec<u8> {
        let view = self.view();
        let shape = ExpertShape { hidden: view.gate.cols(), inner: view.gate.rows(), format };
        shape.pack(&view.gate.dequantize(), &view.up.dequantize(), &view.down.dequantize())
    }

    /// Its bytes in the checkpoint.
    pub fn n_bytes(&self) -> usize {
        self.gate.n_bytes() + self.up.n_bytes() + self.down.n_bytes()
    }
}

impl Checkpoint {
    /// The (rows, cols) matrix called `name`.
    pub(super) fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Matrix, ModelError> {
        let (tensor, format) = self.checked(name, &[rows, cols])?;
        Ok(Matrix { format, rows, cols, bytes: tensor.bytes })
    }

    /// The (len) vector called `name`, as f32.
    pub(super) fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        let (tensor, format) = self.checked(name, &[len])?;
        Ok(Matrix { format, rows: 1, cols: len, bytes: tensor.bytes }.view().dequantize())
    }

    /// `{name}.gate_proj` and its two companions, F wide inside.
    pub(super) fn expert(&self, name: &str, inner: usize) -> Result<Expert, ModelError> {
        let hidden = self.config.hidden;
        Ok(Expert {
            gate: self.matrix(&format!("{name}.gate_proj.weight"), inner, hidden)?,
            up: self.matrix(&format!("{name}.up_proj.weight"), inner, hidden)?,
            down: self.matrix(&format!("{name}.down_proj.weight"), hidden, inner)?,
        })
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
