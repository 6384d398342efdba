//! The commands of `cargo xtask`, one file each.

pub mod bench;
pub mod test;
pub mod worker;

use std::process::Command;

use anyhow::{Context, Result, ensure};

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

/// Whether a program of that name is on the path.
pub fn has(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}
