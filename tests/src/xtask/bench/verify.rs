//! `cargo xtask bench verify`: the cost of checking answers before they are used, by tokens a second and bytes a token.
//!
//! Two native workers on hosts of their own, since with `exact` two addresses have to agree; hub and workers divide the
//! processors among themselves where each gets two or more, since they are made for machines of their own. The modes take turns.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use comfy_table::Table;
use serde_json::Value;

use super::{
    median,
    serve::{GREEDY, answer, synthetic},
};
use crate::host::Host;
use crate::hub::Moex;
use crate::processors;

const N_WORKERS: usize = 2;
/// With fewer processors of its own, a process is another one than it would be on any machine.
const LEAST_PROCESSORS: usize = 2;
/// The model that moex brings.
const DEMO: &str = "demo";

/// The command's arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The checkpoint; default: four layers of Qwen3-30B-A3B's geometry in q4_K_M, written once below `target`. `demo` is the
    /// model that moex brings.
    #[arg(long)]
    model: Option<PathBuf>,
    /// Values of `moex serve --verify`; ratios are relative to the first.
    #[arg(long, value_delimiter = ',', default_value = "audit,blocking,exact")]
    modes: Vec<String>,
    /// Tokens to decode in a run; default: 128, or 1000 with the demo model, which would be done in a moment.
    #[arg(short = 'n', long)]
    tokens: Option<u32>,
    /// Runs of each, taking turns; the medians are compared.
    #[arg(short, long, default_value_t = 5)]
    runs: usize,
}

/// One run with one mode.
#[derive(Clone, Copy)]
struct Run {
    tokens_per_s: f64,
    bytes_per_token: f64,
    /// The part of the experts' rows that the hub computed, not the workers.
    hub_share: f64,
}

/// Measures each mode and prints all of them.
pub(super) async fn run(moex: &Moex, args: &Args) -> Result<()> {
    let model = match &args.model {
        Some(model) => model.clone(),
        None => synthetic(moex)?,
    };
    let model = model.to_str().context("a path that is text")?;
    let tokens = args.tokens.unwrap_or(if model == DEMO { 1000 } else { 128 });
    let processors = processors::allowed()?;
    let parts = divided(&processors);
    match &parts {
        Some(parts) => println!("Processors of the hub and each worker: {parts:?}."),
        None => println!("Hub and workers share all processors."),
    }
    let hosts: Vec<Arc<Host>> = (0..N_WORKERS).map(|_| Ok(Arc::new(Host::new()?))).collect::<Result<_>>()?;
    let mut runs = vec![Vec::new(); args.modes.len()];
    for _ in 0..args.runs {
        for (mode, runs) in args.modes.iter().zip(&mut runs) {
            let run = measure(moex, &hosts, parts.as_deref(), model, mode, tokens).await;
            runs.push(run.with_context(|| format!("--verify {mode}"))?);
        }
    }
    let mut table = Table::new();
    table.set_header([
        "verify",
        "tokens/s",
        "of the first",
        "KB/token",
        "of the first",
        "computed by the hub",
    ]);
    let mut first = None;
    for (mode, runs) in args.modes.iter().zip(&runs) {
        let of = |figure: fn(&Run) -> f64| median(&mut runs.iter().map(figure).collect::<Vec<_>>());
        let (speed, bytes) = (of(|run| run.tokens_per_s), of(|run| run.bytes_per_token));
        let hub = of(|run| run.hub_share);
        let (first_speed, first_bytes) = *first.get_or_insert((speed, bytes));
        table.add_row([
            mode.clone(),
            format!("{speed:.1}"),
            format!("{:.3}", speed / first_speed),
            format!("{:.1}", bytes / 1e3),
            format!("{:.2}", bytes / first_bytes),
            format!("{:.1} %", 100.0 * hub),
        ]);
    }
    println!("{table}");
    Ok(())
}

/// The processors of the hub, which has what is left over, and of each worker; none if they are too few to divide.
fn divided(processors: &[usize]) -> Option<Vec<&[usize]>> {
    let n_each = processors.len() / (1 + N_WORKERS);
    let (hub, workers) = processors.split_at(processors.len() - N_WORKERS * n_each);
    (n_each >= LEAST_PROCESSORS).then(|| [hub].into_iter().chain(workers.chunks_exact(n_each)).collect())
}

async fn measure(
    moex: &Moex,
    hosts: &[Arc<Host>],
    parts: Option<&[&[usize]]>,
    model: &str,
    mode: &str,
    tokens: u32,
) -> Result<Run> {
    let named = ["--model", model];
    let model: &[&str] = if model == DEMO { &[] } else { &named };
    let confined = |i: usize| parts.map(|parts| processors::confine(parts[i])).transpose();
    let hub = {
        let _confined = confined(0)?;
        moex.open_hub(&[model, &["--verify", mode, "--prefer", "workers"]].concat())?
    };
    let start = |(i, host): (usize, &Arc<Host>)| {
        let _confined = confined(1 + i)?;
        moex.clone().on(host.clone()).worker("worker", &hub.join_url_from(host)?, &[])
    };
    let _workers = hosts.iter().enumerate().map(start).collect::<Result<Vec<_>>>()?;
    hub.wait_for_workers(N_WORKERS).await?;
    // Until the workers are known, and what checks their answers is there.
    answer(&hub, tokens, GREEDY).await?;
    answer(&hub, tokens, GREEDY).await?;
    let before = hub.status().await?;
    let tokens_per_s = answer(&hub, tokens, GREEDY).await?;
    let after = hub.status().await?;
    let grown = |pointer: &str| number(&after, pointer) - number(&before, pointer);
    // One row of a token for each expert that each of its layers chooses.
    let rows_per_token = number(&after, "/model/n_layers") * number(&after, "/model/n_experts_per_token");
    Ok(Run {
        tokens_per_s,
        bytes_per_token: (grown("/totals/bytes_sent") + grown("/totals/bytes_received")) / f64::from(tokens),
        hub_share: grown("/hub/rows") / (rows_per_token * f64::from(tokens)),
    })
}

fn number(status: &Value, pointer: &str) -> f64 {
    status.pointer(pointer).and_then(Value::as_f64).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_divided_where_each_process_gets_two() {
        let processors: Vec<usize> = (0..16).collect();
        let parts = divided(&processors).unwrap();
        assert_eq!(parts.concat(), processors, "each is someone's, and no two share one");
        assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [6, 5, 5]);
        assert!(divided(&processors[..6]).is_some() && divided(&processors[..5]).is_none());
    }
}
