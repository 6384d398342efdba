//! `cargo xtask bench hedge`: measures the gain of hedging if one of four workers is occasionally late.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use comfy_table::Table;
use serde_json::Value;

use super::{generate, median};
use crate::chaos::figure;
use crate::hub::Moex;
use crate::proxy::{Hiccup, Link, Proxy, Weather};

const N_WORKERS: usize = 4;

/// The command's arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Policies, as values of `moex serve --hedge`; ratios are relative to the first.
    #[arg(long, value_delimiter = ',', default_value = "1,2,adaptive")]
    policies: Vec<String>,
    /// Answers with each policy.
    #[arg(short, long, default_value_t = 12)]
    runs: usize,
    /// The most tokens of each answer.
    #[arg(short = 'n', long, default_value_t = 64)]
    tokens: u32,
    /// One in this many messages from the hub to the slow worker is late.
    #[arg(long, default_value_t = 20)]
    one_in: u32,
    /// The delay of late messages, milliseconds.
    #[arg(long, default_value_t = 200)]
    millis: u64,
    /// The seed that chooses late messages.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Measures each policy on its own hub and prints all of them.
pub(super) async fn run(moex: &Moex, args: &Args) -> Result<()> {
    let mut table = Table::new();
    table.set_header([
        "hedge",
        "layer p50 us",
        "p95 us",
        "p99 us",
        "tokens/s",
        "bytes",
        "hedges",
        "wins",
        "denied",
        "p99 gain",
        "more bytes",
    ]);
    let mut first: Option<Figures> = None;
    for policy in &args.policies {
        let figures = measure(moex, args, policy).await.with_context(|| format!("--hedge {policy}"))?;
        let base = first.get_or_insert_with(|| figures.clone());
        let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.0}"));
        let [p50, p95, p99] = figures.quantiles;
        let gain = base.quantiles[2].zip(p99).map(|(base, p99)| format!("{:.2}x", base / p99));
        let more = base
            .bytes
            .zip(figures.bytes)
            .map(|(base, bytes)| format!("{:+.1} %", 100.0 * (bytes / base - 1.0)));
        table.add_row([
            policy.clone(),
            number(p50),
            number(p95),
            number(p99),
            format!("{:.1}", figures.tokens_per_s),
            number(figures.bytes),
            figure(&figures.totals, "hedges"),
            figure(&figures.totals, "hedge_wins"),
            figure(&figures.totals, "hedges_denied"),
            gain.unwrap_or("-".to_owned()),
            more.unwrap_or("-".to_owned()),
        ]);
    }
    println!("{table}");
    println!(
        "{N_WORKERS} native workers; the link to one delays a message by {} ms, one in {} at random, seed {}.",
        args.millis, args.one_in, args.seed
    );
    Ok(())
}

/// One row of the table.
#[derive(Clone, Debug)]
struct Figures {
    /// p50, p95 and p99 of the time of a layer, in microseconds.
    quantiles: [Option<f64>; 3],
    tokens_per_s: f64,
    /// Bytes to and from workers, for each token.
    bytes: Option<f64>,
    totals: Value,
}

async fn measure(moex: &Moex, args: &Args, policy: &str) -> Result<Figures> {
    let hub = moex.hub(&["--experts", "int4", "--hedge", policy])?;
    let hiccup = Hiccup { one_in: args.one_in, pause: Duration::from_millis(args.millis) };
    let late = Weather { hiccup: Some(hiccup), ..Weather::default() };
    let link = Link::Shaped { up: Weather::default(), down: late };
    let (mut proxies, mut workers) = (Vec::new(), Vec::new());
    for index in 0..N_WORKERS {
        // Every worker has a proxy, so that none is slower because of it. It is open until all have joined, since the
        // transfer of weights is not measured.
        let proxy = Proxy::start_seeded(hub.address()?, Link::Open, args.seed).await?;
        let join_url = hub.join_url_by(proxy.address)?;
        proxies.push(proxy);
        // The same keys each time, since the placement depends on them.
        let key = format!("{:032x}", index + 1);
        workers.push(moex.worker("worker", &join_url, &["--key", &key, "--memory", "64MiB"])?);
    }
    hub.wait_for_workers(N_WORKERS).await?;
    generate(&hub, args.tokens).await?;
    let before = hub.status().await?["totals"].clone();
    proxies[0].set(link);

    let mut windows: [Vec<f64>; 3] = Default::default();
    let (mut n_tokens, mut decoding) = (0, Duration::ZERO);
    for _ in 0..args.runs {
        let (n, took) = generate(&hub, args.tokens).await?;
        n_tokens += n;
        decoding += took;
        let totals = &hub.status().await?["totals"];
        for (window, name) in windows.iter_mut().zip(["p50", "p95", "p99"]) {
            window.extend(totals[format!("layer_{name}_micros")].as_f64());
        }
    }
    ensure!(n_tokens > 0, "nothing was generated");
    let totals = hub.status().await?["totals"].clone();
    let since = |key: &str| Some(totals[key].as_f64()? - before[key].as_f64()?);
    let bytes = since("bytes_sent").zip(since("bytes_received")).map(|(sent, received)| sent + received);
    Ok(Figures {
        // The hub reports quantiles of its last layers; this is the median of those after each answer.
        quantiles: windows.map(|mut window| (!window.is_empty()).then(|| median(&mut window))),
        tokens_per_s: n_tokens as f64 / decoding.as_secs_f64(),
        bytes: bytes.map(|bytes| bytes / n_tokens as f64),
        totals,
    })
}
