//! `cargo xtask adversary`: an independent client and every attack of `tests/adversary`, each on a hub of its own, for as long as
//! told.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// What the script ends with where it cannot run.
pub const NOT_THERE: i32 = 3;

/// What to try.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// How long each attack lasts.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Those alone whose name has this in it; `list` prints the names.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Count what is not promised yet as broken too.
    #[arg(long)]
    all: bool,
}

/// Runs it on the release binary, prints a verdict for each, and fails if one is broken.
pub fn run(args: &Args) -> Result<()> {
    let mut command = suite(super::release()?.path());
    command.args(["--seconds", &args.seconds.to_string()]);
    if let Some(name) = &args.only {
        command.args(["--only", name]);
    }
    if args.all {
        command.arg("--all");
    }
    let status = command.status().context("python3 could not be started")?;
    ensure!(status.code() != Some(NOT_THERE), "the adversary wants Python 3.11 or later");
    if !status.success() {
        bail!("the adversary broke something: its verdicts say what");
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
