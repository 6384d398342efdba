//! `moex synth`

/// Writes a random checkpoint of a true geometry.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("synth: not built yet")
}
