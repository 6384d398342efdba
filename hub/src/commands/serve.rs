//! `moex serve`

/// Runs the hub: OpenAI-shaped API, chat page, swarm page, join page.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("serve: not built yet")
}
