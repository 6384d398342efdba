//! `moex worker`: joins a hub and shows on stderr how it goes.

use std::io::{IsTerminal, Write, stderr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::builder::FalseyValueParser;
use moex_protocol::WorkerId;
use moex_worker::core::Status;
use moex_worker::device::DeviceChoice;
use moex_worker::native::{self, BusyPoll, JoinUrl, WorkerOptions};
use tokio::sync::watch;

use super::find_hub;

/// How often the status line is drawn anew, at most.
const STATUS_INTERVAL: Duration = Duration::from_millis(500);

/// Joins a hub as a native worker: holds experts of its model and computes them, until it is interrupted.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The join URL that the hub prints, `http://HOST:PORT/join#TOKEN` or `https://...`; without it, hubs of this
    /// network are listed (mDNS) and the token is asked for.
    #[arg(env = "MOEX_JOIN_URL", hide_env_values = true)]
    join_url: Option<String>,
    /// A PEM file with the certificate authority of a hub on https, where the URL names none and the system knows none.
    #[arg(long, env = "MOEX_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Memory for experts, such as 512MiB or 4GiB.
    #[arg(long, env = "MOEX_MEMORY", default_value = "4GiB", value_parser = parse_memory)]
    memory: u64,
    /// What to compute on: auto, gpu or cpu.
    #[arg(long, env = "MOEX_DEVICE", default_value = "auto", value_parser = str::parse::<DeviceChoice>)]
    device: DeviceChoice,
    /// Keep experts, and this worker's id, in this folder between runs.
    #[arg(long, env = "MOEX_STORE")]
    store: Option<PathBuf>,
    /// What to call this worker on the hub's swarm page.
    #[arg(long, env = "MOEX_NAME", default_value = "", hide_default_value = true)]
    name: String,
    /// The worker's id, 32 hexadecimal digits; by default the store's, or a new one.
    #[arg(long, env = "MOEX_ID")]
    id: Option<WorkerId>,
    /// Give up when no hub has answered for this many seconds.
    #[arg(long, env = "MOEX_PATIENCE", default_value_t = 120)]
    patience: u64,
    /// Go on looking for messages for a millisecond before sleeping: saves tens of microseconds a layer where the hub is on
    /// this machine or a fast cable away, and keeps a core busy while tokens are made.
    #[arg(long, env = "MOEX_BUSY_POLL", value_parser = FalseyValueParser::new())]
    busy_poll: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    // One thread between socket and kernels: a second one would have to be woken for each message.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    let (status, shown) = watch::channel(Status::default());
    let join_url = match args.join_url {
        Some(join_url) => join_url,
        None => runtime.block_on(find_hub::ask())?,
    };
    if JoinUrl::parse(&join_url).is_ok_and(|url| url.is_readable_on_the_way()) {
        eprintln!(
            "moex worker: by plain http others on the network can read the token: use the hub's https link if it has one."
        );
    }
    let options = WorkerOptions {
        join_url,
        ca: args.ca,
        memory_budget_bytes: args.memory,
        device: args.device,
        store: args.store,
        name: args.name,
        worker: args.id,
        patience: Duration::from_secs(args.patience),
        status: Some(status),
        busy_poll: BusyPoll::new(args.busy_poll),
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

/// One line that follows the status: rewritten in place on a terminal, a new one on each change of state elsewhere.
async fn show(mut status: watch::Receiver<Status>) {
    let in_place = stderr().is_terminal();
    let mut last = String::new();
    while status.changed().await.is_ok() {
        let now = status.borrow_and_update().clone();
        let line = line(&now);
        let key = if in_place { line.clone() } else { format!("{}{:?}", now.state, now.problem) };
        if key != last {
            let (start, end) = if in_place { ("\r\x1b[2K", "") } else { ("", "\n") };
            // Whoever closed stderr does not want to see it.
            drop(write!(stderr(), "{start}{line}{end}"));
            last = key;
        }
        tokio::time::sleep(STATUS_INTERVAL).await;
    }
    if in_place {
        drop(writeln!(stderr()));
    }
}

fn line(status: &Status) -> String {
    let mut line = format!("moex worker: {} on {}", status.state, status.adapter);
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
