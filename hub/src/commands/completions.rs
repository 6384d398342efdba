//! `moex completions` and `moex man`: files that packages ship beside the binary, generated from the flags.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;

use super::Cli;

/// Prints shell completions, as in `moex completions bash > ~/.local/share/bash-completion/completions/moex`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The shell.
    shell: Shell,
}

/// Writes the man pages of `moex` and its commands into a folder.
#[derive(clap::Args, Debug)]
pub struct ManArgs {
    /// Folder to write to; it is created if missing.
    folder: PathBuf,
}

/// Runs `moex completions`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "moex", &mut script);
    match io::stdout().write_all(&script) {
        // The reader of stdout has closed it.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// Runs `moex man`.
pub fn man(args: &ManArgs) -> anyhow::Result<()> {
    let folder = &args.folder;
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), folder))
        .with_context(|| format!("man pages cannot be written into {}", folder.display()))
}
