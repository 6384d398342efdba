//! The hub's forward pass on a GPU, dispatch by dispatch: `cargo xtask bench gpu`.
//!
//! `gpu_pass [adapter=PART OF A NAME] [formats=q4_0,q4_K_M] [layers=6] [kv=f16] [depth=2048] [prompt=512] [users=0] [steps=50]
//! [mib=1024] [resident=THREADS]`: on a model of noise with the geometry of Qwen3-30B-A3B, tokens/s and the time of a layer, by the
//! difference between models of so many layers and of two; then, for each kernel of a decode step, of a prompt, and of a step of so many
//! users at the depth, its time, the weights and keys it reads, how much of the memory's speed that is, and its threads, of as many as
//! the card keeps resident if that is said. The memory's speed is that of reading so many MiB in the same run.

mod model;

use std::{
    error::Error,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use model::{Formats, Model};
use moex_kernels::{
    engine::{DispatchTime, GpuClock, GpuDevice, GpuPass, GpuSelect, ResidentExperts, Stamps},
    graph::{DeviceError, DeviceOutput, DevicePass, KvPool, KvTable, LayerRouting, Span, WantedLogits},
    simd::{KvFormat, Processor, Simd},
};

/// Rows that a pass computes at once.
const AT_ONCE: usize = 512;
/// How long a pass runs before it is measured: cards that were idle take as long to raise their clocks.
const WARM_UP: Duration = Duration::from_secs(1);
/// Layers of the smaller model.
const FEW_LAYERS: usize = 2;

/// The command's arguments.
struct Settings {
    adapter: Option<String>,
    formats: Vec<Formats>,
    n_layers: usize,
    kv: KvFormat,
    depth: usize,
    prompt: usize,
    n_users: usize,
    n_steps: usize,
    read_bytes: u64,
    resident_threads: Option<u32>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let settings = Settings::parse(std::env::args().skip(1))?;
    let device = open(&settings)?;
    let clock = GpuClock::new(&device).ok_or("this GPU has no timestamps")?;
    let rate = clock.read_rate(settings.read_bytes)?;
    println!("{}: reads {:.0} GB/s", device.info().adapter, rate * 1e-9);
    println!("A dispatch that waits for the one before takes {:.2} us at least", clock.empty_dispatch()?);
    let n_threads = thread::available_parallelism().map_or(1, usize::from);
    let processor = Arc::new(Processor::new(Simd::detect(), n_threads));
    let most_bytes = device.info().limits["maxStorageBufferBindingSize"];
    for formats in &settings.formats {
        let mut runs = Vec::new();
        for n_layers in [FEW_LAYERS, settings.n_layers] {
            let model =
                Model::new(*formats, n_layers, (settings.kv, settings.longest()), most_bytes, &processor)?;
            runs.push(Run::new(&settings, &device, &model)?.measure(&settings, &clock)?);
        }
        let [few, many] = [&runs[0], &runs[1]];
        report(formats.name, &settings, (few, many), rate);
    }
    Ok(())
}

fn open(settings: &Settings) -> Result<GpuDevice, Box<dyn Error>> {
    let select = settings.adapter.clone().map_or(GpuSelect::Auto, GpuSelect::Named);
    let mut opening = pin!(GpuDevice::open_timed(select));
    loop {
        if let Poll::Ready(opened) = opening.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Ok(opened?);
        }
        thread::yield_now();
    }
}

impl Settings {
    fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut settings = Self {
            adapter: None,
            formats: Formats::ALL.to_vec(),
            n_layers: 6,
            kv: KvFormat::F16,
            depth: 2048,
            prompt: 512,
            n_users: 0,
            n_steps: 50,
            read_bytes: 1 << 30,
            resident_threads: None,
        };
        for argument in arguments {
            let (name, value) = argument.split_once('=').ok_or("arguments are NAME=VALUE")?;
            match name {
                "adapter" => settings.adapter = Some(value.to_owned()),
                "formats" => {
                    settings.formats = Formats::ALL
                        .into_iter()
                        .filter(|of| value.split(',').any(|v| v == of.name))
                        .collect();
                }
                "layers" => settings.n_layers = value.parse()?,
                "kv" => settings.kv = value.parse()?,
                "depth" => settings.depth = value.parse()?,
                "prompt" => settings.prompt = value.parse()?,
                "users" => settings.n_users = value.parse()?,
                "steps" => settings.n_steps = value.parse()?,
                "mib" => settings.read_bytes = value.parse::<u64>()? << 20,
                "resident" => settings.resident_threads = Some(value.parse()?),
                _ => return Err(format!("no argument is called {name}").into()),
            }
        }
        Ok(settings)
    }

    fn longest(&self) -> usize {
        self.depth.max(self.prompt) + self.n_steps + 1
    }
}

/// A pass that is measured.
struct Run {
    pass: GpuPass,
    kv: KvPool,
    table: KvTable,
    out: DeviceOutput,
    n_layers: usize,
}

