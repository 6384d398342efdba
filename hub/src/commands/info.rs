//! `moex info`

/// Says what a model is, and what memory the hub and each worker need.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("info: not built yet")
}
