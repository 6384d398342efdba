//! `cargo xtask bench serve`: compares the speed of answers through `moex serve`, with default flags, with that of
//! `moex bench`.
//!
//! Both decode the same number of tokens after a short prompt, taking turns on the same machine; the engine's clock
//! measures an answer's tokens. `moex bench` is greedy; the server is asked for greedy answers and for drawn ones, as clients ask.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use comfy_table::Table;
use serde_json::{Value, json};

use super::median;
use crate::{
    chat,
    hub::{Hub, Moex},
};

/// The command's arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The checkpoint; default: four layers of Qwen3-30B-A3B's geometry in q4_K_M, written once below `target`.
    #[arg(long)]
    model: Option<PathBuf>,
    /// Numbers of native workers to measure with.
    #[arg(long, value_delimiter = ',', default_value = "0,1")]
    workers: Vec<usize>,
    /// Tokens to decode in a run.
    #[arg(short = 'n', long, default_value_t = 128)]
    tokens: u32,
    /// Runs of each, taking turns; the medians are compared.
    #[arg(short, long, default_value_t = 5)]
    runs: usize,
}

/// Sampling parameters of a greedy answer.
pub(super) const GREEDY: &str = r#"{"temperature": 0}"#;
/// The ways that clients ask for tokens: greedy, with a temperature alone, as most that speak OpenAI's API, and with the top-k
/// that is the default of others.
const WAYS: [(&str, &str); 3] = [
    ("greedy", GREEDY),
    ("temperature 0.8", r#"{"temperature": 0.8}"#),
    ("and top-k 40", r#"{"temperature": 0.8, "top_k": 40}"#),
];

/// Measures both with each number of workers and prints their ratio.
pub(super) async fn run(moex: &Moex, args: &Args) -> Result<()> {
    let model = match &args.model {
        Some(model) => model.clone(),
        None => synthetic(moex)?,
    };
    let model = model.to_str().context("a path that is text")?;
    let mut table = Table::new();
    table.set_header(["workers", "context", "bench tok/s", "serve, asked for", "tok/s", "ratio"]);
    for &n_workers in &args.workers {
        let workers = n_workers.to_string();
        let (mut benched, mut served) = (Vec::new(), [const { Vec::new() }; WAYS.len()]);
        let mut context = Value::Null;
        for _ in 0..args.runs {
            benched.push(bench(moex, model, n_workers, args.tokens)?);
            // One runs at a time, so that it has all cores.
            let hub = moex.hub(&["--model", model])?;
            // Workers use the link alone, as on another machine.
            let started = (0..n_workers).map(|n| moex.worker(&format!("worker {n}"), &hub.join_url, &[]));
            let _workers = started.collect::<Result<Vec<_>>>()?;
            if n_workers > 0 {
                hub.wait_for_workers(n_workers).await?;
            }
            answer(&hub, args.tokens, GREEDY).await?;
            for ((_, way), served) in WAYS.iter().zip(&mut served) {
                served.push(answer(&hub, args.tokens, way).await?);
            }
            context = hub.get("/v1/models").await?["data"][0]["context_length"].clone();
        }
        let benched = median(&mut benched);
        for ((name, _), served) in WAYS.iter().zip(&mut served) {
            let served = median(served);
            table.add_row([
                workers.clone(),
                context.to_string(),
                format!("{benched:.1}"),
                (*name).to_owned(),
                format!("{served:.1}"),
                format!("{:.3}", served / benched),
            ]);
        }
    }
    println!("{table}");
    Ok(())
}

/// The default checkpoint.
pub(super) fn synthetic(moex: &Moex) -> Result<PathBuf> {
    let file = crate::root().join("target/bench/qwen3-30b-a3b-4-layers.q4_K_M.gguf");
    if !file.exists() {
        std::fs::create_dir_all(file.parent().context("it lies in a folder")?)?;
        let path = file.to_str().context("a path that is text")?;
        moex.run(&["synth", "--like", "qwen3-30b-a3b", "--layers", "4", "--gguf", path])?;
    }
    Ok(file)
}

/// Tokens a second of `moex bench`.
fn bench(moex: &Moex, model: &str, n_workers: usize, tokens: u32) -> Result<f64> {
    let (tokens, workers) = (tokens.to_string(), n_workers.to_string());
    let mut args = vec!["bench", "--model", model, "--json", "-r", "1", "-p", "16", "-n", &tokens];
    if n_workers > 0 {
        args.extend(["--workers", &workers]);
    }
    let output = moex.output(&args)?;
    let report: Value = serde_json::from_slice(&output).context("moex bench prints JSON")?;
    report["decode_tokens_per_s"].as_f64().context("moex bench tells tokens a second")
}

/// Tokens a second of an answer of `tokens` tokens, by the engine's clock; `way` has the request's sampling parameters.
pub(super) async fn answer(hub: &Hub, tokens: u32, way: &str) -> Result<f64> {
    let mut body: Value = serde_json::from_str(way)?;
    body["messages"] = json!([{"role": "user", "content": "Tell me a story about a bear."}]);
    for (field, value) in [
        ("max_tokens", json!(tokens)),
        ("ignore_eos", json!(true)),
        ("stream", json!(true)),
        ("seed", json!(1)),
    ] {
        body[field] = value;
    }
    let url = format!("{}/v1/chat/completions", hub.url);
    let answer = chat::client()?.post(url).json(&body).send().await?.error_for_status()?.text().await?;
    let chunks = answer.lines().filter_map(|line| line.strip_prefix("data: "));
    let timings = chunks
        .filter_map(|chunk| serde_json::from_str::<Value>(chunk).ok())
        .find_map(|chunk| chunk.get("timings").cloned())
        .context("the last chunk has the engine's timings")?;
    ensure!(timings["predicted_n"] == tokens, "an answer of {tokens} tokens, not {}", timings["predicted_n"]);
    timings["predicted_per_second"].as_f64().context("the timings tell tokens a second")
}
