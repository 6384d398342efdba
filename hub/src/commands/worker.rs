//! `moex worker`: joins hubs and shows on stderr how it goes.

use std::io::{IsTerminal, Write, stderr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use moex_protocol::WorkerKey;
use moex_worker::core::Status;
use moex_worker::device::DeviceChoice;
use moex_worker::native::{self, HubOptions, JoinUrl, WorkerOptions};
use tokio::sync::watch;

use super::busy_poll::BusyPollArgs;
use super::find_hub;

/// How often the status line is drawn anew, at most.
const STATUS_INTERVAL: Duration = Duration::from_millis(500);

/// Joins a hub, or several, as a native worker: holds experts of their models and computes them, until it is interrupted.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The join URL that a hub prints, `http://HOST:PORT/join#TOKEN` or `https://...`, one for each hub; without any, hubs
    /// of this network are listed (mDNS) and the token is asked for.
    #[arg(value_name = "JOIN_URL", env = "MOEX_JOIN_URL", hide_env_values = true, value_delimiter = ' ')]
    join_urls: Vec<String>,
    /// A PEM file with the certificate authority of a hub on https, where the URL names none and the system knows none.
    #[arg(long, env = "MOEX_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Memory for experts, such as 512MiB or 4GiB. Several hubs share it evenly, unless each is given its own: 2GiB,512MiB.
    #[arg(long, env = "MOEX_MEMORY", default_value = "4GiB", value_delimiter = ',', value_parser = parse_memory)]
    memory: Vec<u64>,
    /// What to compute on: auto, gpu or cpu.
    #[arg(long, env = "MOEX_DEVICE", default_value = "auto", value_parser = str::parse::<DeviceChoice>)]
    device: DeviceChoice,
    /// Keep experts, and this worker's key, in this folder between runs.
    #[arg(long, env = "MOEX_STORE")]
    store: Option<PathBuf>,
    /// What to call this worker on the hub's swarm page.
    #[arg(long, env = "MOEX_NAME", default_value = "", hide_default_value = true)]
    name: String,
    /// The worker's secret, 32 hexadecimal digits, from which its id follows; by default the store's, or a new one.
    #[arg(long, env = "MOEX_WORKER_KEY", hide_env_values = true)]
    key: Option<WorkerKey>,
    /// Give up when no hub has answered for this many seconds.
    #[arg(long, env = "MOEX_PATIENCE", default_value_t = 120)]
    patience: u64,
    #[command(flatten)]
    busy_poll: BusyPollArgs,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    // One thread between socket and kernels: a second one would have to be woken for each message.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    let (status, shown) = watch::channel(Vec::new());
    let mut join_urls = args.join_urls;
    if join_urls.is_empty() {
        join_urls.push(runtime.block_on(find_hub::ask())?);
    }
    let is_readable = |url: &String| JoinUrl::parse(url).is_ok_and(|url| url.is_readable_on_the_way());
    if join_urls.iter().any(is_readable) {
        eprintln!(
            "moex worker: by plain http others on the network can read the token: use the hub's https link if it has one."
        );
    }
    let shares = shares(&args.memory, join_urls.len())?;
    let hub = |(join_url, memory_budget_bytes)| HubOptions { join_url, memory_budget_bytes };
    let options = WorkerOptions {
        hubs: join_urls.into_iter().zip(shares).map(hub).collect(),
        ca: args.ca,
        device: args.device,
        store: args.store,
        name: args.name,
        key: args.key,
        patience: Duration::from_secs(args.patience),
        status: Some(status),
        busy_poll: args.busy_poll.choose(false),
    };
    runtime.block_on(async {
        let shower = tokio::spawn(show(shown));
        let outcome = native::run(options, interrupted()).await;
        // The sender is gone with the worker, so the last line is drawn and the task ends.
        shower.await.context("the status line")?;
        Ok(outcome?)
    })
}

