//! `cargo xtask adversary`: runs an independent client and every attack of `tests/adversary`, each on a hub of its own,
//! for a given time.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// The script's exit code if it cannot run.
pub const NOT_THERE: i32 = 3;

/// The attacks to run.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Seconds that each attack lasts
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Texts that are compared at least while workers lie: each lie goes on for so long, within five minutes
    #[arg(long, default_value_t = 0, value_name = "N")]
    answers: u32,
    /// Only attacks whose name contains this; `list` prints the names. ", blocking", ", exact" and ", audit" are all lies to a
    /// hub in that mode.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Also fail for broken rules that are not promised yet.
    #[arg(long)]
    all: bool,
}

/// Runs the attacks on the release binary, prints a verdict for each, and fails if one broke a rule.
pub fn run(args: &Args) -> Result<()> {
    let mut command = suite(super::release()?.path());
    command.args(["--seconds", &args.seconds.to_string(), "--answers", &args.answers.to_string()]);
    if let Some(name) = &args.only {
        command.args(["--only", name]);
    }
    if args.all {
        command.arg("--all");
    }
    let status = command.status().context("python3 could not be started")?;
    ensure!(status.code() != Some(NOT_THERE), "the adversary needs Python 3.11 or later");
    if !status.success() {
        bail!("the adversary broke a rule: see its verdicts");
    }
    Ok(())
}

/// The suite against hubs of that binary.
pub fn suite(moex: &Path) -> Command {
    let mut command = Command::new("python3");
    command
        .args(["-B", "tests/adversary/adversary.py", "suite", "--moex"])
        .arg(moex)
        .current_dir(crate::root());
    command
}
