//! `cargo xtask bench load`: sends many requests to a hub, a third of which are aborted, and measures its memory
//! afterwards and the latency of `/health` meanwhile.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use comfy_table::Table;
use futures_util::future::try_join_all;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::resources::{self, HubResources};
use crate::chat;
use crate::hub::{Hub, Moex};

/// How long the hub may take to end the last abandoned texts.
const SETTLING: Duration = Duration::from_secs(5);
/// The largest allowed growth of resident memory, as a fraction.
const TOLERANCE: f64 = 0.05;
/// The time within which 99 of 100 health requests are answered.
const HEALTH: Duration = Duration::from_millis(20);

/// The command's arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Requests.
    #[arg(short = 'n', long, default_value_t = 10_000)]
    requests: usize,
    /// Concurrent requests.
    #[arg(short, long, default_value_t = 64)]
    connections: usize,
    /// Requests before the measurement: they fill the hub's caches.
    #[arg(long, default_value_t = 1_000)]
    warm_up: usize,
    /// The most tokens of an answer.
    #[arg(long, default_value_t = 16)]
    tokens: u32,
    /// Native workers.
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// Further arguments of `moex serve`, after `--`.
    #[arg(last = true)]
    serve: Vec<String>,
}

/// Sends the requests and prints the results.
///
/// # Errors
/// If a request that was not aborted fails, the hub holds notably more memory afterwards, or `/health` is slow.
pub(super) async fn run(moex: &Moex, args: &Args) -> Result<()> {
    let hub = moex.hub(&args.serve.iter().map(String::as_str).collect::<Vec<_>>())?;
    let workers: Vec<_> = (0..args.workers)
        .map(|n| moex.worker(&format!("worker {n}"), &hub.join_url, &[]))
        .collect::<Result<_>>()?;
    hub.wait_for_workers(workers.len()).await?;
    ask(&hub, args, args.warm_up).await?;
    sleep(SETTLING).await;
    let before = resources::of_hub(&hub)?;
    let is_over = AtomicBool::new(false);
    let begun = Instant::now();
    let asked = async {
        let asked = ask(&hub, args, args.requests).await;
        is_over.store(true, Ordering::Relaxed);
        asked
    };
    let (asked, watched) = tokio::join!(asked, watch(&hub, &is_over));
    let took = begun.elapsed();
    let (asked, watched) = (asked?, watched?);
    sleep(SETTLING).await;
    let after = resources::of_hub(&hub)?;
    report(args, &asked, &watched, took, [before, after]);
    let growth = after.resident_kib as f64 / before.resident_kib as f64 - 1.0;
    ensure!(growth <= TOLERANCE, "the hub holds {:.1} % more than before", 100.0 * growth);
    ensure!(
        after.n_files <= before.n_files,
        "open files before and after: {} and {}",
        before.n_files,
        after.n_files
    );
    let late = part(&watched.health, 0.99);
    ensure!(late <= HEALTH, "99 % of health requests take up to {late:.1?}");
    Ok(())
}

/// The results of requests.
struct LoadResults {
    /// Times to the first piece of requests that were not aborted, in ascending order.
    first: Vec<Duration>,
    n_given_up: usize,
    n_pieces: usize,
}

/// Sends `n_requests`, several at once. Every third is aborted, some before their answer begins, some after a few
/// pieces.
async fn ask(hub: &Hub, args: &Args, n_requests: usize) -> Result<LoadResults> {
    let http = chat::client()?;
    let next = AtomicUsize::new(0);
    let connections = (0..args.connections).map(async |_| {
        let mut asked = LoadResults { first: Vec::new(), n_given_up: 0, n_pieces: 0 };
        loop {
            let request = next.fetch_add(1, Ordering::Relaxed);
            if request >= n_requests {
                return Ok::<_, anyhow::Error>(asked);
            }
            let body = json!({
                "messages": [{"role": "user", "content": format!("Tell me story {request} about a bear.")}],
                "temperature": 0, "max_tokens": args.tokens, "stream": true,
                "chat_template_kwargs": {"enable_thinking": false},
            });
            let begun = Instant::now();
            let sent = http.post(format!("{}/v1/chat/completions", hub.url)).json(&body).send().await?;
            let mut answer = sent.error_for_status().with_context(|| format!("request {request}"))?;
            let given_up_at = request.is_multiple_of(3).then_some(request / 3 % 4);
            let (mut n_pieces, mut is_done) = (0, false);
            while given_up_at != Some(n_pieces) {
                let Some(piece) = answer.chunk().await? else { break };
                if n_pieces == 0 && given_up_at.is_none() {
                    asked.first.push(begun.elapsed());
                }
                is_done |= piece.windows(6).any(|six| six == b"[DONE]");
                n_pieces += 1;
            }
            ensure!(is_done || given_up_at.is_some(), "request {request} ended in the middle");
            asked.n_given_up += usize::from(given_up_at.is_some());
            asked.n_pieces += n_pieces;
        }
    });
    let mut all = LoadResults { first: Vec::new(), n_given_up: 0, n_pieces: 0 };
    for one in try_join_all(connections).await? {
        all.first.extend(one.first);
        all.n_given_up += one.n_given_up;
        all.n_pieces += one.n_pieces;
    }
    all.first.sort_unstable();
    Ok(all)
}

/// The observations during the load.
struct Watched {
    /// The latencies of `/health`, in ascending order.
    health: Vec<Duration>,
    most_kib: u64,
}

/// Requests the hub's health fifty times a second, until the load ends.
async fn watch(hub: &Hub, is_over: &AtomicBool) -> Result<Watched> {
    let http = chat::client()?;
    let mut watched = Watched { health: Vec::new(), most_kib: 0 };
    while !is_over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let health: Value =
            http.get(format!("{}/health", hub.url)).send().await?.error_for_status()?.json().await?;
        watched.health.push(begun.elapsed());
        ensure!(health["status"] == "ok", "{health}");
        watched.most_kib = watched.most_kib.max(resources::of_hub(hub)?.resident_kib);
        sleep(HEALTH).await;
    }
    watched.health.sort_unstable();
    Ok(watched)
}

fn report(
    args: &Args,
    asked: &LoadResults,
    watched: &Watched,
    took: Duration,
    [before, after]: [HubResources; 2],
) {
    let mut table = Table::new();
    let seconds = took.as_secs_f64();
    let span = |times: &[Duration]| format!("{:.1?}, {:.1?}", part(times, 0.5), part(times, 0.99));
    for (name, value) in [
        ("requests, at once", format!("{}, {}", args.requests, args.connections)),
        ("given up", asked.n_given_up.to_string()),
        ("requests/s", format!("{:.1}", args.requests as f64 / seconds)),
        ("pieces/s", format!("{:.1}", asked.n_pieces as f64 / seconds)),
        ("first piece, median and 99 %", span(&asked.first)),
        ("/health, median and 99 %", span(&watched.health)),
        ("resident KiB before, most, after", {
            format!("{}, {}, {}", before.resident_kib, watched.most_kib, after.resident_kib)
        }),
        ("open files before, after", format!("{}, {}", before.n_files, after.n_files)),
    ] {
        table.add_row([name.to_owned(), value]);
    }
    println!("{table}");
}

/// The time within which this part of them ended; `times` must be in order.
fn part(times: &[Duration], part: f64) -> Duration {
    let at = (part * times.len() as f64).ceil() as usize;
    times.get(at.saturating_sub(1)).copied().unwrap_or_default()
}
