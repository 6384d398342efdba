//! Measures a device's speed at join, natively on an expert of a medium size: with one row the weight bandwidth, which bounds
//! decoding; with many rows the arithmetic, which bounds prompts.

use std::{pin::Pin, time::Duration};

use moex_kernels::engine::{ActivationFormat, Batch, Call, EngineError, EnginePlan, Pair, Wanted};
use moex_kernels::{ExpertShape, WeightFormat};

use super::{Device, Engine, noise};

#[cfg(not(target_arch = "wasm32"))]
const SHAPE: ExpertShape = ExpertShape::uniform(512, 384, WeightFormat::Int4G128);
/// One of Qwen3-30B-A3B: a tab chooses between its GPU and its CPU by this, and of smaller experts a GPU takes no longer to
/// compute than to be asked.
#[cfg(target_arch = "wasm32")]
const SHAPE: ExpertShape = ExpertShape::uniform(2048, 768, WeightFormat::Int4G128);
/// Experts that are loaded: of a real model's size more than most caches hold, as the experts of a real model are.
const N_LOADED: u32 = 24;
/// Experts of a batch.
const N_EXPERTS: u32 = 8;
/// The experts of each run. A router takes no heed of which thread holds what: of eight threads the busiest has two or three of
/// them (2.6 on average in a real model), of four it has four.
const ROUTED: [[u32; N_EXPERTS as usize]; 3] =
    [[0, 5, 6, 8, 10, 12, 16, 21], [0, 1, 8, 9, 12, 18, 20, 23], [1, 3, 6, 7, 14, 16, 17, 22]];
/// Rows for each of them in the measurement of arithmetic.
const MANY_ROWS: u32 = 16;
/// The median run counts. A run this long is the last one: the owner of a slow device waits for one such run, not for three.
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
    for slot in 0..N_LOADED {
        engine.load(slot, SHAPE.format, &block).await?;
    }
    let of_one = median(&engine, 1, clock).await?;
    let of_many = if of_one > TOO_LONG {
        of_one * f64::from(MANY_ROWS)
    } else {
        median(&engine, MANY_ROWS, clock).await?
    };
    let bytes = block.len() as f64 * f64::from(N_EXPERTS);
    let operations = 2.0 * 3.0 * (SHAPE.hidden * SHAPE.inner) as f64 * f64::from(MAX_PAIRS);
    let sync_latency = engine.measure_sync(clock).await?;
    Ok(Speed {
        sync_latency,
        gigabytes_per_second: rate(bytes, of_one, 1e9),
        teraflops: rate(operations, of_many, 1e12),
    })
}

/// The median of the seconds that each run's experts take with `n_rows` rows.
async fn median(engine: &Engine, n_rows: u32, clock: &dyn Fn() -> Duration) -> Result<f64, EngineError> {
    let mut times = Vec::new();
    for experts in ROUTED {
        let batch = batch(n_rows, experts);
        let start = clock();
        engine.answer(&batch, Wanted::default()).await?;
        times.push(clock().saturating_sub(start));
        if times.last() >= Some(&LONG) {
            break;
        }
    }
    times.sort_unstable();
    Ok(times[times.len() / 2].as_secs_f64())
}

/// The plan of the measured engine.
pub(super) fn plan(activations: ActivationFormat) -> EnginePlan {
    EnginePlan {
        shapes: SHAPE.into(),
        activations,
        n_slots: N_LOADED,
        max_rows: MANY_ROWS,
        max_pairs: MAX_PAIRS,
    }
}

/// `n_rows` rows, each for every one of `experts`.
fn batch(n_rows: u32, experts: [u32; N_EXPERTS as usize]) -> Batch {
    let pairs = || (0..n_rows).map(|row| Pair { row, gate: 1.0 }).collect();
    let calls = experts.map(|slot| Call { slot, pairs: pairs() }).into();
    Batch { rows: noise(2, n_rows as usize * SHAPE.hidden, 1.0), calls }
}

/// The rate in units of `unit` a second; NaN if the clock is too coarse.
fn rate(amount: f64, seconds: f64, unit: f64) -> f32 {
    if seconds > 0.0 { (amount / seconds / unit) as f32 } else { f32::NAN }
}
