//! Measures a device's speed at join, natively on an expert of a medium size: with one row the weight bandwidth, which bounds
//! decoding; with many rows the arithmetic, which bounds prompts.

use std::{pin::Pin, time::Duration};

use moex_kernels::engine::{ActivationFormat, Batch, Call, EngineError, EnginePlan, Pair, Wanted};
use moex_kernels::{ExpertShape, WeightFormat};

use super::{Device, noise};

#[cfg(not(target_arch = "wasm32"))]
const SHAPE: ExpertShape = ExpertShape::uniform(512, 384, WeightFormat::Int4G128);
/// One of Qwen3-30B-A3B: a tab chooses between its GPU and its CPU by this, and of smaller experts a GPU takes no longer to
/// compute than to be asked.
#[cfg(target_arch = "wasm32")]
const SHAPE: ExpertShape = ExpertShape::uniform(2048, 768, WeightFormat::Int4G128);
/// Experts of a batch, each with its own weights.
const N_EXPERTS: u32 = 8;
/// Rows for each of them in the measurement of arithmetic.
const MANY_ROWS: u32 = 16;
/// The most runs of each batch, of which the best counts; a run that takes [`LONG`] is the last.
const N_RUNS: usize = 3;
/// A run this long is the last one: the owner of a slow device waits for one such run, not for three.
const LONG: Duration = Duration::from_millis(10);
/// Seconds. Where one row takes longer, many are not measured, and count as so many single ones: their owner waits long enough.
const TOO_LONG: f64 = 0.1;

const MAX_PAIRS: u32 = N_EXPERTS * MANY_ROWS;

/// The measured speeds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Speed {
    /// The median time of waiting for the device.
    pub(super) sync_latency: Duration,
    /// 10^9 bytes of weights read a second, one row to an expert.
    pub(super) gigabytes_per_second: f32,
    /// 10^12 multiplications and additions a second, many rows to an expert.
    pub(super) teraflops: f32,
}

/// Measures with `clock`, which returns the time since any fixed moment. Boxed, so that bundles contain the code once.
pub(super) fn measure<'a>(
    device: &'a Device,
    clock: &'a dyn Fn() -> Duration,
) -> Pin<Box<dyn Future<Output = Result<Speed, EngineError>> + 'a>> {
    Box::pin(measured(device, clock))
}

async fn measured(device: &Device, clock: &dyn Fn() -> Duration) -> Result<Speed, EngineError> {
    // The format that most hubs serve.
    let activations = if device.is_exact() { ActivationFormat::Int8 } else { ActivationFormat::F32 };
    let engine = device.engine(plan(activations)).await?;
    let block = SHAPE.noise(1, 0.1);
    for slot in 0..N_EXPERTS {
        engine.load(slot, SHAPE.format, &block).await?;
    }
    let mut best = [f64::INFINITY; 2];
    let mut of_one = 0.0;
    for (n_rows, best) in [1, MANY_ROWS].into_iter().zip(&mut best) {
        if of_one > TOO_LONG {
            *best = of_one * f64::from(n_rows);
            break;
        }
        let batch = batch(n_rows);
        for _ in 0..N_RUNS {
            let start = clock();
            engine.answer(&batch, Wanted::default()).await?;
            let took = clock().saturating_sub(start);
            *best = best.min(took.as_secs_f64());
            if took >= LONG {
                break;
            }
        }
        of_one = *best;
    }
    let bytes = block.len() as f64 * f64::from(N_EXPERTS);
    let operations = 2.0 * 3.0 * (SHAPE.hidden * SHAPE.inner) as f64 * f64::from(MAX_PAIRS);
    let sync_latency = engine.measure_sync(clock).await?;
    Ok(Speed {
        sync_latency,
        gigabytes_per_second: rate(bytes, best[0], 1e9),
        teraflops: rate(operations, best[1], 1e12),
    })
}

/// The plan of the measured engine.
pub(super) fn plan(activations: ActivationFormat) -> EnginePlan {
    EnginePlan {
        shapes: SHAPE.into(),
        activations,
        n_slots: N_EXPERTS,
        max_rows: MANY_ROWS,
        max_pairs: MAX_PAIRS,
    }
}

/// `n_rows` rows, each for every expert.
fn batch(n_rows: u32) -> Batch {
    let pairs = || (0..n_rows).map(|row| Pair { row, gate: 1.0 }).collect();
    let calls = (0..N_EXPERTS).map(|slot| Call { slot, pairs: pairs() }).collect();
    Batch { rows: noise(2, n_rows as usize * SHAPE.hidden, 1.0), calls }
}

/// The rate in units of `unit` a second; NaN if the clock is too coarse.
fn rate(amount: f64, seconds: f64, unit: f64) -> f32 {
    if seconds > 0.0 { (amount / seconds / unit) as f32 } else { f32::NAN }
}
