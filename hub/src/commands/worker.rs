//! `moex worker`: joins hubs and shows on stderr how it goes.

use std::io::{IsTerminal, Write, stderr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use moex_protocol::WorkerKey;
use moex_worker::core::Status;
use moex_worker::device::DeviceChoice;
use moex_worker::native::{self, HubOptions, JoinUrl, Memory, WorkerOptions};
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
    /// Memory for experts: a size such as 512MiB or 4GiB, or auto: of a graphics card's own seven eighths of what is free, else half
    /// of what the system has free (4GiB where that is unknown). Several hubs share it evenly, unless each is given its own:
    /// 2GiB,512MiB.
    #[arg(long, env = "MOEX_MEMORY", default_value = "auto", value_name = "SIZE", value_delimiter = ',', value_parser = str::parse::<Memory>)]
    memory: Vec<Memory>,
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
    let hub = |(join_url, memory)| HubOptions { join_url, memory };
    let options = WorkerOptions {
        hubs: join_urls.into_iter().zip(shares).map(hub).collect(),
        free_bytes: moex_model::free_bytes().map(|bytes| bytes as u64),
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

/// One line that follows the status: rewritten in place on a terminal, elsewhere a new one when the state changes, and when
/// what it was asked to hold is loaded. With several hubs, a line for each, told apart by its number.
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
                let is_loaded = hub.blocks_resident == hub.blocks_assigned;
                let key = format!("{}{is_loaded}{:?}", hub.state, hub.problem);
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
fn shares(memory: &[Memory], n_hubs: usize) -> anyhow::Result<Vec<Memory>> {
    match memory {
        [all] => Ok(vec![all.shared(n_hubs); n_hubs]),
        each => {
            anyhow::ensure!(
                each.len() == n_hubs,
                "--memory gives {} sizes for {n_hubs} join URLs: give one size in all, or one for each hub.",
                each.len()
            );
            // Each would be all that there is.
            anyhow::ensure!(
                each.iter().all(|memory| matches!(memory, Memory::Bytes(_))),
                "--memory auto is for all hubs together: give it alone, or a size for each hub."
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
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        line += &format!(
            "; {model}: {} of {} experts, {:.1} of {:.1} MB offered; {} requests served",
            status.blocks_resident,
            status.blocks_assigned,
            megabytes(status.bytes_resident),
            megabytes(status.bytes_offered),
            status.answers
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_shared_evenly_or_as_told() {
        let of = |bytes: &[u64]| bytes.iter().copied().map(Memory::Bytes).collect::<Vec<_>>();
        assert_eq!(shares(&of(&[8]), 1).unwrap(), of(&[8]));
        assert_eq!(shares(&of(&[8]), 2).unwrap(), of(&[4, 4]));
        assert_eq!(shares(&of(&[8, 1]), 2).unwrap(), of(&[8, 1]));
        let auto = Memory::Auto { n_hubs: 1 };
        assert_eq!(shares(&[auto], 2).unwrap(), [Memory::Auto { n_hubs: 2 }; 2]);
        let said = shares(&[auto, Memory::Bytes(8)], 2).unwrap_err().to_string();
        assert!(said.contains("auto is for all hubs together"), "{said}");
        let said = shares(&of(&[8, 1]), 3).unwrap_err().to_string();
        assert!(said.contains("2 sizes for 3 join URLs"), "{said}");
    }
}