/// What one pass took.
struct Measured {
    n_layers: usize,
    /// Seconds of a token at the first positions, and at the depth.
    tokens: [f64; 2],
    /// Seconds of the prompt.
    prompt: f64,
    /// Medians of a step at the first positions, in microseconds on the GPU, without and with timestamps after each dispatch.
    gpu_micros: [f64; 2],
    /// Medians of each dispatch at the first positions, and at the depth.
    dispatches: [Vec<DispatchTime>; 2],
    /// Those of the prompt's first rows, as many as are computed at once.
    prompt_dispatches: Vec<DispatchTime>,
    /// Microseconds of a step of all users on the GPU, and those of each dispatch.
    users: Option<(f64, Vec<DispatchTime>)>,
}

impl Run {
    fn new(settings: &Settings, device: &GpuDevice, model: &Model) -> Result<Self, Box<dyn Error>> {
        let all = ResidentExperts::first(usize::MAX);
        let layout = model.kv_layout();
        let devices = std::slice::from_ref(device);
        let pass = GpuPass::new(devices, &model.program, (&model.experts, all), &layout)?;
        let (n_layers, mut table) = (layout.windows.len(), KvTable::default());
        let mut kv = pass.kv_pool(layout, usize::MAX, 1);
        if !kv.reserve(&mut table, settings.longest()) {
            return Err("there is no memory for keys and values".into());
        }
        // As a greedy text does.
        let out = DeviceOutput { n_best: 2, ..DeviceOutput::default() };
        Ok(Self { pass, kv, table, out, n_layers })
    }

    fn measure(mut self, settings: &Settings, clock: &GpuClock) -> Result<Measured, Box<dyn Error>> {
        let depths = [0, settings.depth];
        // Keys and values up to the depth, every kernel's first run, and the clock that a card reaches under load.
        let started = Instant::now();
        while started.elapsed() < WARM_UP {
            self.prompt(settings.depth.max(settings.prompt))?;
            self.tokens(0, settings.n_steps)?;
        }
        let prompt = (0..3).map(|_| self.prompt(settings.prompt)).collect::<Result<Vec<_>, _>>()?;
        let (mut tokens, mut gpu_micros, mut dispatches) =
            ([f64::MAX; 2], [0.0; 2], [Vec::new(), Vec::new()]);
        for (index, depth) in depths.into_iter().enumerate() {
            for _ in 0..3 {
                tokens[index] = tokens[index].min(self.tokens(depth, settings.n_steps)?);
            }
            let [ends, each] = [Stamps::Ends, Stamps::Each]
                .map(|stamps| self.timed(clock, stamps, (depth, 1, 1), settings.n_steps));
            let (ends, each) = (ends?, each?);
            if index == 0 {
                gpu_micros = [ends.0, each.0];
            }
            dispatches[index] = each.1;
        }
        let prompt = prompt.into_iter().fold(f64::MAX, f64::min);
        let rows = settings.prompt.min(AT_ONCE);
        let (_, prompt_dispatches) = self.timed(clock, Stamps::Each, (0, rows, 1), 5)?;
        let of_users = (settings.depth, 1, settings.n_users);
        let users = match settings.n_users {
            0 => None,
            _ => {
                let (whole, _) = self.timed(clock, Stamps::Ends, of_users, settings.n_steps)?;
                Some((whole, self.timed(clock, Stamps::Each, of_users, settings.n_steps)?.1))
            }
        };
        let n_layers = self.n_layers;
        Ok(Measured { n_layers, tokens, prompt, gpu_micros, dispatches, prompt_dispatches, users })
    }

    fn prompt(&mut self, n: usize) -> Result<f64, Box<dyn Error>> {
        let ids: Vec<u32> = (0..n).map(id).collect();
        let started = Instant::now();
        let spans = [Span { ids: &ids, start: 0, table: &self.table, wanted: WantedLogits::Last }];
        self.pass.step(&spans, &self.kv, &mut nowhere, &mut self.out)?;
        Ok(started.elapsed().as_secs_f64())
    }

    /// Seconds of a token.
    fn tokens(&mut self, depth: usize, n: usize) -> Result<f64, Box<dyn Error>> {
        let started = Instant::now();
        for position in depth..depth + n {
            let ids = [id(position)];
            let spans = [Span { ids: &ids, start: position, table: &self.table, wanted: WantedLogits::Last }];
            self.pass.step(&spans, &self.kv, &mut nowhere, &mut self.out)?;
        }
        Ok(started.elapsed().as_secs_f64() / n as f64)
    }

