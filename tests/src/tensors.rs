//! Reads and compares the safetensors files of commands and references.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use safetensors::{Dtype, SafeTensors};

/// A matrix of numbers: rows (T, width).
pub struct Matrix {
    /// The numbers, row-major.
    pub values: Vec<f64>,
    /// Numbers in a row.
    pub width: usize,
}

impl Matrix {
    /// Reads a two-dimensional f32 or i32 tensor.
    pub fn read(file: &Path, name: &str) -> Result<Self> {
        let bytes = std::fs::read(file).with_context(|| format!("{} was not written", file.display()))?;
        let tensors = SafeTensors::deserialize(&bytes)?;
        let tensor = tensors.tensor(name).with_context(|| format!("{name} in {}", file.display()))?;
        ensure!(tensor.shape().len() >= 2, "{name} has the shape {:?}", tensor.shape());
        let words = tensor.data().as_chunks::<4>().0.iter();
        let values = match tensor.dtype() {
            Dtype::F32 => words.map(|&word| f64::from(f32::from_le_bytes(word))).collect(),
            Dtype::I32 => words.map(|&word| f64::from(i32::from_le_bytes(word))).collect(),
            other => anyhow::bail!("{name} is {other:?}"),
        };
        let width = *tensor.shape().last().context("checked above")?;
        Ok(Self { values, width })
    }

    /// The rows, in order.
    pub fn rows(&self) -> impl Iterator<Item = &[f64]> {
        self.values.chunks_exact(self.width)
    }
}

/// Normalised mean squared error of `found` against `expected`: `sum((a - b)^2) / sum(b^2)`.
pub fn nmse(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len(), "the two have different shapes");
    let error: f64 = found.iter().zip(expected).map(|(a, b)| (a - b).powi(2)).sum();
    error / expected.iter().map(|b| b.powi(2)).sum::<f64>()
}
