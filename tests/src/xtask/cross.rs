//! `cargo xtask cross`: checks that the hub compiles for other systems (types, lifetimes and features), without a
//! linker.
//!
//! Crates with C code need a C compiler for the target. Its output is never linked, so a stand-in suffices, which makes
//! an empty object of every source.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{execute, has_target};

const TARGETS: [&str; 2] = ["x86_64-pc-windows-gnu", "aarch64-apple-darwin"];

const COMPILER: &str = r#"#!/bin/sh
# Makes an empty file of every output it is asked for.
while [ $# -gt 0 ]; do
  case "$1" in
    -o) : > "$2"; shift ;;
    -o*) : > "${1#-o}" ;;
  esac
  shift
done
"#;

const ARCHIVER: &str = r#"#!/bin/sh
# Makes an empty archive.
for file in "$@"; do
  case "$file" in
    *.a|*.lib) printf '!<arch>\n' > "$file" ;;
  esac
done
"#;

/// The command's arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Report the skipped targets and succeed if they are not available.
    #[arg(long)]
    or_skip: bool,
}

/// Checks the commands of the workspace for each target.
///
/// # Errors
/// If they do not compile for a target, or a target is not available and may not be skipped.
pub fn run(args: &Args) -> Result<()> {
    for target in TARGETS {
        match install(target) {
            Ok(()) => check(target)?,
            Err(error) if args.or_skip => eprintln!("SKIPPED: {target} was not checked: {error:#}"),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn install(target: &str) -> Result<()> {
    ensure!(cfg!(unix), "the stand-in for a C compiler is a shell script");
    if has_target(target) {
        return Ok(());
    }
    execute("rustup", &["target", "add", target])
}

fn check(target: &str) -> Result<()> {
    let tools = crate::root().join("target").join("cross");
    let compiler = script(&tools, "cc", COMPILER)?;
    let archiver = script(&tools, "ar", ARCHIVER)?;
    let variable = |tool: &str| format!("{tool}_{}", target.replace('-', "_"));
    let status = Command::new("cargo")
        .args(["check", "--workspace", "--bins", "--target", target])
        .current_dir(crate::root())
        .env(variable("CC"), &compiler)
        .env(variable("CXX"), &compiler)
        .env(variable("AR"), &archiver)
        // Apple's headers, which are not used here; without this, the build asks Xcode for them.
        .env("SDKROOT", &tools)
        .status()
        .context("cargo could not be started")?;
    ensure!(status.success(), "the workspace's commands do not compile for {target} ({status})");
    Ok(())
}

/// Writes an executable script, and returns its path.
fn script(folder: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    let written =
        fs::create_dir_all(folder).and_then(|()| fs::write(&path, text)).and_then(|()| executable(&path));
    written.with_context(|| format!("{} cannot be written", path.display()))?;
    Ok(path)
}

#[cfg(unix)]
fn executable(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

#[cfg(not(unix))]
fn executable(_path: &Path) -> std::io::Result<()> {
    Ok(())
}
