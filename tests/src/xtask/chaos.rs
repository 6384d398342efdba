//! `cargo xtask chaos`: checks that every answer equals the hub's own, whatever faults hit its workers.

use std::time::Duration;

use anyhow::{Result, bail};

use crate::chaos::{self, Config};

/// The command's arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Duration of the faults, seconds.
    #[arg(long, default_value_t = 120)]
    seconds: u64,
    /// The seed that chooses the faults; default: one from the clock, which is printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Native workers, each behind a proxy; half as many more join and leave.
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// Tabs of Chromium.
    #[arg(long, default_value_t = 0)]
    tabs: usize,
    /// Native workers on their own hosts (network namespaces), which lose their cable or their power: needs root.
    #[arg(long, default_value_t = 2)]
    hosts: usize,
    /// Concurrent requests.
    #[arg(long, default_value_t = 8)]
    streams: usize,
    /// The number of the demo's cases to ask.
    #[arg(long, default_value_t = 100)]
    cases: usize,
    /// Further arguments of `moex serve`, after `--`.
    #[arg(last = true)]
    serve: Vec<String>,
}

/// Runs the test on the release binary, prints the report, and fails if any request failed or differed.
pub fn run(args: &Args) -> Result<()> {
    let logs = chaos::log_folder("chaos")?;
    let config = Config {
        moex: super::release()?.logging_to(&logs),
        length: Duration::from_secs(args.seconds),
        seed: args.seed.unwrap_or_else(by_the_clock),
        n_workers: args.workers,
        n_tabs: args.tabs,
        n_hosts: chaos::hosts(args.hosts),
        n_streams: args.streams,
        n_cases: args.cases,
        serve: args.serve.clone(),
    };
    eprintln!("chaos with --seed {}; logs go to {}", config.seed, logs.display());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let report = match runtime.block_on(chaos::run(&config)) {
        Ok(report) => report,
        Err(error) => bail!("chaos with --seed {} ended: {error:#}", config.seed),
    };
    println!("{report}");
    if !report.is_good() {
        bail!("chaos with --seed {} broke answers: {} has the logs", config.seed, logs.display());
    }
    Ok(())
}

/// A seed that changes every second.
fn by_the_clock() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs())
}
