//! `moex demo`

/// Answers a prompt with the demo model, a hub and native workers as processes.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("demo: not built yet")
}
