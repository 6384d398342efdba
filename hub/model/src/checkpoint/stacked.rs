//! Reads experts as GPT-OSS publishes them: all of a layer in one tensor, with the columns of gate and up interleaved.
//!
//! | tensor | shape | what |
//! |---|---|---|
//! | `gate_up_proj`, `down_proj` | (E, in, out) | floats, columns where others have rows |
//! | `*_blocks`, `*_scales` | (E, out, in / 32, 16), (E, out, in / 32) | the same in mxfp4, rows where others have rows |
//! | `*_bias` | (E, out) | floats |
//!
//! Of `gate_up_proj`, out is 2 F: gate's 0, up's 0, gate's 1, and so on.

use bytes::Bytes;
use moex_kernels::{MatrixView, WeightFormat, quant::mxfp4_from_planes};

use super::{
    gptq::wrong,
    tensors::{Checkpoint, Stored, Tensor},
};
use crate::error::ModelError;

/// Columns of a block of mxfp4, and the bytes of its codes.
const BLOCK: usize = 32;
const BLOCK_BYTES: usize = 16;

/// One matrix of one expert, with checked shapes.
#[derive(Clone, Debug)]
pub(super) struct Stacked {
    rows: usize,
    cols: usize,
    /// Its rows are every `step`th output of the tensor, starting at `first`.
    first: usize,
    step: usize,
    stored: Layout,
}

/// The expert's part of the tensors.
#[derive(Clone, Debug)]
enum Layout {
    /// (in, out).
    Floats(WeightFormat, Bytes),
    /// (out, in / 32, 16) and (out, in / 32).
    Mxfp4 { blocks: Bytes, scales: Bytes },
}

/// Which matrix of which expert: `model.layers.0.mlp.experts`, 3, `gate_up_proj`, and which of its outputs.
struct Part<'a> {
    experts: &'a str,
    expert: usize,
    tensor: &'static str,
    first: usize,
    step: usize,
}

impl<'a> Part<'a> {
    fn of(stem: &'a str) -> Option<Self> {
        let (rest, part) = stem.rsplit_once('.')?;
        let (experts, expert) = rest.rsplit_once('.')?;
        let (tensor, first, step) = match part {
            "gate_proj" => ("gate_up_proj", 0, 2),
            "up_proj" => ("gate_up_proj", 1, 2),
            "down_proj" => ("down_proj", 0, 1),
            _ => return None,
        };
        let expert = expert.parse().ok().filter(|_| experts.ends_with(".experts"))?;
        Some(Self { experts, expert, tensor, first, step })
    }

    /// The expert's part of the tensor with this suffix; none if there is no such tensor.
    fn slice(&self, checkpoint: &Checkpoint, ending: &str) -> Result<Option<(String, Tensor)>, ModelError> {
        let name = format!("{}.{}{ending}", self.experts, self.tensor);
        let Ok(whole) = checkpoint.tensor(&name) else { return Ok(None) };
        let missing = || ModelError::MissingTensor { tensor: format!("{name} of expert {}", self.expert) };
        let tensor = whole.slice(self.expert).ok_or_else(missing)?;
        Ok(Some((name, tensor)))
    }
}

