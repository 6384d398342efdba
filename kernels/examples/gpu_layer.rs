//! How long a GPU takes for the experts of a layer: `cargo run --release --example gpu_layer --features gpu -- [PART OF A
//! NAME] [rows=N]... [experts=N] [format=NAME]...`, by default for 1, 8, 64 and 512 rows, which choose among 16 experts, in four
//! formats. At the geometry of Qwen3-30B-A3B, eight experts for each row, with their products, medians: answers in f32, and in f16
//! as they are sent; beside each the wait that any answer takes. Then the parts of a row's time, one after another, and with pauses
//! between rows as a hub makes them, and those of the most rows.

use std::{
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use moex_kernels::{
    ExpertShape, WeightFormat,
    engine::{
        ActivationFormat, Batch, Call, EngineError, EnginePlan, GpuDevice, GpuEngine, GpuSelect, Pair, Stage,
        Wanted,
    },
};

const HIDDEN: usize = 2048;
const INNER: usize = 768;
const CHOSEN: u32 = 8;
const N_RUNS: usize = 41;
/// Batches of one row whose parts are measured, and the pauses between them.
const N_ROWS: usize = 400;
const PAUSES: [Duration; 3] = [Duration::ZERO, Duration::from_micros(150), Duration::from_millis(2)];

/// When each stage of the batch under way was reached.
type Reached = Arc<Mutex<Vec<(Stage, Instant)>>>;

/// The command's arguments.
struct Settings {
    name: Option<String>,
    rows: Vec<u32>,
    /// Experts of a layer that are asked.
    n_experts: u32,
    formats: Vec<WeightFormat>,
}

impl Settings {
    fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn std::error::Error>> {
        let (mut name, mut rows, mut n_experts, mut formats) = (None, Vec::new(), 16, Vec::new());
        for argument in arguments {
            match argument.split_once('=') {
                Some(("rows", n)) => rows.push(n.parse()?),
                Some(("experts", n)) => n_experts = n.parse()?,
                Some(("format", format)) => formats.push(format.parse()?),
                _ => name = Some(argument),
            }
        }
        if rows.is_empty() {
            rows = vec![1, 8, 64, 512];
        }
        if formats.is_empty() {
            formats = vec![WeightFormat::Q4_0, WeightFormat::Q4K, WeightFormat::Q8_0, WeightFormat::Int4G128];
        }
        Ok(Self { name, rows, n_experts, formats })
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut measuring = pin!(measure(Settings::parse(std::env::args().skip(1))?));
    loop {
        if let Poll::Ready(measured) = measuring.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Ok(measured?);
        }
        thread::yield_now();
    }
}

async fn measure(settings: Settings) -> Result<(), EngineError> {
    let Settings { name, rows, n_experts, formats } = settings;
    let device = GpuDevice::open(name.map_or(GpuSelect::Auto, GpuSelect::Named)).await?;
    println!("{}", device.info().adapter);
    let reached = Reached::default();
    let noted = reached.clone();
    device.observe(move |stage| noted.lock().expect("nobody panics").push((stage, Instant::now())));
    for format in formats {
        for activations in [ActivationFormat::Int8, ActivationFormat::F32] {
            let shape = ExpertShape::uniform(HIDDEN, INNER, format);
            let (shapes, max_rows) = (shape.into(), rows.iter().copied().max().unwrap_or(1));
            let max_pairs = max_rows * CHOSEN;
            let plan = EnginePlan { shapes, activations, n_slots: n_experts, max_rows, max_pairs };
            let engine = GpuEngine::new(&device, plan).await?;
            for slot in 0..n_experts {
                engine.load(slot, shape.format, &shape.noise(u64::from(slot), 0.1)).await?;
            }
            let start = Instant::now();
            let sync = engine.measure_sync(&|| start.elapsed()).await?;
            print!("{format} {activations}: an empty answer {sync:?}");
            for &n_rows in &rows {
                let batch = batch(n_rows, n_experts);
                let [floats, halves] =
                    [median(&engine, &batch, false).await?, median(&engine, &batch, true).await?];
                print!(", {n_rows} rows {floats:?}, in f16 {halves:?}");
            }
            println!();
            for pause in PAUSES {
                let parts = parts(&engine, &reached, &batch(1, n_experts), (N_ROWS, pause)).await?;
                println!("    {pause:?} apart: {parts}");
            }
            let most = batch(max_rows, n_experts);
            println!(
                "    {max_rows} rows: {}",
                parts(&engine, &reached, &most, (N_RUNS, Duration::ZERO)).await?
            );
        }
    }
    Ok(())
}

/// The medians of the parts of a batch's time in so many runs, in words.
async fn parts(
    engine: &GpuEngine,
    reached: &Reached,
    batch: &Batch,
    (n_runs, pause): (usize, Duration),
) -> Result<String, EngineError> {
    let mut rows = Vec::new();
    for _ in 0..n_runs {
        reached.lock().expect("nobody panics").clear();
        let start = Instant::now();
        while start.elapsed() < pause {}
        let mut last = Instant::now();
        engine.answer(batch, Wanted { products: true, halves: true }).await?;
        let took = last.elapsed();
        let mut row = Vec::new();
        for (stage, at) in reached.lock().expect("nobody panics").iter() {
            row.push((format!("{stage:?}"), at.duration_since(last)));
            last = *at;
        }
        row.push(("all".to_owned(), took));
        rows.push(row);
    }
    let median = |part: usize| {
        let mut times: Vec<_> = rows.iter().map(|row| row[part].1).collect();
        times.sort_unstable();
        format!("{} {:.1?}", rows[0][part].0, times[n_runs / 2])
    };
    Ok((0..rows[0].len()).map(median).collect::<Vec<_>>().join(", "))
}

async fn median(engine: &GpuEngine, batch: &Batch, halves: bool) -> Result<Duration, EngineError> {
    let mut times = Vec::new();
    for _ in 0..N_RUNS {
        let start = Instant::now();
        engine.answer(batch, Wanted { products: true, halves }).await?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(times[N_RUNS / 2])
}

/// `n_rows` rows, each for eight of the experts.
fn batch(n_rows: u32, n_experts: u32) -> Batch {
    let pairs = |slot: u32| {
        let asks = move |row: &u32| (slot + n_experts - row % n_experts) % n_experts < CHOSEN;
        (0..n_rows).filter(asks).map(|row| Pair { row, gate: 0.125 }).collect()
    };
    let calls = (0..n_experts).map(|slot| Call { slot, pairs: pairs(slot) }).collect();
    let rows = (0..n_rows as usize * HIDDEN).map(|i| (i % 97) as f32 / 48.0 - 1.0).collect();
    Batch { rows, calls }
}
