//! The commands of `cargo xtask`, one file each.

pub mod adversary;
pub mod arm;
pub mod bench;
pub mod chaos;
pub mod cross;
pub mod dist;
pub mod needs;
pub mod simulate;
pub mod test;
pub mod timing;
pub mod worker;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};

use crate::hub::Moex;

/// Builds, checks and measures the project.
#[derive(Parser, Debug)]
#[command(name = "cargo xtask")]
pub struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand, Debug)]
enum Task {
    /// Runs every test; installs Chromium and a software Vulkan driver if they are missing and the user may install.
    Test(test::Args),
    /// Runs the CPU kernels' tests on AArch64 in an emulator; installs the emulator if it is missing and the user may
    /// install.
    Arm(arm::Args),
    /// Checks that the commands compile for Windows and for Apple's processors.
    Cross(cross::Args),
    /// Builds the worker bundle that the hub embeds.
    Worker,
    /// Packs the release archive of this machine's target: binary, licence, completions, man pages.
    Dist,
    /// Runs what the project's CI runs: format, lints, docs, tests.
    Ci,
    /// Injects faults around a hub, chosen by a seed, and compares every answer with the hub's own.
    Chaos(chaos::Args),
    /// Runs an independent client and an adversary, both in Python, against hubs of this binary.
    Adversary(adversary::Args),
    /// Runs a benchmark.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Injects random faults into simulated swarms, seed by seed, and checks invariants.
    Simulate(simulate::Args),
}

impl Cli {
    /// Runs the command to its end.
    pub fn run(self) -> Result<()> {
        match self.command {
            Task::Test(args) => test::run(&args),
            Task::Arm(args) => arm::run(&args),
            Task::Cross(args) => cross::run(&args),
            Task::Worker => worker::build_bundles(),
            Task::Dist => dist::run(),
            Task::Ci => execute("bash", &[".ci/run"]),
            Task::Chaos(args) => chaos::run(&args),
            Task::Adversary(args) => adversary::run(&args),
            Task::Bench(bench) => bench::run(&bench),
            Task::Simulate(args) => simulate::run(&args),
        }
    }
}

/// Runs a program in the root of the repository; fails if it fails.
pub fn execute(program: &str, args: &[&str]) -> Result<()> {
    let mut command = Command::new(program);
    command.args(args).current_dir(crate::root());
    // The variables that `cargo run` sets for this program. Build scripts that read them (ring's) would run again under
    // a cargo started here, and everything that depends on them would be compiled again.
    for (name, _) in std::env::vars_os() {
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|own| name.to_string_lossy().starts_with(own)) {
            command.env_remove(name);
        }
    }
    let status = command.status().with_context(|| format!("{program} could not be started"))?;
    ensure!(status.success(), "`{program} {}` failed ({status})", args.join(" "));
    Ok(())
}

/// The `moex` binary for measurements and long runs: `$MOEX_BIN`, otherwise the release build, built first.
fn release() -> Result<Moex> {
    if let Some(path) = std::env::var_os("MOEX_BIN") {
        return Ok(Moex::at(path.into()));
    }
    // All of the workspace's features, not the package's own: else its dependencies are compiled once more.
    execute("cargo", &["build", "--release", "--workspace", "--bin", "moex"])?;
    let binary = format!("moex{}", std::env::consts::EXE_SUFFIX);
    Ok(Moex::at(target().join("release").join(binary)))
}

/// Cargo's target folder.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| crate::root().join("target"), PathBuf::from)
}

/// Whether a program of that name is on the path.
pub fn has(program: &str) -> bool {
    let file = format!("{program}{}", std::env::consts::EXE_SUFFIX);
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(&file).is_file()))
}

/// Whether the toolchain has a target's standard library.
fn has_target(target: &str) -> bool {
    let libdir = Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output();
    libdir.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}