/// Resolves when the user, or the system, asks the process to end.
async fn interrupted() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    // Without signals to listen for, only a kill ends the worker.
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// One line that follows the status: rewritten in place on a terminal, a new one on each change of state elsewhere. With
/// several hubs, a line for each, told apart by its number.
async fn show(mut statuses: watch::Receiver<Vec<Status>>) {
    let in_place = stderr().is_terminal();
    let mut last: Vec<String> = Vec::new();
    while statuses.changed().await.is_ok() {
        let now = statuses.borrow_and_update().clone();
        let lines: Vec<String> = now.iter().enumerate().map(|(n, hub)| line(hub, n, now.len())).collect();
        if in_place && lines != last {
            // Up to where the last ones began. Whoever closed stderr does not want to see it.
            let up = last.len().saturating_sub(1);
            let up = if up > 0 { format!("\x1b[{up}A") } else { String::new() };
            drop(write!(stderr(), "{up}\r\x1b[J{}", lines.join("\n")));
            last = lines;
        } else if !in_place {
            last.resize(now.len(), String::new());
            for ((hub, line), last) in now.iter().zip(lines).zip(&mut last) {
                let key = format!("{}{:?}", hub.state, hub.problem);
                if key != *last {
                    drop(writeln!(stderr(), "{line}"));
                    *last = key;
                }
            }
        }
        tokio::time::sleep(STATUS_INTERVAL).await;
    }
    if in_place {
        drop(writeln!(stderr()));
    }
}

/// The memory that each of `n_hubs` gets: its own, or an even part of the one size given.
fn shares(memory: &[u64], n_hubs: usize) -> anyhow::Result<Vec<u64>> {
    match memory {
        [total] => Ok(vec![total / n_hubs.max(1) as u64; n_hubs]),
        each => {
            anyhow::ensure!(
                each.len() == n_hubs,
                "--memory gives {} sizes for {n_hubs} join URLs: give one size in all, or one for each hub.",
                each.len()
            );
            Ok(each.to_vec())
        }
    }
}

/// How it goes with hub `index` of `n_hubs`.
fn line(status: &Status, index: usize, n_hubs: usize) -> String {
    let hub = if n_hubs > 1 { format!("hub {}: ", index + 1) } else { String::new() };
    let mut line = format!("moex worker: {hub}{} on {}", status.state, status.adapter);
    if let Some(model) = &status.model {
        let megabytes = status.bytes_resident as f64 / 1e6;
        line += &format!(
            "; {model}: {} of {} experts, {megabytes:.1} MB; {} requests served",
            status.blocks_resident, status.blocks_assigned, status.answers
        );
        if status.answers > 0 {
            line += &format!(", {:.1} ms each", status.latency_p50_micros as f64 / 1e3);
        }
    }
    if let Some(problem) = &status.problem {
        line += &format!("; {problem}");
    }
    line
}

/// Bytes from a number with an optional unit: `1000000`, `512MiB`, `4GiB`, `1.5GB`.
fn parse_memory(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, f64); 9] = [
        ("KiB", 1024.0),
        ("MiB", 1_048_576.0),
        ("GiB", 1_073_741_824.0),
        ("TiB", 1_099_511_627_776.0),
        ("KB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("TB", 1e12),
        ("B", 1.0),
    ];
    let unit = UNITS.into_iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)));
    let (number, bytes) = unit.unwrap_or((text, 1.0));
    match number.trim().parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok((number * bytes) as u64),
        _ => Err("give a size such as 512MiB or 4GiB".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_shared_evenly_or_as_told() {
        assert_eq!(shares(&[8], 1).unwrap(), [8]);
        assert_eq!(shares(&[8], 2).unwrap(), [4, 4]);
        assert_eq!(shares(&[8, 1], 2).unwrap(), [8, 1]);
        let said = shares(&[8, 1], 3).unwrap_err().to_string();
        assert!(said.contains("2 sizes for 3 join URLs"), "{said}");
    }

    #[test]
    fn memory_is_read_with_its_unit() {
        let cases = [
            ("4GiB", Some(4 << 30)),
            ("512 MiB", Some(512 << 20)),
            ("1.5GB", Some(1_500_000_000)),
            ("1000000", Some(1_000_000)),
            ("7B", Some(7)),
            ("", None),
            ("GiB", None),
            ("-1GiB", None),
            ("NaN", None),
            ("4 elephants", None),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_memory(text).ok(), bytes, "{text}");
        }
    }
}
