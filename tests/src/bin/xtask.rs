//! `cargo xtask`: the commands that build, check and measure the project.

use clap::Parser;

fn main() -> anyhow::Result<()> {
    moex_tests::xtask::Cli::parse().run()
}
