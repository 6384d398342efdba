//! `moex bench`: measures prefill and decode speed.

mod peer;
mod report;
mod runs;

use std::{sync::Arc, time::Instant};

use anyhow::ensure;
use clap::builder::FalseyValueParser;
use moex_kernels::{engine::ActivationFormat, graph::DevicePass};

use super::{
    compute::{ComputeArgs, DeviceArgs},
    experts::{ExpertArgs, ModelArgs, describe, experts_for},
};
use moex_model::{Compute, Model};
use peer::Peer;
use report::Report;
use runs::{Lengths, Runs};

/// Measures how fast a model runs on this machine: prefill, decode, and decode after a long context.
///
/// Tokens/s are the best of all repeats; times of a layer's stages are medians. With --peer, the peer's command runs in
/// turn with each repeat, so both see the same load on the machine.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    compute: ComputeArgs,

    #[command(flatten)]
    device: DeviceArgs,

    #[command(flatten)]
    experts: ExpertArgs,

    /// Tokens of the prompt.
    #[arg(short, long, env = "MOEX_PROMPT", value_name = "TOKENS", default_value_t = 512,
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    prompt: u32,

    /// Tokens to decode one by one, with an empty context and at each depth.
    #[arg(short = 'n', long, env = "MOEX_GENERATE", value_name = "TOKENS", default_value_t = 32,
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    generate: u32,

    /// Context lengths at which decode is measured as well.
    #[arg(short, long, env = "MOEX_DEPTH", value_name = "TOKENS", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    depth: Vec<u32>,

    /// How often each measurement is repeated.
    #[arg(short, long, env = "MOEX_REPEATS", value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,

    /// Rows in one prefill step. Default: 512, for each GPU if there are several.
    #[arg(long, env = "MOEX_MAX_ROWS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    max_rows: Option<u32>,

    /// Shell command that prints tokens/s, as a number or as llama-bench's table; it runs in turn with each repeat.
    #[arg(long, env = "MOEX_PEER", value_name = "CMD")]
    peer: Option<String>,

    /// Print one JSON object.
    #[arg(long, env = "MOEX_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
}

/// Rows in one prefill step, if nothing else is said.
const MAX_ROWS: usize = 512;

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let started = Instant::now();
    let checkpoint = args.model.checkpoint()?;
    let compute =
        args.device.compute(&args.compute, ActivationFormat::Int8, args.experts.workers.is_some())?;
    let model = Arc::new(Model::load_for(&checkpoint, &compute)?);
    let wished = args.max_rows.map(|n| n as usize);
    let of_experts = wished.unwrap_or(MAX_ROWS);
    let mut experts = experts_for(&args.experts, args.device.wish(), &checkpoint, &model, of_experts)?;
    let max_rows = wished.unwrap_or(model.device().map_or(MAX_ROWS, DevicePass::rows_at_once));
    let load_seconds = started.elapsed().as_secs_f64();

    let deepest = args.depth.iter().copied().max().unwrap_or(0).max(args.prompt) as usize;
    let (longest, most) = (deepest + args.generate as usize, model.spec().max_positions);
    ensure!(longest <= most, "{longest} tokens are more than the model's context of {most}");
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
            "{arithmetic}; {} on {} threads",
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
