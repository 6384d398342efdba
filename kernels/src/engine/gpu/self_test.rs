//! Tests whether a device computes correctly: every kernel against its CPU twin on random data.

use half::f16;

#[cfg(target_arch = "wasm32")]
use self::answers as all_answers;
use super::{GpuDevice, GpuEngine, GpuTuning};
use crate::{
    ExpertFormat, ExpertShape, WeightFormat,
    engine::{
        ActivationFormat, Batch, Call, Computed, CpuEngine, Engine, EngineError, EnginePlan, Halves, Output,
        Pair, Wanted,
    },
    nmse,
    noise::noise,
    simd::PackedExpertShape,
};

/// The result of a self-test.
#[derive(Clone, Debug, PartialEq)]
pub struct SelfTestReport {
    /// Whether everything agreed.
    pub passed: bool,
    /// The worst error with f32 activations; infinite when something failed altogether.
    pub worst_nmse: f64,
    /// One sentence for each format that disagreed or failed; empty when all is well.
    pub detail: String,
}

/// One comparison: a shape, and how many rows each call has. Each call has a slot and a slab of its own.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) shape: ExpertShape,
    pub(super) activations: ActivationFormat,
    pub(super) pairs_of_calls: Vec<u32>,
    pub(super) seed: u64,
}

/// Runs a case for experts of each of these formats with this tuning. Answers must agree within a tolerance with f32
/// activations, and to the bit with int8. Kernels for one row are tested at the `widths` (D, F) of a plan, too.
pub(super) async fn run(
    device: &GpuDevice,
    tuning: GpuTuning,
    activations: ActivationFormat,
    formats: impl IntoIterator<Item = ExpertFormat>,
    #[cfg(not(target_arch = "wasm32"))] widths: [usize; 2],
) -> SelfTestReport {
    let mut report = SelfTestReport { passed: true, worst_nmse: 0.0, detail: String::new() };
    for (seed, format) in (1..).zip(formats) {
        // Widths that are no multiples of a group of 128; full tiles and each size of a partial one.
        let shape = ExpertShape { hidden: 200, inner: 72, format };
        let case = Case { shape, activations, pairs_of_calls: vec![1, 7, 2, 4], seed };
        let failure = match all_answers(
            device,
            tuning,
            &case,
            #[cfg(not(target_arch = "wasm32"))]
            widths,
        )
        .await
        {
            Ok([actual, expected]) if activations == ActivationFormat::Int8 => {
                let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                (bits(&actual) != bits(&expected))
                    .then(|| "with int8 activations they differ from the CPU's bits".to_owned())
            }
            Ok([actual, expected]) => {
                let error = nmse(&actual, &expected);
                report.worst_nmse = report.worst_nmse.max(error);
                let tolerance = tolerance(format.gate_up).max(tolerance(format.down));
                (error > tolerance).then(|| "they differ from the CPU's".to_owned())
            }
            Err(error) => {
                report.worst_nmse = f64::INFINITY;
                Some(error.to_string())
            }
        };
        if let Some(failure) = failure {
            report.passed = false;
            report.detail.push_str(&format!("{format} experts: {failure}. "));
        }
    }
    report
}

/// [`answers`], followed by those of the kernels that an engine with int8 activations and these `widths` has besides: those for one
/// row have loops of known lengths. Each reads rows of one of the widths, so that experts are small.
#[cfg(not(target_arch = "wasm32"))]
async fn all_answers(
    device: &GpuDevice,
    tuning: GpuTuning,
    case: &Case,
    [hidden, inner]: [usize; 2],
) -> Result<[Vec<f32>; 2], EngineError> {
    let mut all = answers(device, tuning, case).await?;
    if case.activations != ActivationFormat::Int8 {
        return Ok(all);
    }
    for (shape, pairs_of_calls) in [
        (ExpertShape { hidden, ..case.shape }, vec![1]),
        (ExpertShape { inner, ..case.shape }, vec![1, 3, 37]),
    ] {
        let case = Case { shape, pairs_of_calls, ..case.clone() };
        for (all, more) in all.iter_mut().zip(answers(device, tuning, &case).await?) {
            all.extend(more);
        }
    }
    Ok(all)
}

