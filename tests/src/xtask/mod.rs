//! The commands of `cargo xtask`, one file each.

pub mod arm;
pub mod bench;
pub mod chaos;
pub mod needs;
pub mod simulate;
pub mod test;
pub mod worker;

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::hub::Moex;

/// Runs a program in the root of the repository and fails when it fails.
pub fn execute(program: &str, args: &[&str]) -> Result<()> {
    let status = Command::new(program)
        .args(args)
        .current_dir(crate::root())
        .status()
        .with_context(|| format!("{program} could not be started"))?;
    ensure!(status.success(), "`{program} {}` failed ({status})", args.join(" "));
    Ok(())
}

/// The `moex` binary for what measures or hurries: `$MOEX_BIN`, else the release build, made first.
fn release() -> Result<Moex> {
    if let Some(path) = std::env::var_os("MOEX_BIN") {
        return Ok(Moex::at(path.into()));
    }
    execute("cargo", &["build", "--release", "--package", "moex-hub"])?;
    Ok(Moex::at(crate::root().join("target/release/moex")))
}

/// Whether a program of that name is on the path.
pub fn has(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}
