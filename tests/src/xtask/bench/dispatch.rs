//! `cargo xtask bench dispatch`: measures a layer between router and workers, from plan to sum: with workers that answer at
//! once and compute nothing, or with workers on a device.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use comfy_table::Table;
use moex_protocol::WorkerKey;
use moex_sim::replay::Trace;
use moex_swarm::trace::LayerRecord;

use super::local_workers::LocalWorkers;
use super::overlap::first_token;
use super::{generate, median};
use crate::hub::{Hub, Moex, Signal};
use crate::peer::{Behaviour, Peer, PeerConfig};

/// The command's arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Numbers of workers; the table has a row for each.
    #[arg(long, value_delimiter = ',', default_value = "1,4")]
    workers: Vec<usize>,
    /// The fewest layers.
    #[arg(long, default_value_t = 4_000)]
    layers: u64,
    /// Tokens of prompts whose layers are shown as well, by the row. With several groups in flight a layer waits for others
    /// too: `-- --in-flight 1`.
    #[arg(long)]
    prompt: Option<usize>,
    /// A checkpoint. The default has Qwen3-30B-A3B's rows and choices and a hub with little else to do, so that caches
    /// stay warm: `moex synth --like dispatch`.
    #[arg(long)]
    model: Option<String>,
    /// Hub and workers busy-poll for messages, as `moex serve` and `moex worker` do with this flag.
    #[arg(long)]
    busy_poll: bool,
    /// Native workers on this device, which compute, in place of workers that do not; hub and workers busy-poll as they do by
    /// default. `tab` stands for tabs of Chromium on this machine's own card, `tab-auto` for tabs that choose between it and the CPU
    /// as a visitor's do, `tab-software` for tabs on SwiftShader.
    #[arg(long, conflicts_with = "busy_poll")]
    device: Option<String>,
    /// Further arguments of `moex serve`, after `--`.
    #[arg(last = true)]
    serve: Vec<String>,
}

/// Prompts that are sent.
const N_PROMPTS: usize = 5;
/// Fewer rows are no prompt's.
const PROMPT_ROWS: u32 = 32;

/// A part of a layer: its name, and the times of the layer's record that bound it.
type Part = (&'static str, fn(&LayerRecord) -> u64);

const PARTS: [Part; 6] = [
    ("plan to sum", |layer| layer.replied - layer.started),
    ("engine to plan", |layer| layer.started - layer.asked),
    ("plan, encode, hand to sockets", |layer| layer.sent - layer.started),
    ("sockets and workers", |layer| layer.done.saturating_sub(layer.sent)),
    ("combine", |layer| layer.replied - layer.done),
    ("engine to sum", |layer| layer.replied - layer.asked),
];

/// Prints the medians of the parts and the tail of the whole.
pub(super) async fn run(moex: &Moex, args: &Args) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("dispatch");
    let given = args.model.as_deref().map(Path::new);
    if given.is_none() {
        let out = path.to_str().context("a temporary folder has a plain name")?;
        moex.run(&["synth", "--like", "dispatch", "--out", out])?;
    }
    let model = given.unwrap_or(&path);
    let mut table = Table::new();
    table.set_header(["workers", "part", "p50 us", "p95 us", "p99 us"]);
    let mut of_prompts = Table::new();
    of_prompts.set_header(["workers", "rows", "part", "p50 us a row", "p95 us a row"]);
    for &n_workers in &args.workers {
        let (layers, prompts) =
            measure(moex, args, model, n_workers).await.with_context(|| format!("{n_workers} workers"))?;
        for (name, time) in PARTS {
            let mut times: Vec<u64> = layers.iter().map(time).collect();
            let p50 = median(&mut times);
            let quantile = |percent: usize| times[times.len() * percent / 100].to_string();
            let row = [n_workers.to_string(), name.to_owned(), p50.to_string(), quantile(95), quantile(99)];
            table.add_row(row);
        }
        if args.prompt.is_some() {
            let advice = "try `-- --in-flight 1`, or a longer prompt";
            ensure!(
                !prompts.is_empty(),
                "no layer of {PROMPT_ROWS} rows of a prompt is in the trace: {advice}"
            );
            add_prompts(&mut of_prompts, n_workers, &prompts);
        }
        let bytes = |of: fn(&LayerRecord) -> u64| layers.iter().map(of).sum::<u64>() / layers.len() as u64;
        eprintln!(
            "{n_workers} workers: {} layers; a layer's messages {} bytes out, {} back",
            layers.len(),
            bytes(|layer| layer.attempts.iter().map(|attempt| attempt.bytes_out).sum()),
            bytes(|layer| layer.attempts.iter().map(|attempt| attempt.bytes_back).sum()),
        );
    }
    println!("{table}");
    if args.prompt.is_some() {
        println!("{of_prompts}");
    }
    Ok(())
}

