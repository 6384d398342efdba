//! `cargo xtask bench memory` and `cargo xtask bench cpu`: measure the machine's limits, and how close the kernels
//! come.

use anyhow::Result;

use crate::xtask::execute;

/// The command's arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// MiB of weights; should be many times the size of the caches.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(64..=65_536))]
    mib: u32,
}

/// Runs `kernels/examples/roofline.rs`; `what` is `memory` or `cpu`.
pub(super) fn run(what: &str, args: &Args) -> Result<()> {
    let example = ["run", "--release", "--package", "moex-kernels", "--example", "roofline", "--"];
    execute("cargo", &[&example[..], &[what, &args.mib.to_string()]].concat())
}
