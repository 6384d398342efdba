//! `moex-sim replay`: predicts a hub's trace from its first half.

use std::{fs, io::BufReader, path::PathBuf};

use anyhow::Context as _;
use clap::Args;
use moex_sim::replay::{self, Trace};

use super::output::Output;

#[derive(Args)]
pub(crate) struct ReplayArguments {
    /// Trace written by `moex serve --trace FILE`
    trace: PathBuf,
    /// Number of answers to leave out at the beginning, which met cold caches. Answers must come one after another,
    /// each starting with its prompt
    #[arg(long, env = "MOEX_SKIP", default_value_t = 0)]
    skip: usize,
    /// Seed of all random draws
    #[arg(long, env = "MOEX_SEED", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: Output,
    /// Also draw measured and predicted times of layers into this file
    #[arg(long, env = "MOEX_PLOT", value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// Reads a trace, fits it, predicts, and prints both measurement and prediction.
pub(crate) fn run(arguments: &ReplayArguments) -> anyhow::Result<()> {
    let path = &arguments.trace;
    let file = fs::File::open(path).with_context(|| format!("could not read {}", path.display()))?;
    let mut trace = Trace::read(BufReader::new(file)).with_context(|| path.display().to_string())?;
    if trace.dropped > 0 {
        eprintln!(
            "moex-sim: the hub lost {} records of this trace: it wrote slower than it served",
            trace.dropped
        );
    }
    if arguments.skip > 0 {
        trace.skip_answers(arguments.skip);
    }
    let comparison = replay::replay(&trace, arguments.seed).with_context(|| path.display().to_string())?;
    if let Some(path) = &arguments.plot {
        let svg = comparison.chart().to_svg()?;
        fs::write(path, svg).with_context(|| format!("could not write {}", path.display()))?;
    }
    let table = comparison.table();
    arguments.output.show(&table)
}
