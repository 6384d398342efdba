//! `cargo xtask bench memory`, `cargo xtask bench cpu` and `cargo xtask bench gpu`: measure the machine's limits, and how close the
//! kernels come.

use anyhow::Result;

use crate::xtask::execute;

/// The command's arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// MiB of weights; should be many times the size of the caches.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(64..=65_536))]
    mib: u32,
}

/// The arguments of `bench gpu`.
#[derive(clap::Args, Debug)]
pub struct GpuArgs {
    /// Settings as NAME=VALUE: adapter (part of a name), formats (q4_0,q4_K_M), layers, depth, prompt, steps, mib (of memory read),
    /// resident (threads that the card keeps resident, to compare with).
    #[arg(value_name = "NAME=VALUE")]
    settings: Vec<String>,
}

/// Runs `kernels/examples/gpu_pass`.
pub(super) fn run_gpu(args: &GpuArgs) -> Result<()> {
    let example = ["run", "--release", "--package", "moex-kernels", "--example", "gpu_pass", "--"];
    let settings: Vec<&str> = args.settings.iter().map(String::as_str).collect();
    execute("cargo", &[&example[..], &settings].concat())
}

/// Runs `kernels/examples/roofline.rs`; `what` is `memory` or `cpu`.
pub(super) fn run(what: &str, args: &Args) -> Result<()> {
    let example = ["run", "--release", "--package", "moex-kernels", "--example", "roofline", "--"];
    execute("cargo", &[&example[..], &[what, &args.mib.to_string()]].concat())
}
