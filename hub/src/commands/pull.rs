//! `moex pull`: downloads a model.

use std::io::{Write, stdout};

use anyhow::Context;

use super::model_path::download;
use crate::pull::{ModelName, Settings};

/// Downloads a model from Hugging Face, or resumes a stopped download, and prints its path.
///
/// The model goes into Hugging Face's cache; files that its other tools have downloaded are not downloaded again.
/// HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE and HF_HUB_OFFLINE mean the same as there.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// OWNER/REPO, or OWNER/REPO/FILE.gguf for one GGUF with all its parts; optionally with :REVISION at the end.
    #[arg(value_parser = name)]
    name: ModelName,

    /// Branch, tag or commit. Default: main.
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
