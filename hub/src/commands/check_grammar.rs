//! `moex check-grammar`: compiles a grammar, as `moex serve` has it done for each schema before it compiles it itself.

use std::env;
use std::io::{self, Read};
use std::path::PathBuf;

use anyhow::Context;

use crate::api;

/// Compiles the Lark grammar on stdin, and prints how many bytes that takes; a reason on stdout if it takes too much.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// The binary of this process, which knows this command. On Linux it is found even if its file has been replaced.
pub(super) fn own_program() -> Option<PathBuf> {
    match cfg!(target_os = "linux") {
        true => Some(PathBuf::from("/proc/self/exe")),
        false => env::current_exe().ok(),
    }
}

/// Runs `moex check-grammar`.
pub fn run(_: &Args) -> anyhow::Result<()> {
    let mut lark = String::new();
    io::stdin().read_to_string(&mut lark).context("no grammar on stdin")?;
    match api::check_grammar(lark) {
        Ok(n_bytes) => println!("{n_bytes}"),
        Err(why) => {
            println!("{why}");
            anyhow::bail!("the grammar is refused: {why}");
        }
    }
    Ok(())
}