impl Stacked {
    /// Finds the (rows, cols) matrix called `stem`; none if the checkpoint has no stacked experts.
    ///
    /// # Errors
    /// If a tensor has another shape or type, or lacks the expert.
    pub(super) fn find(
        checkpoint: &Checkpoint,
        stem: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Option<Self>, ModelError> {
        let Some(part) = Part::of(stem) else { return Ok(None) };
        let out = part.step.saturating_mul(rows);
        let found = |stored| Ok(Some(Self { rows, cols, first: part.first, step: part.step, stored }));
        if let Some((name, blocks)) = part.slice(checkpoint, "_blocks")? {
            let n_blocks = cols.div_ceil(BLOCK);
            let shape = [out, n_blocks, BLOCK_BYTES];
            if !cols.is_multiple_of(BLOCK) || !is_bytes(&blocks, &shape) {
                return Err(wrong(&name, blocks, &format!("U8 {shape:?} for each expert")));
            }
            let Some((name, scales)) = part.slice(checkpoint, "_scales")? else {
                let tensor = format!("{}.{}_scales", part.experts, part.tensor);
                return Err(ModelError::MissingTensor { tensor });
            };
            if !is_bytes(&scales, &shape[..2]) {
                return Err(wrong(&name, scales, &format!("U8 {:?} for each expert", &shape[..2])));
            }
            return found(Layout::Mxfp4 { blocks: blocks.bytes, scales: scales.bytes });
        }
        let Some((name, tensor)) = part.slice(checkpoint, "")? else { return Ok(None) };
        match floats(&tensor, &[cols, out]) {
            Some(format) => found(Layout::Floats(format, tensor.bytes)),
            None => Err(wrong(&name, tensor, &format!("f32, f16 or bf16 {:?} for each expert", [cols, out]))),
        }
    }

    /// The format it is converted to, without rounding.
    pub(super) fn format(&self) -> WeightFormat {
        match &self.stored {
            Layout::Floats(format, _) => *format,
            Layout::Mxfp4 { .. } => WeightFormat::Mxfp4,
        }
    }

    /// Its rows, one after another.
    pub(super) fn convert(&self) -> Vec<u8> {
        let outputs = (0..self.rows).map(|row| row * self.step + self.first);
        match &self.stored {
            Layout::Floats(format, bytes) => {
                let (size, out) = (format.matrix_bytes(1, 1), self.rows * self.step);
                let value = |at: usize| &bytes[at * size..(at + 1) * size];
                outputs.flat_map(|o| (0..self.cols).flat_map(move |i| value(i * out + o))).copied().collect()
            }
            Layout::Mxfp4 { blocks, scales } => {
                let n_blocks = self.cols / BLOCK;
                let rows_of = |bytes: &Bytes, each: usize| -> Vec<u8> {
                    outputs.clone().flat_map(|o| bytes[o * each..(o + 1) * each].iter().copied()).collect()
                };
                let blocks = rows_of(blocks, n_blocks * BLOCK_BYTES);
                mxfp4_from_planes(self.rows, self.cols, &blocks, &rows_of(scales, n_blocks))
                    .expect("its shapes were checked when it was found")
            }
        }
    }

    /// The stored bytes, in order, for a fingerprint.
    pub(super) fn stored(&self) -> [&[u8]; 3] {
        match &self.stored {
            Layout::Floats(_, bytes) => [bytes, &[], &[]],
            Layout::Mxfp4 { blocks, scales } => [blocks, scales, &[]],
        }
    }
}

/// The bias (len) of the expert's matrix called `stem`.
///
/// # Errors
/// If it is missing or of another shape or type.
pub(super) fn bias(checkpoint: &Checkpoint, stem: &str, len: usize) -> Result<Vec<f32>, ModelError> {
    let missing = || ModelError::MissingTensor { tensor: format!("{stem}.bias") };
    let part = Part::of(stem).ok_or_else(missing)?;
    let (name, tensor) = part.slice(checkpoint, "_bias")?.ok_or_else(missing)?;
    let out = part.step.saturating_mul(len);
    let Some(format) = floats(&tensor, &[out]) else {
        return Err(wrong(&name, tensor, &format!("f32, f16 or bf16 {:?} for each expert", [out])));
    };
    let values = MatrixView::new(format, 1, out, &tensor.bytes).expect("its length was checked").dequantize();
    Ok(values.into_iter().skip(part.first).step_by(part.step).collect())
}

fn is_bytes(tensor: &Tensor, shape: &[usize]) -> bool {
    let is_u8 = matches!(&tensor.stored, Stored::Other(dtype) if dtype == "U8");
    is_u8 && tensor.shape == shape && tensor.bytes.len() == shape.iter().product::<usize>()
}

/// The format of a tensor of floats of this shape.
fn floats(tensor: &Tensor, shape: &[usize]) -> Option<WeightFormat> {
    let Stored::Weights(format) = tensor.stored else { return None };
    let values: usize = shape.iter().product();
    let fits = tensor.shape == shape && tensor.bytes.len() == format.matrix_bytes(1, values);
    (fits && !format.is_quantised()).then_some(format)
}