/// How much a format may differ from its twin, as NMSE. Both see the same weights. The orders of summation differ, and
/// a device may flush the smallest f16 to zero.
pub(super) fn tolerance(format: WeightFormat) -> f64 {
    match format {
        WeightFormat::F32 | WeightFormat::Bf16 => 1e-7,
        _ => 1e-6,
    }
}

/// The GPU's answer and the CPU's, each followed by the products of gate and up. y is filled with NaN first. A GPU that rounds its
/// answer to f16 otherwise than a CPU has none.
pub(super) async fn answers(
    device: &GpuDevice,
    tuning: GpuTuning,
    case: &Case,
) -> Result<[Vec<f32>; 2], EngineError> {
    let Case { shape, activations, pairs_of_calls, .. } = case;
    let n_calls = pairs_of_calls.len() as u32;
    let n_pairs: u32 = pairs_of_calls.iter().sum();
    let n_rows = pairs_of_calls.iter().copied().max().unwrap_or(1).max(1);
    let plan = EnginePlan {
        shapes: (*shape).into(),
        activations: *activations,
        n_slots: n_calls,
        max_rows: n_rows,
        max_pairs: n_pairs.max(1),
    };
    // One expert in each slab, unless another part of the plan is larger.
    let intermediates = u64::from(n_pairs.max(n_rows)) * (shape.hidden.max(3 * shape.inner) as u64 + 512) * 4
        + u64::from(n_calls) * 256;
    let block_bytes = shape.block_bytes().max(PackedExpertShape::from(*shape).bytes());
    let max_slab_bytes = tuning.max_slab_bytes.min(intermediates.max(block_bytes as u64));
    let gpu = GpuEngine::with_tuning(device, plan, GpuTuning { max_slab_bytes, ..tuning }).await?;
    gpu.fill_output(f32::NAN);
    let batch = batch_of(case, n_rows);
    let mut answers = [Vec::new(), Vec::new()];
    let engines = [Engine::Gpu(Box::new(gpu)), Engine::Cpu(CpuEngine::new(plan)?)];
    for (engine, answer) in engines.iter().zip(&mut answers) {
        for slot in 0..n_calls {
            engine.load(slot, shape.format, &block_of(case, slot)).await?;
        }
        let [in_f32, in_f16] = [false, true].map(|halves| Wanted { products: true, halves });
        let Computed { rows, products } = engine.answer(&batch, in_f32).await?.floats().unwrap_or_default();
        *answer = [rows, products.unwrap_or_default()].concat();
        if let Output::Halves(Halves { rows, products }) = engine.answer(&batch, in_f16).await? {
            let halves = [rows, products.unwrap_or_default()].concat();
            let mut both = answer.iter().zip(halves.as_chunks().0);
            if !both.all(|(value, half)| f16::from_f32(*value).to_le_bytes() == *half) {
                // No answer agrees with none.
                answer.clear();
            }
        }
    }
    Ok(answers)
}

/// Weights as large as in a model: the sum of a row stays near one.
#[inline(never)]
fn block_of(case: &Case, slot: u32) -> Vec<u8> {
    let magnitude = 2.0 / (case.shape.hidden as f32).sqrt();
    case.shape.noise(case.seed ^ u64::from(slot) << 8, magnitude)
}

#[inline(never)]
fn batch_of(case: &Case, n_rows: u32) -> Batch {
    let Case { shape, pairs_of_calls, seed, .. } = case;
    let n_calls = pairs_of_calls.len() as u32;
    let rows = noise(*seed, n_rows as usize * shape.hidden, 1.0);
    let calls = (0..n_calls)
        .rev()
        .zip(pairs_of_calls)
        .map(|(slot, &n)| {
            // Rows are taken from the last one on in large steps, so that they are neither in order nor all used.
            let pair = |i: u32| Pair { row: (n_rows - 1 + i * 5) % n_rows, gate: 1.0 / (1.0 + i as f32) };
            Call { slot, pairs: (0..n).map(pair).collect() }
        })
        .collect();
    Batch { rows, calls }
}
