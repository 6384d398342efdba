//! `moex logits`

/// Writes the logits of given token ids as a safetensors file.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("logits: not built yet")
}
