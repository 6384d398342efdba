//! Reads GPTQ and AWQ folders: 4 bits, groups of 128 columns with a scale and a zero point each. They are converted to
//! int4 with zero points without changing a weight.
//!
//! A (rows, cols) = (N, K) matrix is stored transposed, as `qweight`, `qzeros` (K/128, N/8) and `scales` (K/128, N); an
//! i32 holds eight nibbles, lowest first:
//!
//! | | `qweight` | eight nibbles of it, and of `qzeros` | zero point |
//! |---|---|---|---|
//! | GPTQ | (K/8, N) | eight columns k; of `qzeros` eight rows n | the stored value plus 1; in version 2 the stored value |
//! | AWQ | (K, N/8) | eight rows n, in the order 0, 2, 4, 6, 1, 3, 5, 7 | the stored value |

use bytes::Bytes;
use half::f16;
use moex_kernels::{MatrixView, WeightFormat, quant::GROUP};

use super::{
    quantisation::Quantisation,
    tensors::{Checkpoint, Stored, Tensor},
};
use crate::error::ModelError;

/// Position of each of eight rows in AWQ.
const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
const NIBBLES: usize = 8;

/// A stored matrix with checked shapes.
#[derive(Clone, Debug)]
pub(super) struct Quantised {
    how: Quantisation,
    rows: usize,
    cols: usize,
    qweight: Bytes,
    qzeros: Bytes,
    scales: (WeightFormat, Bytes),
}

impl Quantised {
    /// Finds the (rows, cols) matrix whose tensors begin with `stem`; none if there is no such quantised matrix.
    ///
    /// # Errors
    /// If a tensor is missing or has another shape or type.
    pub(super) fn find(
        checkpoint: &Checkpoint,
        stem: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Option<Self>, ModelError> {
        let qweight = format!("{stem}.qweight");
        let Some(how) = checkpoint.quantisation.filter(|_| checkpoint.tensors.contains_key(&qweight)) else {
            return Ok(None);
        };
        let n_groups = cols.div_ceil(GROUP);
        let packed = match how {
            Quantisation::Gptq { .. } => [cols.div_ceil(NIBBLES), rows],
            Quantisation::Awq => [cols, rows.div_ceil(NIBBLES)],
            Quantisation::Fp8 => return Ok(None),
        };
        let n_words = |shape: &[usize]| shape.iter().product::<usize>().saturating_mul(4);
        let integers = |name: String, shape: &[usize]| -> Result<Bytes, ModelError> {
            let tensor = checkpoint.tensor(&name)?;
            let is_i32 = matches!(&tensor.stored, Stored::Other(name) if name == "I32");
            match is_i32 && tensor.shape == shape && tensor.bytes.len() == n_words(shape) {
                true => Ok(tensor.bytes),
                false => Err(wrong(&name, tensor, &format!("I32 {shape:?}"))),
            }
        };
        let scales = checkpoint.tensor(&format!("{stem}.scales"))?;
        let Stored::Weights(format) = scales.stored else {
            return Err(wrong(&format!("{stem}.scales"), scales, "f16"));
        };
        if !cols.is_multiple_of(GROUP)
            || !rows.is_multiple_of(NIBBLES)
            || scales.shape != [n_groups, rows]
            || scales.bytes.len() != format.matrix_bytes(n_groups, rows)
        {
            return Err(wrong(&format!("{stem}.scales"), scales, &format!("f16 {:?}", [n_groups, rows])));
        }
        let g_idx = format!("{stem}.g_idx");
        if checkpoint.tensors.contains_key(&g_idx) {
            let groups = integers(g_idx.clone(), &[cols])?;
            let in_order = words(&groups).enumerate().all(|(k, group)| group as usize == k / GROUP);
            if !in_order {
                let tensor = checkpoint.tensor(&g_idx)?;
                let reason = format!("{g_idx} has reordered columns (desc_act), which are not supported");
                return Err(ModelError::BadFile { file: tensor.file, reason });
            }
        }
        Ok(Some(Self {
            how,
            rows,
            cols,
            qweight: integers(qweight, &packed)?,
            qzeros: integers(format!("{stem}.qzeros"), &[n_groups, rows.div_ceil(NIBBLES)])?,
            scales: (format, scales.bytes),
        }))
    }

    /// Converts the weights to [`WeightFormat::Int4ZpG128`].
    pub(super) fn convert(&self) -> Vec<u8> {
        let Self { how, rows, cols, .. } = *self;
        let n_groups = cols / GROUP;
        let (weights, zeros): (Vec<u32>, Vec<u32>) =
            (words(&self.qweight).collect(), words(&self.qzeros).collect());
        let scales = MatrixView::new(self.scales.0, n_groups, rows, &self.scales.1)
            .expect("its length was checked when it was found")
            .dequantize();
        // Position of row n among the eight of an i32.
        let place = |n: usize| match how {
            Quantisation::Gptq { .. } => n % NIBBLES,
            Quantisation::Awq | Quantisation::Fp8 => {
                AWQ_ORDER.iter().position(|row| *row == n % NIBBLES).expect("an order of eight has all eight")
            }
        };
        let nibble = |word: u32, place: usize| (word >> (4 * place) & 15) as u8;
        let weight = |n: usize, k: usize| match how {
            Quantisation::Gptq { .. } => nibble(weights[k / NIBBLES * rows + n], k % NIBBLES),
            Quantisation::Awq | Quantisation::Fp8 => {
                nibble(weights[k * (rows / NIBBLES) + n / NIBBLES], place(n))
            }
        };
        let zero_offset = match how {
            Quantisation::Gptq { zero_offset } => zero_offset,
            Quantisation::Awq | Quantisation::Fp8 => 0,
        };
        let mut bytes = Vec::with_capacity(WeightFormat::Int4ZpG128.matrix_bytes(rows, cols));
        for n in 0..rows {
            bytes.extend((0..cols).step_by(2).map(|k| weight(n, k) | weight(n, k + 1) << 4));
        }
        for n in 0..rows {
            for g in 0..n_groups {
                let zero = nibble(zeros[g * (rows / NIBBLES) + n / NIBBLES], place(n)) + zero_offset;
                bytes.extend(f16::from_f32(scales[g * rows + n]).to_le_bytes());
                bytes.extend([zero, 0]);
            }
        }
        bytes
    }

    /// The stored bytes, in order, for a fingerprint.
    pub(super) fn stored(&self) -> [&[u8]; 3] {
        [&self.qweight, &self.qzeros, &self.scales.1]
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word))
}

pub(super) fn wrong(name: &str, tensor: Tensor, expected: &str) -> ModelError {
    let stored = match tensor.stored {
        Stored::Weights(format) => format.to_string(),
        Stored::Other(name) => name,
    };
    let reason = format!("{name} is {stored} {:?}, but its quantisation requires {expected}", tensor.shape);
    ModelError::BadFile { file: tensor.file, reason }
}

#[cfg(test)]
mod tests;
