//! `cargo xtask arm`: runs the CPU kernels' tests on AArch64, as in a Raspberry Pi 5 or a Mac, in an emulator.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, ensure};

use super::{
    execute, has, has_target,
    needs::{self, Need},
};

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// The folder of [`TARGET`]'s C library.
const SYSROOT: &str = "/usr/aarch64-linux-gnu";

/// The command's arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Report a skip and succeed if the target or the emulator is not available.
    #[arg(long)]
    or_skip: bool,
}

const NEEDS: [Need; 3] = [
    Need { package: "qemu-user-static", present: || has("qemu-aarch64-static") },
    Need { package: "gcc-aarch64-linux-gnu", present: || has("aarch64-linux-gnu-gcc") },
    Need { package: "libc6-dev-arm64-cross", present: || Path::new(SYSROOT).join("lib/libc.so").exists() },
];

/// Installs missing packages, then runs those tests of the kernels that need no GPU.
pub fn run(args: &Args) -> Result<()> {
    if let Err(error) = install() {
        ensure!(args.or_skip, "{error:#}");
        eprintln!("SKIPPED: the NEON kernels were not compiled or tested: {error:#}");
        return Ok(());
    }
    let status = Command::new("cargo")
        .args(["test", "--package", "moex-kernels", "--no-default-features", "--features", "threads"])
        .args(["--lib", "--tests", "--target", TARGET])
        .current_dir(crate::root())
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc")
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", format!("qemu-aarch64-static -L {SYSROOT}"))
        // A test fails if this names an instruction set that is missing: so the tests check that NEON is used.
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
