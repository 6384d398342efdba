//! Restores tensors that llama.cpp stores differently than a folder does, without rounding.
//!
//! | change | in the GGUF | in the folder |
//! |---|---|---|
//! | paired rows | of each head 0, C/2, 1, C/2 + 1, ... | 0, 1, 2, ... |
//! | keys and values | (H, rank, own), (H, Cv, rank) | of each head own + Cv rows of rank |
//! | by kind | all q, all k, all v; all z | of each key head its q, k, v and z |
//! | minus exp | `-exp(x)` | `x` |
//!
//! Rows keep their format. Transposed tensors become f32 if their columns are in blocks, and so do rows from tensors
//! with different formats.

use bytes::Bytes;
use moex_kernels::{MatrixView, WeightFormat, cpu::DeltaNetShape};

use crate::{
    checkpoint::{
        names::InLayer,
        tensors::{Checkpoint, Naming, Stored, Tensor},
    },
    error::ModelError,
    families::Change,
    spec::Mixer,
};

/// A (rows, cols) matrix assembled from tensors with checked shapes.
#[derive(Clone, Debug)]
pub(in crate::checkpoint) struct Rearranged {
    format: WeightFormat,
    rows: usize,
    cols: usize,
    parts: Vec<Part>,
    how: How,
}

/// A tensor as rows.
#[derive(Clone, Debug)]
struct Part {
    format: WeightFormat,
    rows: usize,
    cols: usize,
    bytes: Bytes,
}

#[derive(Clone, Copy, Debug)]
enum How {
    /// For heads of this many columns, C.
    Paired { head_width: usize },
    /// Each head has `own` rows of keys and `values` rows of values.
    KeysAndValues { own: usize, values: usize },
    /// Of a delta net's heads.
    ByKind(DeltaNetShape),
}

impl Rearranged {
    /// Finds the (rows, cols) matrix called `stem`; none if the file stores it unchanged.
    ///
    /// # Errors
    /// If a tensor is missing or has another shape.
    pub(in crate::checkpoint) fn find(
        checkpoint: &Checkpoint,
        stem: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Option<Self>, ModelError> {
        let name = format!("{stem}.weight");
        let Some((change, layer)) = change_of(checkpoint, &name) else { return Ok(None) };
        let attention = checkpoint.spec.cached();
        let from = |how, parts: Vec<Part>| {
            let first = parts[0].format;
            let is_alike = parts.iter().all(|part| part.format == first);
            let keeps = is_alike && !(matches!(how, How::KeysAndValues { .. }) && first.is_quantised());
            let format = if keeps { first } else { WeightFormat::F32 };
            Ok(Some(Self { format, rows, cols, parts, how }))
        };
        let part = |name: &str, shape: &[usize]| {
            Part::find(checkpoint, &format!("blk.{layer}.{name}.weight"), shape)
        };
        match change {
            Change::MinusExp => Ok(None),
            Change::PairedRows => {
                let (tensor, format) = checkpoint.checked(&name, &[rows, cols])?;
                let how = How::Paired { head_width: attention.head_width };
                from(how, vec![Part { format, rows, cols, bytes: tensor.bytes }])
            }
            _ if checkpoint.tensor(&name).is_ok() => Ok(None),
            Change::KeysAndValues([keys, values]) => {
                let own = attention.head_width - attention.rope.width;
                let (n, wide) = (attention.n_heads, attention.value_width);
                let parts = vec![part(keys, &[n, cols, own])?, part(values, &[n, wide, cols])?];
                from(How::KeysAndValues { own, values: wide }, parts)
            }
            Change::ByKind([qkv, gates]) => {
                let shape = checkpoint.spec.layers.iter().find_map(|layer| match layer.mixer {
                    Mixer::DeltaNet(shape) => Some(shape),
                    Mixer::Attention(_) => None,
                });
                let Some(shape) = shape else { return Ok(None) };
                let (conv, out) = (shape.conv_width(), shape.n_value_heads * shape.value_width);
                from(How::ByKind(shape), vec![part(qkv, &[conv, cols])?, part(gates, &[out, cols])?])
            }
        }
    }

    /// The format it is converted to.
    pub(in crate::checkpoint) fn format(&self) -> WeightFormat {
        self.format
    }

    /// Its rows, one after another.
    pub(in crate::checkpoint) fn convert(&self) -> Vec<u8> {
        match self.how {
            How::Paired { head_width } => self.gather(&paired_rows(self.rows, head_width)),
            How::ByKind(shape) => self.gather(&rows_by_kind(shape)),
            How::KeysAndValues { own, values } => self.keys_and_values(own, values),
        }
    }

    /// The stored bytes, in order, for a fingerprint.
    pub(in crate::checkpoint) fn stored(&self) -> [&[u8]; 3] {
        let part = |at: usize| self.parts.get(at).map_or(&[][..], |part| &part.bytes);
        [part(0), part(1), &[]]
    }

    /// Selects rows by their positions in all parts, one part after another.
    fn gather(&self, order: &[usize]) -> Vec<u8> {
        let each = self.format.matrix_bytes(1, self.cols);
        let all: Vec<u8> = match self.parts.as_slice() {
            [only] => {
                return order.iter().flat_map(|row| &only.bytes[row * each..][..each]).copied().collect();
            }
            parts => parts.iter().flat_map(|part| part.bytes_in(self.format)).collect(),
        };
        order.iter().flat_map(|row| &all[row * each..][..each]).copied().collect()
    }

    fn keys_and_values(&self, own: usize, values: usize) -> Vec<u8> {
        let rank = self.cols;
        let (keys, values_of) = (self.parts[0].values(), self.parts[1].values());
        let mut rows = Vec::with_capacity(self.rows * rank);
        for (keys, values) in keys.chunks_exact(rank * own).zip(values_of.chunks_exact(values * rank)) {
            rows.extend((0..own).flat_map(|row| keys[row..].iter().step_by(own)));
            rows.extend_from_slice(values);
        }
        self.format.quantize(self.rows, rank, &rows)
    }
}

impl Part {
    fn find(checkpoint: &Checkpoint, name: &str, shape: &[usize]) -> Result<Self, ModelError> {
        let missing = || ModelError::MissingTensor { tensor: name.to_owned() };
        let Tensor { file, stored, shape: actual, bytes } =
            checkpoint.tensors.get(name).cloned().ok_or_else(missing)?;
        let Stored::Weights(format) = stored else {
            return Err(ModelError::BadFile { file, reason: format!("{name} holds no weights") });
        };
        if actual != shape {
            return Err(ModelError::Shape {
                tensor: name.to_owned(),
                file,
                actual,
                expected: shape.to_vec(),
            });
        }
        let (cols, rows) = (shape[shape.len() - 1], shape[..shape.len() - 1].iter().product());
        Ok(Self { format, rows, cols, bytes })
    }

