//! `cargo xtask bench swarm`: measures the cost of a swarm, and from where on it pays, in one run on one machine.

use std::time::Duration;

use anyhow::{Result, ensure};
use comfy_table::Table;
use serde_json::Value;

use super::{generate, median};
use crate::hub::Moex;

/// The command's arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The checkpoint; default: the demo model.
    #[arg(long)]
    model: Option<String>,
    /// Numbers of native workers to measure with; 0 is the hub alone.
    #[arg(long, value_delimiter = ',', default_value = "0,1,2,4")]
    workers: Vec<usize>,
    /// Tokens to decode in a run.
    #[arg(short = 'n', long, default_value_t = 48)]
    tokens: u32,
    /// Runs of each; the median is printed.
    #[arg(short, long, default_value_t = 5)]
    runs: usize,
}

/// Measures the hub alone and with each number of workers.
pub(super) async fn run(moex: &Moex, args: &Args) -> Result<()> {
    let mut table = Table::new();
    table.set_header(["workers", "decode tok/s", "first token ms", "layer p50 us", "layer p99 us"]);
    for &n_workers in &args.workers {
        let figures = measure(moex, args, n_workers).await?;
        let micros =
            |key: &str| figures.totals[key].as_f64().map_or("-".to_owned(), |value| format!("{value:.0}"));
        table.add_row([
            n_workers.to_string(),
            format!("{:.1}", figures.decode_tokens_per_s),
            format!("{:.1}", figures.first_token.as_secs_f64() * 1e3),
            micros("layer_p50_micros"),
            micros("layer_p99_micros"),
        ]);
    }
    println!("{table}");
    println!(
        "Native workers on the hub's own machine share its cores: this shows the price of the swarm, not its gain."
    );
    Ok(())
}

/// One row of the table.
struct Figures {
    decode_tokens_per_s: f64,
    first_token: Duration,
    totals: Value,
}

async fn measure(moex: &Moex, args: &Args, n_workers: usize) -> Result<Figures> {
    let workers = n_workers.to_string();
    let mut serve = vec!["--workers", &workers, "--experts", "int4"];
    if let Some(model) = &args.model {
        serve.extend(["--model", model]);
    }
    let hub = moex.hub(&serve)?;
    hub.wait_for_workers(n_workers).await?;
    let mut decode_rates = Vec::new();
    let mut first_tokens = Vec::new();
    for _ in 0..args.runs {
        let (_, first) = generate(&hub, 1).await?;
        let (n_tokens, whole) = generate(&hub, args.tokens).await?;
        ensure!(n_tokens > 1, "the model ended its answer after one token: nothing was decoded");
        decode_rates.push((n_tokens - 1) as f64 / whole.saturating_sub(first).as_secs_f64());
        first_tokens.push(first);
    }
    let totals = hub.status().await?["totals"].clone();
    Ok(Figures {
        decode_tokens_per_s: median(&mut decode_rates),
        first_token: median(&mut first_tokens),
        totals,
    })
}
