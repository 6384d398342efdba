//! Compares logits with a reference, row by row.

use std::{fmt::Write, path::Path};

use anyhow::{Context, ensure};
use bytes::Bytes;
use moex_kernels::nmse;
use safetensors::{Dtype, SafeTensors};

use moex_model::ModelSpec;
use moex_model::mapped::Mapped;

/// A reference, and the rows compared with it so far.
pub(super) struct Against {
    name: String,
    /// f32 (T, V).
    logits: Bytes,
    /// (MoE layers)(T, K), if the reference has them for every layer; experts of a row in ascending order.
    choices: Option<Vec<Vec<u16>>>,
    rows: Vec<Row>,
}

/// A compared row.
#[derive(Clone, Copy)]
struct Row {
    nmse: f64,
    /// Sum of the squared reference logits.
    power: f64,
}

impl Against {
    /// Opens a reference for `n_rows` rows.
    ///
    /// # Errors
    /// If it cannot be read or holds logits of another shape or type.
    pub(super) fn open(path: &Path, spec: &ModelSpec, n_rows: usize) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        let file = Mapped::open(path).with_context(|| name.clone())?.bytes();
        let tensors =
            SafeTensors::deserialize(&file).with_context(|| format!("{name}: no safetensors file"))?;
        let logits = tensors.tensor("logits").with_context(|| name.clone())?;
        ensure!(
            logits.dtype() == Dtype::F32 && logits.shape() == [n_rows, spec.vocab],
            "{name}: its logits are {:?} {:?}, those of the given ids F32 {:?}",
            logits.dtype(),
            logits.shape(),
            [n_rows, spec.vocab]
        );
        let k = spec.moe.n_chosen;
        let choices = spec.sparse_layers().map(|layer| {
            let indices = tensors.tensor(&format!("layer{layer}.topk_indices")).ok()?;
            let fits = indices.dtype() == Dtype::I32 && indices.shape() == [n_rows, k];
            let indices =
                fits.then(|| indices.data().as_chunks().0.iter().map(|i| i32::from_le_bytes(*i)))?;
            Some(sorted(indices.map(|expert| u16::try_from(expert).unwrap_or(u16::MAX)).collect(), k))
        });
        Ok(Self { choices: choices.collect(), logits: file.slice_ref(logits.data()), name, rows: Vec::new() })
    }

    /// Compares the next rows (t, V).
    pub(super) fn add(&mut self, rows: &[f32], vocab: usize) {
        for row in rows.chunks_exact(vocab) {
            let expected = &self.logits[self.rows.len() * vocab * 4..][..vocab * 4];
            let expected: Vec<f32> = expected.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
            let power = expected.iter().map(|x| f64::from(*x).powi(2)).sum();
            self.rows.push(Row { nmse: nmse(row, &expected), power });
        }
    }

    /// Returns the report once all rows are added; `chosen` are the router's choices (L)(T, K).
    pub(super) fn report(&self, spec: &ModelSpec, chosen: &[Vec<u16>]) -> String {
        let mut text = format!("{} rows against {}: {}\n", self.rows.len(), self.name, measures(&self.rows));
        let k = spec.moe.n_chosen;
        let Some(choices) = &self.choices else {
            writeln!(text, "the reference has no router choices of every layer").expect("text has room");
            return text;
        };
        let ours: Vec<_> = spec.sparse_layers().map(|layer| sorted(chosen[layer].clone(), k)).collect();
        let alike = |t: usize| ours.iter().zip(choices).all(|(a, b)| a[t * k..][..k] == b[t * k..][..k]);
        let rows = self.rows.iter().enumerate().filter(|(t, _)| alike(*t)).map(|(_, row)| *row);
        let rows: Vec<Row> = rows.collect();
        let n = rows.len();
        writeln!(text, "{n} of them chose the same experts in every layer: {}", measures(&rows))
            .expect("text has room");
        text
    }
}

fn measures(rows: &[Row]) -> String {
    let mut errors: Vec<f64> = rows.iter().map(|row| row.nmse).collect();
    errors.sort_by(f64::total_cmp);
    let Some(most) = errors.last() else { return "no row".to_owned() };
    let power: f64 = rows.iter().map(|row| row.power).sum();
    let error: f64 = rows.iter().map(|row| row.nmse * row.power).sum();
    let median = errors[errors.len() / 2];
    format!("NMSE {:.2e}; by rows {median:.2e} at the median, {most:.2e} at most", error / power)
}

/// (T, K), each row in ascending order.
fn sorted(mut choices: Vec<u16>, k: usize) -> Vec<u16> {
    choices.chunks_mut(k).for_each(<[u16]>::sort_unstable);
    choices
}
