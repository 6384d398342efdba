//! `cargo xtask`: the commands that build, check and measure the project.

use clap::{Parser, Subcommand};
use moex_tests::xtask;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Builds, checks and measures the project")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs every test; installs Chromium and a software Vulkan driver when they are missing and it may.
    Test(xtask::test::Args),
    /// Runs the CPU kernels' tests on AArch64, emulated; installs the emulator when it is missing and it may.
    Arm(xtask::arm::Args),
    /// Builds the worker bundle that the hub embeds.
    Worker,
    /// Runs what the project's CI runs: format, lints, docs, tests.
    Ci,
    /// Breaks everything around a hub by a seed, and compares every answer with the hub's own.
    Chaos(xtask::chaos::Args),
    /// Measures.
    #[command(subcommand)]
    Bench(xtask::bench::Bench),
    /// Does random harm to simulated swarms, seed by seed, and checks what must hold.
    Simulate(xtask::simulate::Args),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Test(args) => xtask::test::run(&args),
        Command::Arm(args) => xtask::arm::run(&args),
        Command::Worker => xtask::worker::build_bundle(),
        Command::Ci => xtask::execute("bash", &[".ci/run"]),
        Command::Chaos(args) => xtask::chaos::run(&args),
        Command::Bench(bench) => xtask::bench::run(&bench),
        Command::Simulate(args) => xtask::simulate::run(&args),
    }
}
