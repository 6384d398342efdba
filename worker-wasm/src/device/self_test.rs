//! Tests whether the CPU kernels compute correctly on this processor: one expert against the formula in f64.
//!
//! `moex_kernels` checks the GPU's kernels against the CPU's; that check relies on this one.

use moex_kernels::engine::{ActivationFormat, Batch, Call, CpuEngine, EngineError, EnginePlan, Pair};
use moex_kernels::{ExpertShape, ExpertView, MatrixView, WeightFormat, nmse};
use moex_protocol::SelfTest;

use super::noise;

/// The rounding of sums of a few hundred f32 products stays orders of magnitude below this; a wrong kernel does not.
const TOLERANCE_NMSE: f64 = 1e-9;
/// Rounding to int8 costs about 1e-4.
const INT8_TOLERANCE_NMSE: f64 = 1e-3;
/// D: more than one int4 group, and no multiple of one.
const HIDDEN: usize = 200;
/// F.
const INNER: usize = 136;
const GATE: f32 = 0.37;

pub(super) fn cpu() -> SelfTest {
    let exact = [WeightFormat::Int4G128, WeightFormat::F16]
        .map(|format| (format, error_of(format, ActivationFormat::F32)))
        .into_iter()
        .max_by(|(_, a), (_, b)| a.total_cmp(b));
    let (format, worst_nmse) = exact.expect("there are two formats");
    let rounded = error_of(WeightFormat::Int4G128, ActivationFormat::Int8);
    let is_near = rounded <= INT8_TOLERANCE_NMSE;
    let detail = if is_near { format!("{format} weights") } else { "int8 activations".to_owned() };
    SelfTest { passed: worst_nmse <= TOLERANCE_NMSE && is_near, worst_nmse, detail }
}

/// NMSE of one expert's answer with weights in `format`; infinite if there is none.
fn error_of(format: WeightFormat, activations: ActivationFormat) -> f64 {
    let shape = ExpertShape::uniform(HIDDEN, INNER, format);
    let block = shape.noise(1, 0.1);
    let row = noise(4, HIDDEN, 1.0); // (D)
    let answer = || -> Result<Vec<f32>, EngineError> {
        let engine = CpuEngine::new(EnginePlan {
            shapes: shape.into(),
            activations,
            n_slots: 1,
            max_rows: 1,
            max_pairs: 1,
        })?;
        engine.load(0, shape.format, &block)?;
        let call = Call { slot: 0, pairs: vec![Pair { row: 0, gate: GATE }] };
        engine.compute(&Batch { rows: row.clone(), calls: vec![call] })
    };
    match (answer(), shape.view(&block)) {
        (Ok(answer), Ok(expert)) => nmse(&answer, &reference(&expert, &row)),
        _ => f64::INFINITY,
    }
}

/// `GATE * down(silu(gate(x)) * up(x))` in f64, (D).
fn reference(expert: &ExpertView<'_>, x: &[f32]) -> Vec<f32> {
    let x: Vec<f64> = x.iter().copied().map(f64::from).collect();
    let (gate, up) = (product(&expert.gate, &x), product(&expert.up, &x));
    let h: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect(); // (F)
    product(&expert.down, &h).iter().map(|y| (f64::from(GATE) * y) as f32).collect()
}

fn product(matrix: &MatrixView<'_>, x: &[f64]) -> Vec<f64> {
    let weights = matrix.dequantize();
    let dot = |row: &[f32]| row.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum();
    weights.chunks_exact(matrix.cols()).map(dot).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_processor_passes() {
        let result = cpu();
        assert!(result.passed && result.worst_nmse > 0.0, "{result:?}");
    }
}
