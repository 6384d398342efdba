//! `cargo xtask bench`: measures kernels, the cost of a swarm, hedging, the accuracy of predictions, and the memory
//! left by sessions.

mod compression;
mod dispatch;
mod guess;
mod hedge;
mod held;
mod kernels;
mod lan;
mod load;
mod overlap;
mod replay;
mod serve;
mod sessions;
mod stepped;
mod swarm;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::{
    chat,
    hub::{Hub, Moex},
};

/// What to measure.
#[derive(clap::Subcommand, Debug)]
pub enum Bench {
    /// The speed of memory on random blocks of an expert matrix's size. `MOEX_THREADS` chooses the threads.
    Memory(kernels::Args),
    /// The experts' kernels in every format, decode against that speed, prefill against that of dot products.
    Cpu(kernels::Args),
    /// Tokens per second and the time of a layer, alone and with workers.
    Swarm(swarm::Args),
    /// Tokens per second through `moex serve` against those of `moex bench`, alone and with a worker.
    Serve(serve::Args),
    /// The time of a layer without its experts' computation, in parts.
    Dispatch(dispatch::Args),
    /// How much LZ4 makes of what travels, what that costs, and below which rate of a link it pays.
    Compression(compression::Args),
    /// The time of a layer by hedging policy, with one of four workers behind a link that hiccups.
    Hedge(hedge::Args),
    /// Tokens per second as the simulator predicts them from a trace's first half, and as they were.
    Replay(replay::Args),
    /// Tokens per second with guessed tokens against without, where a text repeats what was said and where not.
    Guess(guess::Args),
    /// Tokens per second and first tokens by how many groups of rows are under way, with workers behind a delay.
    Overlap(overlap::Args),
    /// The time until browsers and native workers on hosts of their own serve, over https.
    Lan(lan::Args),
    /// A hub that many ask at once, a third of whom leave: its memory, and how fast it says meanwhile whether it is well.
    Load(load::Args),
    /// The hub's memory before, during and after many sessions that come and go.
    Sessions(sessions::Args),
}

/// Measures.
pub fn run(bench: &Bench) -> Result<()> {
    match bench {
        Bench::Memory(args) => kernels::run("memory", args),
        Bench::Cpu(args) => kernels::run("cpu", args),
        Bench::Swarm(args) => with_moex(async |moex| swarm::run(moex, args).await),
        Bench::Serve(args) => with_moex(async |moex| serve::run(moex, args).await),
        Bench::Dispatch(args) => {
            let moex = super::release()?;
            // Workers on one thread with all else: another one would have to be woken for each message.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(dispatch::run(&moex, args))
        }
        Bench::Compression(args) => with_moex(async |moex| compression::run(moex, args).await),
        Bench::Hedge(args) => with_moex(async |moex| hedge::run(moex, args).await),
        Bench::Replay(args) => with_moex(async |moex| replay::run(moex, args).await),
        Bench::Lan(args) => {
            let moex = super::release()?;
            // Starting a browser on another host moves the thread there.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(lan::run(&moex, args))
        }
        Bench::Guess(args) => with_moex(async |moex| guess::run(moex, args).await),
        Bench::Overlap(args) => with_moex(async |moex| overlap::run(moex, args).await),
        Bench::Load(args) => with_moex(async |moex| load::run(moex, args).await),
        Bench::Sessions(args) => with_moex(async |moex| sessions::run(moex, args).await),
    }
}

/// Measures the binary on a runtime of one thread: the cores are the hub's and the workers'.
fn with_moex(measure: impl AsyncFnOnce(&Moex) -> Result<()>) -> Result<()> {
    let moex = super::release()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(measure(&moex))
}

/// Tokens that a request for at most so many gave, and the time until its answer was whole.
async fn generate(hub: &Hub, max_tokens: u32) -> Result<(u64, Duration)> {
    let body = json!({
        "messages": [{"role": "user", "content": "Tell me a story about a bear."}],
        "chat_template_kwargs": {"enable_thinking": false},
        "temperature": 0,
        "max_tokens": max_tokens,
    });
    let begin = Instant::now();
    let answer = chat::client()?.post(format!("{}/v1/chat/completions", hub.url)).json(&body).send().await?;
    let answer: Value = answer.error_for_status()?.json().await?;
    let took = begin.elapsed();
    let n_tokens = answer["usage"]["completion_tokens"].as_u64().context("an answer tells its usage")?;
    Ok((n_tokens, took))
}

fn median<T: Copy + PartialOrd>(values: &mut [T]) -> T {
    values.sort_by(|a, b| a.partial_cmp(b).expect("no figure is NaN"));
    values[values.len() / 2]
}
