//! `moex eval`

/// Answers the cases of a file greedily and counts the exact matches.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("eval: not built yet")
}