    fn values(&self) -> Vec<f32> {
        let view = MatrixView::new(self.format, self.rows, self.cols, &self.bytes);
        view.expect("a GGUF's tensors are as long as their shapes say").dequantize()
    }

    fn bytes_in(&self, format: WeightFormat) -> Vec<u8> {
        match self.format == format {
            true => self.bytes.to_vec(),
            false => self.values().iter().flat_map(|value| value.to_le_bytes()).collect(),
        }
    }
}

/// The vector called `name`, restored from these values in the file.
///
/// # Errors
/// If there is no such vector.
pub(in crate::checkpoint) fn vector(
    checkpoint: &Checkpoint,
    name: &str,
    values: Vec<f32>,
) -> Result<Vec<f32>, ModelError> {
    match change_of(checkpoint, name) {
        Some((Change::PairedRows, _)) => {
            let order = paired_rows(values.len(), checkpoint.spec.cached().head_width);
            Ok(order.iter().map(|row| values[*row]).collect())
        }
        Some((Change::MinusExp, _)) if values.iter().any(|value| *value >= 0.0 || !value.is_finite()) => {
            let reason = format!("{name} must be stored as negative numbers, and one is not");
            Err(ModelError::BadFile { file: checkpoint.name.clone(), reason })
        }
        Some((Change::MinusExp, _)) => {
            Ok(values.iter().map(|value| libm::log(f64::from(-value)) as f32).collect())
        }
        _ => Ok(values),
    }
}

/// How the tensor called `name` is changed, and its layer.
fn change_of<'a>(checkpoint: &Checkpoint, name: &'a str) -> Option<(Change, &'a str)> {
    let Naming::Gguf(form) = checkpoint.naming else { return None };
    let InLayer { layer, part, suffix, .. } = InLayer::of(name)?;
    let change = form.change(&part).or_else(|| form.change(&format!("{part}.{suffix}")))?;
    Some((change, layer))
}

/// Position of each row, if a head's rows `i` and `i + C / 2` are adjacent.
fn paired_rows(rows: usize, head_width: usize) -> Vec<usize> {
    let half = (head_width / 2).max(1);
    let place = |row: usize| {
        let (head, in_head) = (row / (2 * half), row % (2 * half));
        head * 2 * half + 2 * (in_head % half) + in_head / half
    };
    (0..rows).map(place).filter(|row| *row < rows).collect()
}

/// Position of each row of `in_proj_qkvz`: for each key head its q, k, v and z.
fn rows_by_kind(shape: DeltaNetShape) -> Vec<usize> {
    let DeltaNetShape { n_key_heads, n_value_heads, key_width, value_width, .. } = shape;
    let values = n_value_heads / n_key_heads * value_width;
    let all_keys = n_key_heads * key_width;
    let all_values = n_value_heads * value_width;
    let of_head = |head: usize| {
        let run = move |start: usize, width: usize| start + head * width..start + (head + 1) * width;
        run(0, key_width)
            .chain(run(all_keys, key_width))
            .chain(run(2 * all_keys, values))
            .chain(run(2 * all_keys + all_values, values))
    };
    (0..n_key_heads).flat_map(of_head).collect()
}