/// Adds the parts of prompts' layers, by the row.
fn add_prompts(table: &mut Table, n_workers: usize, prompts: &[LayerRecord]) {
    let mut rows: Vec<u32> = prompts.iter().map(|layer| layer.rows).collect();
    let rows = median(&mut rows);
    for (name, time) in PARTS {
        let of_row = |layer: &LayerRecord| time(layer) as f64 / f64::from(layer.rows);
        let mut times: Vec<f64> = prompts.iter().map(of_row).collect();
        let (p50, p95) = (median(&mut times), times[times.len() * 95 / 100]);
        let row = [n_workers.to_string(), rows.to_string(), name.to_owned()];
        table.add_row(row.into_iter().chain([p50, p95].map(|time| format!("{time:.1}"))));
    }
}

/// The records of layers that only workers computed: those with one row, and those of prompts.
async fn measure(
    moex: &Moex,
    args: &Args,
    model: &Path,
    n_workers: usize,
) -> Result<(Vec<LayerRecord>, Vec<LayerRecord>)> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("trace.jsonl");
    let trace = path.to_str().context("a temporary folder has a plain name")?;
    // One copy of each block and of each message: this measures one way there and back.
    let model = model.to_str().context("the model has a name that is no text")?;
    let mut serve =
        vec!["--no-hub-compute", "--replicas", "1", "--hedge", "1", "--trace", trace, "--model", model];
    if args.device.is_none() {
        serve.push(if args.busy_poll { "--busy-poll=on" } else { "--busy-poll=off" });
    }
    serve.extend(args.serve.iter().map(String::as_str));
    let hub = moex.hub(&serve)?;
    let (_workers, _peers);
    match &args.device {
        Some(device) => _workers = LocalWorkers::start(moex, &hub, device, n_workers).await?,
        None => {
            _peers = start_peers(&hub, n_workers, args.busy_poll)?;
            hub.wait_for_workers(n_workers).await?;
        }
    }
    while hub.status().await?["totals"]["layers"].as_u64() < Some(args.layers) {
        let (n_tokens, _) = generate(&hub, args.layers.clamp(16, 256) as u32).await?;
        ensure!(n_tokens > 1, "the model says nothing");
    }
    if let Some(n_tokens) = args.prompt {
        for run in 0..N_PROMPTS {
            first_token(&hub, n_tokens, run).await?;
        }
    }
    hub.end(Signal::TERM).await?;
    let trace = Trace::read(BufReader::new(File::open(&path)?))?;
    let mut layers: Vec<LayerRecord> = trace.steps.into_iter().flat_map(|step| step.layers).collect();
    layers.retain(|layer| layer.is_ok);
    let prompts = layers.extract_if(.., |layer| layer.rows >= PROMPT_ROWS).collect();
    layers.retain(|layer| layer.rows == 1);
    // The first layers met cold caches.
    Ok((layers.split_off(layers.len() / 10), prompts))
}

/// Workers that answer at once and compute nothing.
fn start_peers(hub: &Hub, n: usize, busy_poll: bool) -> Result<Vec<Peer>> {
    let peers = (1..=n).map(|n| {
        let (key, memory_budget_bytes) = (WorkerKey(n as u128), 1 << 40);
        let (teraflops, behaviour, renames) = (1.0, Behaviour::Zeros, false);
        let config = PeerConfig { key, memory_budget_bytes, teraflops, behaviour, busy_poll, renames };
        Peer::start(&hub.join_url, config)
    });
    peers.collect()
}
