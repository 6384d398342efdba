//! Checks the answer for one row.

use super::{
    N_ANSWER, N_PRODUCTS, Projection, TOLERANCE,
    sums::{dots, f16_rounding, norm},
};
use crate::{
    ExpertKind, WeightFormat, cpu,
    engine::ActivationFormat,
    quant::Activations,
    simd::{self, Simd},
};

/// Rows in the precision that a format's weights meet: rounded to int8 and back, or unchanged.
#[derive(Clone, Debug, Default)]
pub struct KernelRows {
    rounded: Activations,
    /// (R, D).
    rows: Vec<f32>,
    /// (R): their lengths.
    norms: Vec<f32>,
}

impl KernelRows {
    /// Fills with `rows` (R, `n_cols`), in the precision of experts whose gate and up are in `format`.
    ///
    /// # Panics
    /// If these are not whole rows.
    pub fn fill(
        &mut self,
        simd: Simd,
        activations: ActivationFormat,
        format: WeightFormat,
        n_cols: usize,
        rows: &[f32],
    ) {
        let Self { rounded, rows: met, norms } = self;
        met.clear();
        met.extend_from_slice(rows);
        if activations == ActivationFormat::Int8 {
            simd::fill_alone(simd, rounded, format, n_cols, rows);
            met.chunks_exact_mut(n_cols.max(1)).enumerate().for_each(|(t, row)| rounded.dequantize(t, row));
        }
        norms.clear();
        norms.extend(met.chunks_exact(n_cols.max(1)).map(|row| norm(simd, row)));
    }

    /// R.
    pub fn n_rows(&self) -> usize {
        self.norms.len()
    }

    /// Row `t` (D), and its length.
    pub(super) fn row(&self, t: usize) -> (&[f32], f32) {
        let n_cols = self.rows.len() / self.norms.len().max(1);
        (&self.rows[t * n_cols..][..n_cols], self.norms[t])
    }
}

/// A worker's answer for one row.
#[derive(Clone, Copy, Debug)]
pub struct AnsweredRow<'a> {
    /// The row's index in [`KernelRows`].
    pub row: usize,
    /// The gate that the answer is to be multiplied by.
    pub gate: f32,
    /// (2F): the products with gate, then those with up.
    pub products: &'a [f32],
    /// (D): `gate * expert(row)`, as it came over the wire.
    pub answer: &'a [f32],
    /// How far rounding to the wire's number format may have moved the answer, as a length.
    pub wire_rounding: f32,
}

/// Which part of an answered row is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckFailure {
    /// The products are not those of the row with gate and up.
    Products,
    /// The answer does not follow from the products.
    Answer,
}

/// Working memory of a check. It grows to the widest expert, then allocates no more.
#[derive(Clone, Debug, Default)]
pub struct CheckScratch {
    /// (F).
    h: Vec<f32>,
    /// (F).
    rounded: Activations,
}

impl Projection {
    /// Checks a worker's answer for one of `rows`, which are filled for this expert's format. The module's doc says
    /// which errors it finds.
    ///
    /// # Errors
    /// The part that is wrong; values that are not finite are wrong too.
    ///
    /// # Panics
    /// If there is no such row, or a length is not the expert's.
    pub fn check(
        &self,
        simd: Simd,
        activations: ActivationFormat,
        rows: &KernelRows,
        answered: &AnsweredRow<'_>,
        scratch: &mut CheckScratch,
    ) -> Result<(), CheckFailure> {
        let (x, x_norm) = rows.row(answered.row);
        let said: [f32; N_PRODUCTS] = dots(simd, &self.secrets.products, answered.products);
        let true_: [f32; N_PRODUCTS] = dots(simd, &self.gate_up, x);
        let of_sums = self.norms[0] * x_norm * rounding(self.format.gate_up, activations, x.len());
        let is_f16 = activations == ActivationFormat::Int8 && self.format.gate_up.is_quantised();
        let of_products = if is_f16 { f16_rounding(simd, answered.products) } else { 0.0 };
        let allowed = TOLERANCE * (of_sums + of_products);
        if !are_near(said, true_, allowed) {
            return Err(CheckFailure::Products);
        }
        let CheckScratch { h, rounded } = scratch;
        self.activate(simd, activations, answered.products, h);
        if activations == ActivationFormat::Int8 {
            simd::fill_alone(simd, rounded, self.format.down, h.len(), h);
            rounded.dequantize(0, h);
        }
        let said: [f32; N_ANSWER] = dots(simd, &self.secrets.answer, answered.answer);
        let mut true_: [f32; N_ANSWER] = dots(simd, &self.down, h);
        if let Some(biases) = &self.biases {
            true_.iter_mut().zip(biases.down).for_each(|(sum, bias)| *sum += bias);
        }
        let of_sums = self.norms[1] * norm(simd, h) * rounding(self.format.down, activations, h.len());
        let allowed = TOLERANCE * (answered.wire_rounding + answered.gate.abs() * of_sums);
        match are_near(said, true_.map(|sum| answered.gate * sum), allowed) {
            true => Ok(()),
            false => Err(CheckFailure::Answer),
        }
    }

    /// Computes the input of down, `h` (F), from the products (2F), as every worker does.
    fn activate(&self, simd: Simd, activations: ActivationFormat, products: &[f32], h: &mut Vec<f32>) {
        let (gate, up) = products.split_at(products.len() / 2);
        h.clear();
        h.extend_from_slice(gate);
        let biases = self.biases.as_ref().map(|biases| &biases.gate_up);
        match (activations, biases) {
            (ActivationFormat::Int8, biases) => simd::activate(simd, self.format.kind, h, up, biases),
            (ActivationFormat::F32, None) => cpu::silu_mul(h, up),
            (ActivationFormat::F32, Some([of_gate, of_up])) => {
                let mut up = up.to_vec();
                cpu::add(h, &of_gate[..up.len()]);
                cpu::add(&mut up, &of_up[..h.len()]);
                match self.format.kind {
                    ExpertKind::Silu => cpu::silu_mul(h, &up),
                    ExpertKind::ClampedSwiglu => cpu::clamped_swiglu(h, &up),
                }
            }
        }
    }
}

/// Whether each of the sums differs from its truth by no more than is allowed. A value that is not finite makes the sums or what is
/// allowed infinite, or NaN: neither is near anything.
fn are_near<const K: usize>(said: [f32; K], true_: [f32; K], allowed: f32) -> bool {
    allowed.is_finite() && said.iter().zip(true_).all(|(said, true_)| (said - true_).abs() <= allowed)
}

/// A bound of the error of an honest sum of `n` products, relative to the lengths of the two factors.
fn rounding(format: WeightFormat, activations: ActivationFormat, n: usize) -> f32 {
    /// Half a unit in the last place of an f32.
    const UNIT: f32 = 1.0 / (1 << 24) as f32;
    /// Minimums are multiplied with sums of columns, in i16. This bounds their rounding: half a step of a block's
    /// largest sum in each, for a row whose columns are of like size, and minimums twice as long as the weights.
    const MINIMUMS: f32 = 1.0 / (1 << 12) as f32;
    let rounds_sums = activations == ActivationFormat::Int8
        && format.geometry().is_some_and(|geometry| geometry.has_minimums);
    UNIT * ((n as f32 / 4.0).sqrt() + 4.0) + if rounds_sums { MINIMUMS / (n as f32).sqrt() } else { 0.0 }
}
