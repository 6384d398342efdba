//! `cargo xtask simulate`: runs the shipped swarm and workers on virtual time with random faults, on all cores.

use anyhow::Result;

use super::execute;

/// The command's arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// How many seeds to run.
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Run only this seed.
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Print the events of that seed, one a line.
    #[arg(long, requires = "seed")]
    trace: bool,
}

/// Builds the simulator with optimisation and runs the seeds; fails at the first seed that fails.
pub fn run(args: &Args) -> Result<()> {
    let numbers = [args.seeds, args.from].map(|number| number.to_string());
    let mut command = vec!["run", "--quiet", "--release", "--package", "moex-sim", "--", "chaos"];
    let seed = args.seed.map(|seed| seed.to_string());
    match &seed {
        Some(seed) => command.extend(["--seed", seed]),
        None => command.extend(["--seeds", &numbers[0], "--from", &numbers[1]]),
    }
    if args.trace {
        command.push("--trace");
    }
    execute("cargo", &command)
}
