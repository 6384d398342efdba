//! `moex bench`

mod peer;
mod report;
mod runs;

use std::{sync::Arc, time::Instant};

use anyhow::ensure;
use clap::builder::FalseyValueParser;
use moex_kernels::engine::ActivationFormat;

use super::{
    compute::ComputeArgs,
    experts::{ExpertArgs, ModelArgs, describe, experts_for},
};
use moex_model::{Compute, Model};
use peer::Peer;
use report::Report;
use runs::{Lengths, Runs};

/// Measures how fast a model is on this machine: a prompt, tokens after it, and tokens after a long context.
///
/// Tokens a second are the best of the repeats, times of a layer's stages the median; where a peer's command is given, it
/// is run in turn with each repeat, so that both meet the same neighbours.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    compute: ComputeArgs,

    #[command(flatten)]
    experts: ExpertArgs,

    /// Tokens of the prompt.
    #[arg(short, long, env = "MOEX_PROMPT", value_name = "TOKENS", default_value_t = 512,
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    prompt: u32,

    /// Tokens generated one by one, after nothing and at each depth.
    #[arg(short = 'n', long, env = "MOEX_GENERATE", value_name = "TOKENS", default_value_t = 32,
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    generate: u32,

    /// Tokens of context before those that are generated, for one more measurement each.
    #[arg(short, long, env = "MOEX_DEPTH", value_name = "TOKENS", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    depth: Vec<u32>,

    /// How often everything is measured.
    #[arg(short, long, env = "MOEX_REPEATS", value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,

    /// Rows in one step of the prompt.
    #[arg(long, env = "MOEX_MAX_ROWS", value_name = "N", default_value_t = 512,
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    max_rows: u32,

    /// A shell command that prints tokens a second, as a number or as llama-bench's table: run in turn with each repeat.
    #[arg(long, env = "MOEX_PEER", value_name = "CMD")]
    peer: Option<String>,

    /// Print one JSON object.
    #[arg(long, env = "MOEX_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let started = Instant::now();
    let checkpoint = args.model.checkpoint()?;
    let compute = args.compute.compute(ActivationFormat::Int8)?;
    let model = Arc::new(Model::load_for(&checkpoint, &compute)?);
    let max_rows = args.max_rows as usize;
    let mut experts = experts_for(&args.experts, &checkpoint, &model, max_rows)?;
    let load_seconds = started.elapsed().as_secs_f64();

    let deepest = args.depth.iter().copied().max().unwrap_or(0).max(args.prompt) as usize;
    let (longest, most) = (deepest + args.generate as usize, model.spec().max_positions);
    ensure!(longest <= most, "{longest} tokens are more than the {most} that the model was made for");
    let lengths = Lengths {
        prompt: args.prompt as usize,
        generate: args.generate as usize,
        depths: args.depth.iter().map(|depth| *depth as usize).collect(),
        max_rows,
    };
    let mut runs = Runs::new(&model, lengths)?;
    let mut peer = args.peer.map(Peer::new);
    runs.warm_up(&mut *experts)?;
    for _ in 0..args.repeats {
        runs.repeat(&mut *experts)?;
        if let Some(peer) = &mut peer {
            peer.run()?;
        }
    }

    let arithmetic = describe(&args.experts, &model);
    let description = match &compute {
        Compute::Exact => arithmetic,
        Compute::Fast(fast) => format!(
            "{arithmetic}; keys and values in {}, {} on {} threads",
            fast.kv,
            fast.processor.simd(),
            fast.processor.pool().n_threads()
        ),
    };
    let report =
        Report::new(checkpoint.name.clone(), description, load_seconds, &model, &runs, peer.as_ref());
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{}", report.text());
    }
    Ok(())
}
