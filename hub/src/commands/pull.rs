//! `moex pull`

use std::io::{Write, stdout};

use anyhow::Context;

use super::model_path::download;
use crate::pull::{ModelName, Settings};

/// Downloads a model from Hugging Face, or goes on where a download stopped, and prints where it lies.
///
/// It lies where all of Hugging Face's tools keep models, and what they have downloaded is not downloaded again.
/// HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE and HF_HUB_OFFLINE say what they say everywhere.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// OWNER/REPO, or one GGUF of it with all its parts, OWNER/REPO/FILE.gguf; with :REVISION behind it if wanted.
    #[arg(value_parser = name)]
    name: ModelName,

    /// A branch, a tag or a commit; without it, main.
    #[arg(long, env = "MOEX_REVISION", value_name = "REVISION")]
    revision: Option<String>,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let name = match &args.revision {
        Some(revision) => args.name.at_revision(revision)?,
        None => args.name,
    };
    let path = download(&name, &Settings::from_env()?, &mut |_, _| {})?;
    writeln!(stdout(), "{}", path.display()).context("the path could not be printed")
}

fn name(text: &str) -> Result<ModelName, String> {
    text.parse().map_err(|error: crate::pull::NameError| error.to_string())
}
