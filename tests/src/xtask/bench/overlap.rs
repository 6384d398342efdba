//! `cargo xtask bench overlap`: measures the gain of several groups of rows in flight: the hub computes one while
//! workers compute the experts of others. Workers are behind a delay, or on a device of this machine; there are several streams at
//! once, and a long prompt alone.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use comfy_table::Table;
use futures_util::future::try_join_all;
use serde_json::{Value, json};

use super::local_workers::LocalWorkers;
use super::median;
use super::stepped::Stepped;
use crate::chat;
use crate::hub::{Hub, Moex, Worker};
use crate::proxy::{Link, Proxy, Weather};

/// The command's arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The checkpoint; default: the demo model.
    #[arg(long)]
    model: Option<PathBuf>,
    /// Round trips of the workers' links, milliseconds.
    #[arg(long, value_delimiter = ',', default_value = "2,10")]
    round_trips: Vec<u64>,
    /// Groups of rows in flight; with `auto` the hub chooses.
    #[arg(long, value_delimiter = ',', default_value = "1,2,auto")]
    in_flight: Vec<String>,
    /// Concurrent streams.
    #[arg(long, value_delimiter = ',', default_value = "1,8,16")]
    streams: Vec<usize>,
    /// Tokens of a stream.
    #[arg(short = 'n', long, default_value_t = 48)]
    tokens: u32,
    /// Tokens of the long prompt.
    #[arg(short, long, default_value_t = 1024)]
    prompt: usize,
    /// Workers.
    #[arg(long, default_value_t = 3)]
    workers: usize,
    /// Workers on this device without a delay, in place of those behind a delay: as of `bench dispatch`.
    #[arg(long, conflicts_with = "round_trips")]
    device: Option<String>,
    /// Runs of each; the medians are shown.
    #[arg(short, long, default_value_t = 3)]
    runs: usize,
}

/// Workers until dropped: behind a delay, or without.
type Workers = (Vec<(Proxy, Worker)>, Option<LocalWorkers>);

/// Measures each and prints a table.
pub(super) async fn run(moex: &Moex, args: &Args) -> Result<()> {
    let mut table = Table::new();
    let streams = args.streams.iter().map(|n| format!("tok/s of {n}"));
    let first = ["round trip ms", "in flight"].map(str::to_owned).into_iter();
    table.set_header(first.chain(streams).chain([
        "waited".to_owned(),
        "between tokens, median and 99 %, ms".to_owned(),
        format!("first token of {} s", args.prompt),
        "waited".to_owned(),
    ]));
    let round_trips = if args.device.is_some() { &[0][..] } else { &args.round_trips };
    for &round_trip in round_trips {
        for in_flight in &args.in_flight {
            let (hub, _workers) = start(moex, args, round_trip, in_flight).await?;
            let mut row = vec![round_trip.to_string(), in_flight.clone()];
            // The hub learns here what it would otherwise learn during the measurement.
            together(&hub, 2, args.tokens, 99).await?;
            let before = Stepped::of(&hub).await?;
            for &n in &args.streams {
                let mut rates = Vec::new();
                for run in 0..args.runs {
                    rates.push(together(&hub, n, args.tokens, run).await?);
                }
                row.push(format!("{:.1}", median(&mut rates)));
            }
            let between = Stepped::of(&hub).await?;
            row.push(bubble(between - before));
            let most = args.streams.iter().copied().max().context("streams to measure")?;
            row.push(gaps(&hub, most, args.tokens).await?);
            let between = Stepped::of(&hub).await?;
            let mut firsts = Vec::new();
            for run in 0..args.runs {
                firsts.push(first_token(&hub, args.prompt, run).await?.as_secs_f64());
            }
            row.push(format!("{:.3}", median(&mut firsts)));
            row.push(bubble(Stepped::of(&hub).await? - between));
            table.add_row(row);
            println!("{table}");
        }
    }
    Ok(())
}

