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
    /// Builds the worker bundle that the hub embeds.
    Worker,
    /// Runs what the project's CI runs: format, lints, docs, tests.
    Ci,
    /// Measures tokens per second and the time of a layer, alone and with workers.
    Bench(xtask::bench::Args),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Test(args) => xtask::test::run(&args),
        Command::Worker => xtask::worker::build_bundle(),
        Command::Ci => xtask::execute("bash", &[".ci/run"]),
        Command::Bench(args) => xtask::bench::run(&args),
    }
}
