//! `moex-sim run`: runs a scenario file, optionally with changed values, and prints a table or draws curves.

use std::{
    fs,
    io::{self, BufReader, IsTerminal as _, Read as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow, bail};
use clap::{Args, ValueEnum};
use moex_sim::{
    replay::Trace,
    run::{self, Outcome},
    scenario::{Checked, MAX_SCENARIO_BYTES, Scenario},
};

use super::output::Output;

/// The most values of a swept key.
const MAX_RUNS: usize = 100;
/// The number of tokens between two reports of progress.
const PROGRESS_EVERY: u64 = 100;

#[derive(Args)]
pub(crate) struct RunArguments {
    /// Scenario file, in TOML; examples are in sim/scenarios
    scenario: PathBuf,
    /// Set a key to another value: swarm.hedge=2, workers.0.link=wifi
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Run once for each value of a key: workers.0.count=1,2,4,8
    #[arg(long, value_name = "KEY=A,B,C")]
    sweep: Option<String>,
    #[command(flatten)]
    output: Output,
    /// Also draw a picture into this file
    #[arg(long, env = "MOEX_PLOT", value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Picture to draw
    #[arg(long, env = "MOEX_PICTURE", value_enum, default_value_t = Picture::Latencies)]
    picture: Picture,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Picture {
    /// Times of layers and tokens, with the closed form over them
    Latencies,
    /// The parts of a layer's time
    Stack,
    /// One token, with a lane for the hub and for every worker
    Lanes,
    /// A token's time by the swept value
    Sweep,
}

/// Runs the scenario, once or for each value, and prints the result.
pub(crate) fn run(arguments: &RunArguments) -> anyhow::Result<()> {
    let path = &arguments.scenario;
    let text = read(path)?;
    let sets = arguments.set.iter().map(|set| key_value(set)).collect::<anyhow::Result<Vec<_>>>()?;
    let variants: Vec<(String, Vec<(String, String)>)> = match &arguments.sweep {
        None => vec![(String::new(), sets)],
        Some(sweep) => {
            let (key, values) = key_value(sweep)?;
            let variant = |value: &str| {
                let set = (key.clone(), value.trim().to_owned());
                (format!("{key}={}", set.1), sets.iter().cloned().chain([set]).collect())
            };
            values.split(',').map(variant).collect()
        }
    };
    if variants.len() > MAX_RUNS {
        bail!("a sweep has at most {MAX_RUNS} values");
    }
    // All scenarios are checked before the first one runs.
    let checked = variants
        .into_iter()
        .map(|(setting, sets)| Ok((setting, Scenario::parse_with(&text, &sets)?)))
        .collect::<Result<Vec<_>, moex_sim::scenario::ScenarioError>>()
        .map_err(|error| anyhow!("{}: {error}", path.display()))?;
    let mut runs = Vec::new();
    for (setting, checked) in checked {
        let checked = recorded(checked, path)?;
        let outcome = run::run(&checked, progress).with_context(|| path.display().to_string())?;
        runs.push((setting, outcome));
    }
    let name = path.file_stem().unwrap_or_default().to_string_lossy().replace('-', " ");
    let table = match &runs[..] {
        [(setting, outcome)] if setting.is_empty() => run::table(&name, outcome),
        _ => run::sweep_table(&name, &runs),
    };
    if let Some(path) = &arguments.plot {
        let svg = draw(arguments.picture, &name, &runs)?;
        fs::write(path, svg).with_context(|| format!("could not write {}", path.display()))?;
    }
    arguments.output.show(&table)
}

/// Reads the trace that contains the scenario's routing, if the scenario names one.
fn recorded(checked: Checked, scenario: &Path) -> anyhow::Result<Checked> {
    let Some(trace) = checked.recorded_from() else { return Ok(checked) };
    let path = scenario.parent().unwrap_or(Path::new("")).join(trace);
    let file = fs::File::open(&path).with_context(|| format!("could not read {}", path.display()))?;
    let trace = Trace::read(BufReader::new(file)).with_context(|| path.display().to_string())?;
    checked.with_recorded(&trace).with_context(|| path.display().to_string())
}

fn draw(picture: Picture, name: &str, runs: &[(String, Outcome)]) -> anyhow::Result<String> {
    Ok(match picture {
        Picture::Latencies => run::latencies(name, runs).to_svg()?,
        Picture::Stack => run::stack(name, runs).to_svg(),
        Picture::Lanes => {
            let lanes = runs.first().and_then(|(_, outcome)| run::lanes(name, outcome));
            lanes.context("no token was decoded in the middle of the run: let it decode more")?.to_svg()
        }
        Picture::Sweep => {
            let chart = run::sweep_curves(name, runs);
            chart.context("--picture sweep wants --sweep KEY=A,B with different numbers")?.to_svg()?
        }
    })
}

fn read(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    fs::File::open(path)
        .and_then(|file| file.take(MAX_SCENARIO_BYTES as u64 + 1).read_to_string(&mut text))
        .with_context(|| format!("could not read {}", path.display()))?;
    Ok(text)
}

fn key_value(text: &str) -> anyhow::Result<(String, String)> {
    let (key, value) = text.split_once('=').ok_or_else(|| anyhow!("'{text}' is not KEY=VALUE"))?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

/// Prints one line that rewrites itself, if the output is a terminal.
fn progress(done: u64, asked: u64) {
    if done.is_multiple_of(PROGRESS_EVERY) && done > 0 && io::stderr().is_terminal() {
        let end = if done == asked { '\n' } else { '\r' };
        eprint!("{done} of {asked} tokens{end}");
    }
}