async fn start(moex: &Moex, args: &Args, round_trip: u64, in_flight: &str) -> Result<(Hub, Workers)> {
    let mut flags = vec!["--no-hub-compute", "--in-flight", in_flight, "--check-every", "0"];
    if let Some(model) = &args.model {
        flags.extend(["--model", model.to_str().context("a path that is text")?]);
    }
    let hub = moex.hub(&flags)?;
    if let Some(device) = &args.device {
        let workers = LocalWorkers::start(moex, &hub, device, args.workers).await?;
        return Ok((hub, (Vec::new(), Some(workers))));
    }
    let half = Weather { delay: Duration::from_micros(500 * round_trip), ..Weather::default() };
    let mut workers = Vec::new();
    for n in 0..args.workers {
        let proxy = Proxy::start(hub.address()?, Link::Open).await?;
        let key = format!("{:032x}", n + 1);
        let worker =
            moex.worker(&format!("worker {n}"), &hub.join_url_by(proxy.address)?, &["--key", &key])?;
        workers.push((proxy, worker));
    }
    hub.wait_for_workers(args.workers).await?;
    for (proxy, _) in &workers {
        proxy.set(Link::Shaped { up: half, down: half });
    }
    Ok((hub, (workers, None)))
}

/// Tokens a second of `n` streams that begin at the same time.
async fn together(hub: &Hub, n: usize, tokens: u32, run: usize) -> Result<f64> {
    let begun = Instant::now();
    let asked = (0..n).map(|stream| {
        let question = format!("Tell me story {run} of {stream} bears.");
        ask(hub, json!([{"role": "user", "content": question}]), tokens)
    });
    let answers = try_join_all(asked).await?;
    let n_tokens: u64 =
        answers.iter().filter_map(|answer| answer["usage"]["completion_tokens"].as_u64()).sum();
    ensure!(n_tokens == n as u64 * u64::from(tokens), "{n_tokens} tokens");
    Ok(n_tokens as f64 / begun.elapsed().as_secs_f64())
}

/// The median and the 99th percentile of the times between two pieces of `n` streams that begin at the same time.
async fn gaps(hub: &Hub, n: usize, tokens: u32) -> Result<String> {
    let streams = (0..n).map(async |stream| {
        let question = format!("Tell me story 100 of {stream} bears.");
        let mut body = body(&json!([{"role": "user", "content": question}]), tokens);
        body["stream"] = json!(true);
        // Tokens after a text's end have no piece of their own.
        body["ignore_eos"] = json!(false);
        let url = format!("{}/v1/chat/completions", hub.url);
        let mut answer = chat::client()?.post(url).json(&body).send().await?.error_for_status()?;
        let mut pieces = Vec::new();
        while let Some(piece) = answer.chunk().await? {
            if piece.windows(10).any(|ten| ten == br#""content":"#) {
                pieces.push(Instant::now());
            }
        }
        anyhow::Ok(pieces.windows(2).map(|two| (two[1] - two[0]).as_secs_f64() * 1e3).collect::<Vec<_>>())
    });
    let mut gaps: Vec<f64> = try_join_all(streams).await?.concat();
    let middle = median(&mut gaps);
    Ok(format!("{middle:.1}, {:.1}", gaps[gaps.len() * 99 / 100]))
}

fn bubble(of: Stepped) -> String {
    format!("{:.0} %", 100.0 * of.bubble())
}

/// The time to the first token of a new prompt of about `n_tokens`, by the engine's clock.
pub(super) async fn first_token(hub: &Hub, n_tokens: usize, run: usize) -> Result<Duration> {
    // Numbers have a token for each digit.
    let mut digits = String::new();
    let mut seed = 88_172_645_463_325_252_u64 ^ (run as u64 + 1) << 17;
    while digits.len() < n_tokens {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        digits.push_str(&(seed % 10).to_string());
    }
    let answer = ask(hub, json!([{"role": "user", "content": digits}]), 1).await?;
    let millis = answer["timings"]["prompt_ms"].as_f64().context("the answer tells its timings")?;
    Ok(Duration::from_secs_f64(millis / 1e3))
}

fn body(messages: &Value, tokens: u32) -> Value {
    json!({
        "messages": messages, "temperature": 0, "max_tokens": tokens, "ignore_eos": true,
        "chat_template_kwargs": {"enable_thinking": false},
    })
}

async fn ask(hub: &Hub, messages: Value, tokens: u32) -> Result<Value> {
    let url = format!("{}/v1/chat/completions", hub.url);
    Ok(chat::client()?
        .post(url)
        .json(&body(&messages, tokens))
        .send()
        .await?
        .error_for_status()?
        .json()
        .await?)
}
