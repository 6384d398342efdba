//! `cargo xtask arm`: runs the CPU kernels' tests on AArch64, as in a Raspberry Pi 5 or a Mac, in an emulator.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, ensure};

use super::{
    execute, has, has_target,
    needs::{self, Need},
};

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Where the C library of [`TARGET`] lies.
const SYSROOT: &str = "/usr/aarch64-linux-gnu";

/// What to run.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Say that it was skipped, and succeed, where the target or the emulator cannot be had.
    #[arg(long)]
    or_skip: bool,
}

const NEEDS: [Need; 3] = [
    Need { package: "qemu-user-static", present: || has("qemu-aarch64-static") },
    Need { package: "gcc-aarch64-linux-gnu", present: || has("aarch64-linux-gnu-gcc") },
    Need { package: "libc6-dev-arm64-cross", present: || Path::new(SYSROOT).join("lib/libc.so").exists() },
];

/// Installs what is missing, then runs the tests of the kernels that need no GPU.
pub fn run(args: &Args) -> Result<()> {
    if let Err(error) = install() {
        ensure!(args.or_skip, "{error:#}");
        eprintln!("SKIPPED: the NEON kernels were compiled and tested nowhere: {error:#}");
        return Ok(());
    }
    let status = Command::new("cargo")
        .args(["test", "--package", "moex-kernels", "--no-default-features", "--features", "threads"])
        .args(["--lib", "--tests", "--target", TARGET])
        .current_dir(crate::root())
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc")
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", format!("qemu-aarch64-static -L {SYSROOT}"))
        // A test fails where it names what is not there: that NEON was tried is part of what is tested.
        .env("MOEX_SIMD", "neon")
        .status()
        .context("cargo could not be started")?;
    ensure!(status.success(), "the kernels' tests failed on {TARGET} ({status})");
    Ok(())
}

fn install() -> Result<()> {
    if !has_target(TARGET) {
        execute("rustup", &["target", "add", TARGET])?;
    }
    needs::install(&NEEDS)
}
