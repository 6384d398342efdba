//! `cargo xtask bench tab`: the time that a browser's CPU takes for the experts of one row, by the number of threads.

use anyhow::{Context, Result};
use comfy_table::Table;
use moex_kernels::{ExpertShape, WeightFormat};
use serde_json::json;

use super::median;
use crate::browser::Browser;
use crate::hub::Moex;

/// An expert of Qwen3-30B-A3B.
const SHAPE: ExpertShape = ExpertShape::uniform(2048, 768, WeightFormat::Int4G128);
const N_EXPERTS: u32 = 8;
/// Runs in the page.
const SCRIPT: &str = include_str!("tab.js");

/// The command's arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The numbers of threads.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    threads: Vec<u32>,
    /// Batches of each, of which the first tenth is not counted: the browser compiles meanwhile.
    #[arg(long, default_value_t = 500)]
    batches: usize,
    /// Measurements of each, in turn.
    #[arg(long, default_value_t = 3)]
    turns: usize,
}

/// Prints the time of eight int4 experts of one row in a page of Chromium, dealt evenly over the threads.
pub(super) async fn run(moex: &Moex, args: &Args) -> Result<()> {
    let hub = moex.hub(&[])?;
    let browser = Browser::launch().await?;
    let mut table = Table::new();
    table.set_header(["threads", "median ms", "fastest ms", "GB/s of weights"]);
    for _ in 0..args.turns {
        for &n_threads in &args.threads {
            let tab = browser.visit(&format!("{}/swarm", hub.url)).await?;
            let script = format!(
                "({})({})",
                SCRIPT.trim_end().trim_end_matches(';'),
                json!({"nThreads": n_threads, "nRows": 1, "nBatches": args.batches})
            );
            let times = tab.eval(&script).await?;
            let mut times: Vec<f64> =
                times.as_array().context("times")?.iter().filter_map(serde_json::Value::as_f64).collect();
            times.drain(..times.len() / 10);
            let middle = median(&mut times);
            let gigabytes = SHAPE.block_bytes() as f64 * f64::from(N_EXPERTS) / 1e9;
            let fastest = times.first().context("a batch")?;
            table.add_row([
                n_threads.to_string(),
                format!("{middle:.2}"),
                format!("{fastest:.2}"),
                format!("{:.1}", gigabytes / middle * 1e3),
            ]);
            tab.close().await?;
        }
    }
    println!("{table}");
    browser.close().await
}
