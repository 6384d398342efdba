//! `cargo xtask bench`: measures kernels, the cost of a swarm, hedging, the accuracy of predictions, and the memory
//! left by sessions.

mod compression;
mod dispatch;
mod guess;
mod hedge;
mod kernels;
mod lan;
mod load;
mod local_workers;
mod overlap;
mod page;
mod replay;
mod resources;
mod serve;
mod sessions;
mod stepped;
mod swarm;
mod tab;
mod verify;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::{
    chat,
    hub::{Hub, Moex},
};

/// The benchmark to run.
#[derive(clap::Subcommand, Debug)]
pub enum Bench {
    /// The speed of memory on random blocks of the size of an expert matrix. `MOEX_THREADS` sets the threads.
    Memory(kernels::Args),
    /// The experts' kernels in every format: decode relative to the speed of memory, prefill relative to that of dot
    /// products.
    Cpu(kernels::Args),
    /// The hub's forward pass on a GPU, dispatch by dispatch, by the GPU's own timestamps.
    Gpu(kernels::GpuArgs),
    /// Tokens per second and the time of a layer, without and with workers.
    Swarm(swarm::Args),
    /// Tokens per second through `moex serve` relative to `moex bench`, without and with a worker.
    Serve(serve::Args),
    /// Tokens per second and bytes a token by how answers are checked, with two workers on hosts of their own.
    Verify(verify::Args),
    /// The time of a layer in parts, without its experts' computation or with it.
    Dispatch(dispatch::Args),
    /// The compression of messages by LZ4: its ratio, its cost, and the link rate below which it pays.
    Compression(compression::Args),
    /// The time of a layer by hedging policy, with one of four workers behind a link that hiccups.
    Hedge(hedge::Args),
    /// Tokens per second as predicted by the simulator from a trace's first half, and as measured.
    Replay(replay::Args),
    /// Tokens per second with and without speculative decoding, on repetitive text and on other text.
    Guess(guess::Args),
    /// Tokens per second and the time to the first token by groups of rows in flight, with workers behind a delay.
    Overlap(overlap::Args),
    /// The time until browsers and native workers on their own hosts serve, over https.
    Lan(lan::Args),
    /// The time of eight experts of one row in a tab without a GPU, by the number of its threads.
    Tab(tab::Args),
    /// What the page `/bench` says in Chromium on this machine's card.
    Page(page::Args),
    /// The hub's memory, and the latency of `/health`, under many concurrent requests, a third of which are aborted.
    Load(load::Args),
    /// The hub's memory before, during and after many sessions that come and go.
    Sessions(sessions::Args),
}

/// Runs the benchmark.
pub fn run(bench: &Bench) -> Result<()> {
    match bench {
        Bench::Memory(args) => kernels::run("memory", args),
        Bench::Cpu(args) => kernels::run("cpu", args),
        Bench::Gpu(args) => kernels::run_gpu(args),
        Bench::Swarm(args) => with_moex(async |moex| swarm::run(moex, args).await),
        Bench::Serve(args) => with_moex(async |moex| serve::run(moex, args).await),
        Bench::Verify(args) => with_moex(async |moex| verify::run(moex, args).await),
        Bench::Dispatch(args) => {
            let moex = super::release()?;
            // Workers share one thread with everything else: a second thread would have to be woken for each message.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(dispatch::run(&moex, args))
        }
        Bench::Compression(args) => with_moex(async |moex| compression::run(moex, args).await),
        Bench::Hedge(args) => with_moex(async |moex| hedge::run(moex, args).await),
        Bench::Replay(args) => with_moex(async |moex| replay::run(moex, args).await),
        Bench::Lan(args) => {
            let moex = super::release()?;
            // Starting a browser on another host moves the thread to that host.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(lan::run(&moex, args))
        }
        Bench::Tab(args) => with_moex(async |moex| tab::run(moex, args).await),
        Bench::Page(args) => with_moex(async |moex| page::run(moex, args).await),
        Bench::Guess(args) => with_moex(async |moex| guess::run(moex, args).await),
        Bench::Overlap(args) => with_moex(async |moex| overlap::run(moex, args).await),
        Bench::Load(args) => with_moex(async |moex| load::run(moex, args).await),
        Bench::Sessions(args) => with_moex(async |moex| sessions::run(moex, args).await),
    }
}

/// Runs the measurement on a runtime of one thread, which leaves the cores to the hub and the workers.
fn with_moex(measure: impl AsyncFnOnce(&Moex) -> Result<()>) -> Result<()> {
    let moex = super::release()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(measure(&moex))
}

/// Requests up to `max_tokens`; returns the number of tokens, and the time until the answer was complete.
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
