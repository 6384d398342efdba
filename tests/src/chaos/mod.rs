//! Chaos tests: request streams on a hub while faults, chosen by a seed, hit everything around it.
//!
//! A [`script`](mod@script) fixes the faults and their times before the start; `fleet` carries it out on real
//! processes, links and tabs; `streams` compare each answer with the hub's own. A seed repeats the script, but not the
//! exact run: faults hit real processes at different moments of their work.

mod fleet;
mod report;
pub mod script;
mod streams;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use serde_json::Value;
use tokio::time::Instant;

pub use self::report::{Report, figure};

use self::fleet::{Stage, Tally};
use self::script::Track;
use self::streams::Case;
use crate::browser::Browser;
use crate::host::Host;
use crate::hub::{Hub, Moex};

/// Tabs may be asked only cases with at least this margin between the model's best two logits. A tab's GPU adds in
/// another order than the hub, so texts may differ where the margin is smaller.
const CLEAR_MARGIN: f64 = 0.05;

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// The `moex` binary.
    pub moex: Moex,
    /// How long faults happen.
    pub length: Duration,
    /// Chooses the faults and the case that a stream asks next.
    pub seed: u64,
    /// Native workers that run from the start, each behind its own proxy.
    pub n_workers: usize,
    /// Tabs of Chromium.
    pub n_tabs: usize,
    /// Native workers on their own hosts.
    pub n_hosts: usize,
    /// Concurrent requests.
    pub n_streams: usize,
    /// The number of the demo's cases to ask.
    pub n_cases: usize,
    /// Further arguments of `moex serve`.
    pub serve: Vec<String>,
}

/// Runs the test. Requests that fail or differ are in the report, not errors.
///
/// # Errors
/// If the hub ends, or the swarm has not recovered in time after the last fault.
pub async fn run(config: &Config) -> Result<Report> {
    let serve: Vec<&str> = config.serve.iter().map(String::as_str).collect();
    let serve = [&["--experts", "int4"], &serve[..]].concat();
    let alone = config.moex.hub(&serve)?;
    let cases = Arc::new(expected(config, &alone).await.context("the hub alone")?);
    let hub = if config.n_hosts > 0 { config.moex.open_hub(&serve)? } else { config.moex.hub(&serve)? };
    let browser = if config.n_tabs > 0 { Some(Arc::new(Browser::launch().await?)) } else { None };
    let stage = Stage::set(&hub, config, browser.clone()).await?;
    hub.wait_for_workers(config.n_to_stay()).await?;

    let tally = Tally::default();
    let begin = Instant::now();
    let until = begin + config.length;
    let streams = (0..config.n_streams).map(|index| {
        let seed = config.seed.wrapping_add(index as u64);
        // With activations in f32 a tab may differ from the hub where nobody has looked at the margin.
        let alone = Some(alone.url.clone()).filter(|_| config.serve.iter().all(|argument| argument != "f32"));
        tokio::spawn(streams::run(hub.url.clone(), alone, cases.clone(), seed, until))
    });
    let streams: Vec<_> = streams.collect();
    let mut stage = stage.play(begin, &tally).await?;
    let calm = Instant::now();
    let whole = hub.wait_for_workers(config.n_to_stay()).await;
    whole.context("the swarm has not recovered")?;
    let recovery = calm.elapsed();
    let mut outcome = streams::Outcome::default();
    for stream in streams {
        outcome.add(stream.await??);
    }
    let status = hub.status().await?;
    stage.check()?;
    Ok(Report {
        seed: config.seed,
        events: tally.into_counts(),
        outcome,
        totals: status["totals"].clone(),
        recovery,
    })
}

/// The cases to ask, with the answers of the hub without workers.
async fn expected(config: &Config, hub: &Hub) -> Result<Vec<Case>> {
    let file = crate::data("demo-cases.jsonl");
    let lines = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let mut cases: Vec<Value> =
        lines.lines().map(serde_json::from_str).collect::<Result<_, _>>().context("a case a line")?;
    if config.n_tabs > 0 {
        cases.retain(|case| case["min_margin"].as_f64().is_some_and(|margin| margin > CLEAR_MARGIN));
    }
    cases.truncate(config.n_cases);
    ensure!(!cases.is_empty(), "there is no case to ask");
    let per_stream = cases.len().div_ceil(config.n_streams.max(1));
    let asked = cases.chunks(per_stream).map(|cases| streams::alone(&hub.url, cases));
    Ok(try_join_all(asked).await?.concat())
}

impl Config {
    /// All targets of faults.
    fn tracks(&self) -> Vec<Track> {
        let n_guests = self.n_workers.div_ceil(2);
        let workers = (0..self.n_workers).flat_map(|i| [Track::Worker(i), Track::Link(i)]);
        let guests = (0..n_guests).map(Track::Guest);
        let tabs = (0..self.n_tabs).map(Track::Tab);
        workers.chain(guests).chain(tabs).chain((0..self.n_hosts).map(Track::Host)).collect()
    }

    /// Workers that run both before and after the faults.
    fn n_to_stay(&self) -> usize {
        self.n_workers + self.n_tabs + self.n_hosts
    }
}

/// As many [hosts](Host) as requested, where the system allows them; reports a skip where it does not.
pub fn hosts(n: usize) -> usize {
    match (n > 0).then(Host::new) {
        Some(Err(error)) => {
            eprintln!("SKIPPED: workers on hosts of their own: {error:#}");
            0
        }
        _ => n,
    }
}

/// A folder for the logs of a run's processes; it is emptied first.
pub fn log_folder(name: &str) -> Result<PathBuf> {
    let folder = crate::root().join("target").join(name);
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}
