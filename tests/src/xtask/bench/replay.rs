//! `cargo xtask bench replay`: measures how well the simulator predicts swarms on this machine.

use std::path::PathBuf;

use anyhow::{Context, Result};
use comfy_table::Table;

use crate::hub::Moex;
use crate::replay::{Config, Load, measure};

/// The command's arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The checkpoint; default: the demo model. `moex synth` makes one with a real model's geometry.
    #[arg(long)]
    model: Option<String>,
    /// Swarms: number of workers, milliseconds that their links add to a round trip, and the hub's --hedge.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1:0:1,2:0:1,4:0:1,2:0:2,4:0:adaptive,1:2:1,2:2:2,4:2:adaptive,1:10:1,2:10:1,4:10:2,4:10:adaptive"
    )]
    configs: Vec<Config>,
    /// Keep the traces in this folder, for `moex-sim replay --skip 2`.
    #[arg(long)]
    traces: Option<PathBuf>,
    /// Answers from each swarm.
    #[arg(short, long, default_value_t = 10)]
    runs: usize,
    /// The most tokens of each answer.
    #[arg(short = 'n', long, default_value_t = 48)]
    tokens: u32,
}

/// Measures and predicts each swarm and prints both.
pub(super) async fn run(moex: &Moex, args: &Args) -> Result<()> {
    let mut table = Table::new();
    table.set_header([
        "workers:ms:hedge",
        "tokens/s predicted",
        "measured",
        "error %",
        "layer p50 ms predicted",
        "measured",
        "p99 ms predicted",
        "measured",
        "hedges/step predicted",
        "measured",
    ]);
    let temporary = tempfile::tempdir()?;
    let traces = args.traces.as_deref().unwrap_or(temporary.path());
    let load = Load { n_answers: args.runs, n_tokens: args.tokens };
    for config in &args.configs {
        let result = measure(moex, args.model.as_deref(), config, load, traces).await;
        let comparison = result.with_context(|| config.to_string())?;
        let (predicted, measured) = (&comparison.predicted, &comparison.measured);
        let hedges =
            |figures: &moex_sim::replay::Figures| figures.hedges as f64 / figures.steps.max(1) as f64;
        eprintln!("{config}: {:+.1} %", 100.0 * comparison.error());
        table.add_row([
            config.to_string(),
            format!("{:.2}", predicted.tokens_per_s()),
            format!("{:.2}", measured.tokens_per_s()),
            format!("{:+.1}", 100.0 * comparison.error()),
            format!("{:.3}", predicted.layers.quantile_ms(0.5)),
            format!("{:.3}", measured.layers.quantile_ms(0.5)),
            format!("{:.3}", predicted.layers.quantile_ms(0.99)),
            format!("{:.3}", measured.layers.quantile_ms(0.99)),
            format!("{:.2}", hedges(predicted)),
            format!("{:.2}", hedges(measured)),
        ]);
    }
    println!("{table}");
    println!("Fitted on the first half of each run's steps, compared over the second.");
    Ok(())
}
