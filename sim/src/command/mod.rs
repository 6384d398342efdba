//! The subcommands of `moex-sim`, one file each: parse arguments and print text. The library does all arithmetic.

pub(crate) mod chaos;
mod output;
pub(crate) mod plan;
pub(crate) mod replay;
pub(crate) mod run;
pub(crate) mod table;

use std::io::{self, Write as _};

use anyhow::Context as _;

/// Writes a command's output.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        // The reader has closed the pipe: `moex-sim table 1 | head -1`.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("could not write the output"),
    }
}
