//! `moex-sim plan`: finds the smallest rooms that serve a model fast enough.

use std::{
    fs,
    io::{self, IsTerminal as _},
    path::PathBuf,
};

use anyhow::Context as _;
use clap::Args;
use moex_sim::{
    plan::{self, MAX_WORKERS, Question},
    run,
};

use super::output::Output;

#[derive(Args)]
pub(crate) struct PlanArguments {
    /// Model to serve: qwen3-30b-a3b, or paper for the paper's geometry
    #[arg(long, env = "MOEX_MODEL", default_value = "qwen3-30b-a3b", value_name = "NAME")]
    model: String,
    /// Longest average time of a token: 200ms, 0.5s
    #[arg(long, env = "MOEX_TARGET", default_value = "200ms", value_name = "TIME", value_parser = millis)]
    target: f64,
    /// Memory of each worker for experts: 4GiB, 512MiB
    #[arg(long, env = "MOEX_RAM", default_value = "4GiB", value_name = "SIZE", value_parser = bytes)]
    ram: f64,
    /// Kinds of device to try, by preset; default: all
    #[arg(long, env = "MOEX_DEVICE", value_delimiter = ',', value_name = "NAME")]
    device: Vec<String>,
    /// Link of each worker, by preset
    #[arg(long, env = "MOEX_LINK", default_value = "wifi", value_name = "NAME")]
    link: String,
    /// Format of the experts on workers
    #[arg(long, env = "MOEX_EXPERTS", default_value = "int4", value_name = "FORMAT")]
    experts: String,
    /// Most workers of a room
    #[arg(long, env = "MOEX_MAX_WORKERS", default_value_t = 64, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=MAX_WORKERS as i64))]
    max_workers: u16,
    /// Tokens to simulate for each room
    #[arg(long, env = "MOEX_TOKENS", default_value_t = 16, value_name = "N",
          value_parser = clap::value_parser!(u16).range(2..))]
    tokens: u16,
    /// Seed of all random draws
    #[arg(long, env = "MOEX_SEED", default_value_t = 1)]
    seed: u32,
    #[command(flatten)]
    output: Output,
    /// Also draw the parts of a layer's time in each room into this file
    #[arg(long, env = "MOEX_PLOT", value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// Simulates rooms and prints the best of each kind.
pub(crate) fn run(arguments: &PlanArguments) -> anyhow::Result<()> {
    let question = Question {
        model: arguments.model.clone(),
        experts: arguments.experts.clone(),
        target_ms: arguments.target,
        ram_bytes: arguments.ram,
        devices: arguments.device.clone(),
        link: arguments.link.clone(),
        max_workers: arguments.max_workers.into(),
        tokens: arguments.tokens.into(),
        seed: arguments.seed.into(),
    };
    let is_watched = io::stderr().is_terminal();
    let rooms = plan::plan(&question, |n_tried| {
        if is_watched {
            eprint!("{n_tried} rooms tried\r");
        }
    })?;
    if is_watched {
        eprintln!();
    }
    if let Some(path) = &arguments.plot {
        let runs: Vec<_> = rooms
            .iter()
            .map(|room| (format!("room={} x {}", room.n_workers, room.device), room.outcome.clone()))
            .collect();
        let svg = run::stack("plan", &runs).to_svg();
        fs::write(path, svg).with_context(|| format!("could not write {}", path.display()))?;
    }
    let table = plan::table(&question, &rooms);
    arguments.output.show(&table)
}

fn millis(text: &str) -> Result<f64, String> {
    let units = [("ms", 1.0), ("s", 1e3)];
    with_unit(text, &units).ok_or_else(|| "it must be a time such as 200ms or 0.5s".to_owned())
}

fn bytes(text: &str) -> Result<f64, String> {
    let units = [("KiB", 1024.0), ("MiB", 1024.0 * 1024.0), ("GiB", 1024.0 * 1024.0 * 1024.0)];
    with_unit(text, &units).ok_or_else(|| "it must be a size such as 4GiB or 512MiB".to_owned())
}

/// Reads a number above 0 before one of these units; the first unit that fits counts.
fn with_unit(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (number, unit) = units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
    let value = number.trim().parse::<f64>().ok()? * unit;
    (value > 0.0 && value < 1e15).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_have_units() {
        assert_eq!((millis("200ms"), millis("0.5s")), (Ok(200.0), Ok(500.0)));
        assert_eq!(bytes("4GiB"), Ok(4_294_967_296.0));
        for wrong in ["", "200", "-1ms", "ms", "nanms", "infms"] {
            assert!(millis(wrong).is_err(), "{wrong}");
        }
        assert!(bytes("4GB").is_err() && bytes("0GiB").is_err());
    }
}
