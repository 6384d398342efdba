//! `moex-sim chaos`: injects faults into simulated swarms for many seeds, or traces one seed.

use std::{
    num::NonZero,
    thread,
    time::{Duration, Instant},
};

use anyhow::{anyhow, bail};
use clap::Args;
use moex_sim::{
    chaos::{self, Summary},
    report::{Cell, Column, Digits, Table},
};

use super::print;

/// The number of seeds between two lines of progress.
const PROGRESS_EVERY: u64 = 10_000;

#[derive(Args)]
pub(crate) struct ChaosArguments {
    /// How many seeds to run
    #[arg(long, env = "MOEX_SEEDS", default_value_t = 1_000)]
    seeds: u64,
    /// First seed
    #[arg(long, env = "MOEX_FROM", default_value_t = 0)]
    from: u64,
    /// Number of threads; default: one for each core
    #[arg(long, env = "MOEX_THREADS")]
    threads: Option<NonZero<usize>>,
    /// Run only this seed
    #[arg(long, env = "MOEX_SEED", conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Print the events of that seed, one a line
    #[arg(long, requires = "seed")]
    trace: bool,
}

/// Runs the seeds and prints a summary; fails at the first seed that violates an invariant.
pub(crate) fn run(arguments: &ChaosArguments) -> anyhow::Result<()> {
    if let Some(seed) = arguments.seed {
        return run_one(seed, arguments.trace);
    }
    let Some(end) = arguments.from.checked_add(arguments.seeds) else {
        bail!("there are no seeds beyond {}", u64::MAX)
    };
    let n_threads =
        arguments.threads.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZero::get);
    let begin = Instant::now();
    let progress = |done: u64| {
        if done.is_multiple_of(PROGRESS_EVERY) {
            eprintln!(
                "{done} of {} seeds, {:.0} a second",
                arguments.seeds,
                done as f64 / begin.elapsed().as_secs_f64()
            );
        }
    };
    let summary = chaos::run_many(arguments.from..end, n_threads, progress)
        .map_err(|violation| anyhow!("{violation}"))?;
    print(&table(&summary, arguments.from, begin.elapsed()).to_text())
}

fn run_one(seed: u64, is_traced: bool) -> anyhow::Result<()> {
    let (trace, ended) = match chaos::run(seed, is_traced) {
        Ok(outcome) => (outcome.trace, Ok((outcome.traffic.events, outcome.time))),
        Err(violation) => (violation.trace.clone(), Err(anyhow!("{violation}"))),
    };
    print(&trace)?;
    let (events, time) = ended?;
    eprintln!("seed {seed} holds: {events} events in {:.1} virtual seconds", time.as_secs_f64());
    Ok(())
}

fn table(summary: &Summary, from: u64, took: Duration) -> Table {
    let totals = &summary.totals;
    let rows = [
        ("seeds", summary.seeds),
        ("events", summary.events),
        ("virtual hours", summary.time.as_secs() / 3600),
        ("jobs that returned their sum", totals.layers),
        ("jobs that no worker could compute", summary.uncovered),
        ("dispatches", totals.dispatches),
        ("answers used", totals.answers),
        ("retries", totals.retries),
        ("hedges", totals.hedges),
        ("timeouts", totals.timeouts),
        ("failed attempts", totals.errors),
        ("late answers", totals.late),
        ("computed on the hub", totals.hub_computed),
    ];
    let per_second = summary.seeds as f64 / took.as_secs_f64();
    Table {
        name: "chaos",
        title: format!(
            "Seeds {from} to {}: no invariant was violated",
            from + summary.seeds.saturating_sub(1)
        ),
        columns: vec![
            Column { key: "what", heading: "what", digits: Digits::Mixed },
            Column { key: "count", heading: "count", digits: Digits::After(0) },
        ],
        rows: rows.map(|(what, count)| vec![Cell::from(what), Cell::Number(count as f64)]).to_vec(),
        notes: vec![format!("{:.1} s, {per_second:.0} seeds a second.", took.as_secs_f64())],
    }
}
