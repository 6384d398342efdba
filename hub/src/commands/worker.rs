//! `moex worker`

/// Joins a hub as a native worker.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("worker: not built yet")
}