    /// Medians of a step of so many rows of so many sequences, and of its dispatches. Sequences share their keys and values, and have
    /// tokens of their own, as experts are chosen by.
    fn timed(
        &mut self,
        clock: &GpuClock,
        stamps: Stamps,
        (depth, n_rows, n_sequences): (usize, usize, usize),
        n: usize,
    ) -> Result<(f64, Vec<DispatchTime>), Box<dyn Error>> {
        let (mut whole, mut dispatches) = (Vec::new(), Vec::new());
        let rows = |sequence: usize| (0..n_rows).map(|row| id(depth + sequence * n_rows + row)).collect();
        let ids: Vec<Vec<u32>> = (0..n_sequences).map(rows).collect();
        for _ in 0..n {
            let span = |ids| Span { ids, start: depth, table: &self.table, wanted: WantedLogits::Last };
            let spans: Vec<_> = ids.iter().map(|ids| span(&ids[..])).collect();
            let time = self.pass.timed_step((clock, stamps), &spans, &self.kv, &mut self.out)?;
            whole.push(time.micros);
            dispatches.push(time.dispatches);
        }
        let medians = (0..dispatches[0].len()).map(|index| {
            let micros = median(dispatches.iter().map(|step| step[index].micros).collect());
            DispatchTime { micros, ..dispatches[0][index] }
        });
        Ok((median(whole), medians.collect()))
    }
}

fn id(position: usize) -> u32 {
    ((position * 7919 + 17) % model::LEAST_VOCABULARY) as u32
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn report(name: &str, settings: &Settings, (few, many): (&Measured, &Measured), rate: f64) {
    let n = (many.n_layers - few.n_layers) as f64;
    let of_layer = |of: &dyn Fn(&Measured) -> f64| (of(many) - of(few)) / n;
    println!("\n{name}, {} layers", many.n_layers);
    for (index, depth) in [0, settings.depth].into_iter().enumerate() {
        println!(
            "  at depth {depth}: {:.0} tokens/s, {:.1} us a layer",
            1.0 / many.tokens[index],
            1e6 * of_layer(&|m| m.tokens[index])
        );
    }
    println!(
        "  prompt of {}: {:.0} tokens/s, {:.2} us a token and layer",
        settings.prompt,
        settings.prompt as f64 / many.prompt,
        1e6 * of_layer(&|m| m.prompt) / settings.prompt as f64
    );
    println!("  dispatches a layer: {:.1}", of_layer(&|m| m.dispatches[0].len() as f64));
    println!(
        "  a step: {:.0} us, of which {:.0} on the GPU; timestamps, of each dispatch below, take {:.1} us each",
        1e6 * many.tokens[0],
        many.gpu_micros[0],
        (many.gpu_micros[1] - many.gpu_micros[0]) / many.dispatches[0].len() as f64
    );
    for (index, depth) in [0, settings.depth].into_iter().enumerate() {
        println!("  at depth {depth}:");
        table(&many.dispatches[index], many.n_layers, settings.resident_threads, rate);
    }
    println!("  a prompt of {} (weights are counted once for a row):", settings.prompt.min(AT_ONCE));
    table(&many.prompt_dispatches, many.n_layers, settings.resident_threads, rate);
    if let Some((micros, dispatches)) = &many.users {
        let (n, depth) = (settings.n_users, settings.depth);
        println!("  {n} users at depth {depth}, {micros:.0} us on the GPU:");
        table(dispatches, many.n_layers, settings.resident_threads, rate);
    }
}

/// A row for each kind of dispatch: how many a layer, medians of its time, bytes, bandwidth, threads.
fn table(dispatches: &[DispatchTime], n_layers: usize, resident: Option<u32>, rate: f64) {
    let mut kinds: Vec<(&DispatchTime, Vec<f64>)> = Vec::new();
    for dispatch in dispatches {
        let is_it = |of: &DispatchTime| {
            (of.kernel, of.of, of.bytes) == (dispatch.kernel, dispatch.of, dispatch.bytes)
        };
        match kinds.iter_mut().find(|(of, _)| is_it(of)) {
            Some((_, times)) => times.push(dispatch.micros),
            None => kinds.push((dispatch, vec![dispatch.micros])),
        }
    }
    println!(
        "  {:<16}{:<20}{:>8}{:>10}{:>12}{:>12}{:>10}{:>16}{:>10}",
        "kernel", "of", "a layer", "us", "us a layer", "KB", "of memory", "threads", "resident"
    );
    for (of, times) in kinds {
        let (count, micros) = (times.len() as f64 / n_layers as f64, median(times));
        let share = of.bytes as f64 / (micros * 1e-6) / rate;
        let threads = of.n_workgroups * of.n_threads;
        let resident = resident
            .map_or("-".to_owned(), |all| format!("{:.0} %", 100.0 * f64::from(threads) / f64::from(all)));
        println!(
            "  {:<16}{:<20}{count:>8.2}{micros:>10.2}{:>12.2}{:>12.1}{:>8.0} %{:>16}{resident:>10}",
            of.kernel,
            of.of,
            count * micros,
            of.bytes as f64 / 1e3,
            100.0 * share,
            format!("{} x {}", of.n_workgroups, of.n_threads),
        );
    }
}

/// All experts are on the GPU.
fn nowhere(_: &LayerRouting, _: &[f32], _: &mut [f32]) -> Result<(), DeviceError> {
    Err(DeviceError::Experts)
}
