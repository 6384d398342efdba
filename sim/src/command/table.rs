//! `moex-sim table`: prints one of the paper's tables, and draws its curves.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use moex_sim::{
    latency::Latency,
    plot::Chart,
    report::Table,
    tables::{end_to_end, expert_phase, memory, prefill, sizes},
};

use super::output::Output;

/// The largest sample file that is read.
const MAX_SAMPLE_FILE_BYTES: u64 = 4 << 20;

#[derive(Args)]
pub(crate) struct TableArguments {
    /// Table to print
    which: Which,
    #[command(flatten)]
    output: Output,
    /// Also draw the table's curves into this file
    #[arg(long, env = "MOEX_PLOT", value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Seed of the Monte Carlo of table 1
    #[arg(long, env = "MOEX_SEED", default_value_t = expert_phase::DEFAULT_SEED)]
    seed: u64,
    /// Draws of the Monte Carlo of table 1, for each h
    #[arg(long, env = "MOEX_SAMPLES", default_value_t = expert_phase::DEFAULT_DRAWS)]
    samples: u64,
    /// Table 1 for another latency: lognormal:MEDIAN,SIGMA or shifted:SHIFT,MEDIAN,SIGMA in ms, or file:PATH with a
    /// time in ms a line
    #[arg(long, env = "MOEX_LATENCY", value_name = "SPEC")]
    latency: Option<String>,
    /// Table 1 for another number of experts a token visits
    #[arg(long, env = "MOEX_K")]
    k: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Which {
    /// The expert phase: the slowest of k experts, each the fastest of h copies (equation 18)
    #[value(name = "1")]
    ExpertPhase,
    /// Sizes of the model in the paper's geometry and in the checkpoint's
    #[value(name = "2")]
    Sizes,
    /// A token from end to end over four networks
    #[value(name = "3")]
    EndToEnd,
    /// The rate of a prefill over four networks
    #[value(name = "4")]
    Prefill,
    /// Memory per worker
    #[value(name = "eq4")]
    Memory,
}

/// Prints the table, and draws it if a file for that is named.
pub(crate) fn run(arguments: &TableArguments) -> anyhow::Result<()> {
    let (table, chart) = make_table(arguments)?;
    if let Some(path) = &arguments.plot {
        let Some(chart) = chart else {
            bail!("table {} is a list of sizes and has no curve to plot", table.name);
        };
        fs::write(path, chart.to_svg()?).with_context(|| format!("could not write {}", path.display()))?;
    }
    arguments.output.show(&table)
}

fn make_table(arguments: &TableArguments) -> anyhow::Result<(Table, Option<Chart>)> {
    if arguments.which != Which::ExpertPhase && (arguments.latency.is_some() || arguments.k.is_some()) {
        bail!("--latency and --k belong to table 1: the others take their times from the paper");
    }
    Ok(match arguments.which {
        Which::ExpertPhase => {
            let mut question = expert_phase::Question::paper();
            question.seed = arguments.seed;
            question.draws = arguments.samples;
            if let Some(spec) = &arguments.latency {
                question.latency = latency(spec)?;
            }
            question.k = arguments.k.unwrap_or(question.k);
            (question.table()?, Some(question.chart()?))
        }
        Which::Sizes => (sizes::table(), None),
        Which::EndToEnd => (end_to_end::table(), Some(end_to_end::chart())),
        Which::Prefill => (prefill::table()?, Some(prefill::chart()?)),
        Which::Memory => (memory::table()?, Some(memory::chart()?)),
    })
}

fn latency(spec: &str) -> anyhow::Result<Latency> {
    let Some(path) = spec.strip_prefix("file:") else { return Ok(spec.parse()?) };
    let path = Path::new(path);
    let mut text = String::new();
    fs::File::open(path)
        .and_then(|file| file.take(MAX_SAMPLE_FILE_BYTES + 1).read_to_string(&mut text))
        .with_context(|| format!("could not read {}", path.display()))?;
    if text.len() as u64 > MAX_SAMPLE_FILE_BYTES {
        bail!("{} is larger than {MAX_SAMPLE_FILE_BYTES} bytes", path.display());
    }
    Latency::from_sample_lines(&text).with_context(|| path.display().to_string())
}
