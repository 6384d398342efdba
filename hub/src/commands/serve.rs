//! `moex serve`: runs the hub.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::builder::FalseyValueParser;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use moex_kernels::{ExpertFormat, engine::ActivationFormat};
use moex_protocol::{CompressionMode, Dtype};

use super::access_args::{AccessArgs, Opened};
use super::busy_poll::BusyPollArgs;
use super::check_grammar::own_program;
use super::compute::{ComputeArgs, DeviceArgs, serving_threads};
use super::experts::ModelArgs;
use super::values;
use crate::net::{Prefer, WorkerProcesses};
use crate::server::{self, CorsOrigin, CorsOrigins, Hub, HubConfig, Server, Serving};
use moex_swarm::{Hedge, Verify};
use tokio::sync::watch;

/// Runs the hub: OpenAI-compatible API, chat page, swarm page, join page.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    access: AccessArgs,

    /// Format that experts are packed to for workers: int4, f16, q8_0, ..., or two formats such as q4_K+q6_K, for gate
    /// and up, and for down. Default: the model's own if it is quantised, otherwise int4.
    #[arg(long, env = "MOEX_EXPERTS", value_name = "FORMAT")]
    experts: Option<ExpertFormat>,

    #[command(flatten)]
    compute: ComputeArgs,

    #[command(flatten)]
    device: DeviceArgs,

    /// Format of rows sent to workers and back: f16, bf16 or int8.
    #[arg(long, env = "MOEX_WIRE", default_value = "f16", value_name = "DTYPE", value_parser = values::wire)]
    wire: Dtype,

    /// LZ4 compression of rows and results: auto, on or off. auto compresses for workers with a slow link if their
    /// messages shrink; both are measured.
    #[arg(long, env = "MOEX_COMPRESS", default_value = "auto", value_name = "auto|on|off", value_parser = values::compress)]
    compress: CompressionMode,

    /// Number of workers that hold each expert.
    #[arg(long, env = "MOEX_REPLICAS", default_value_t = 2, value_name = "N",
          value_parser = clap::value_parser!(u8).range(1..=16))]
    replicas: u8,

    /// Workers asked for each expert: 1 to 4 at once, or adaptive: one, and a second when the first is late.
    #[arg(long, env = "MOEX_HEDGE", default_value = "adaptive", value_name = "adaptive|N")]
    hedge: Hedge,

    /// Limit for the bytes of adaptive second copies, relative to all other bytes.
    #[arg(long, env = "MOEX_HEDGE_BUDGET", default_value = "5%", value_name = "PERCENT", value_parser = values::percent)]
    hedge_budget: f64,

    /// Which answers are checked before a text depends on them: blocking, every one; exact, every one, and two workers at
    /// different addresses have to give the same bits; audit, none, and --check-every finds some wrong answers after
    /// they were used. The default is blocking, or audit with --no-hub-compute, since the hub computes what fails a
    /// check.
    #[arg(long, env = "MOEX_VERIFY", value_name = "exact|blocking|audit")]
    verify: Option<Verify>,

    /// Compute one answer in this many on the hub too and compare; 1 does so for each before it is used, 0 for none.
    #[arg(long, env = "MOEX_CHECK_EVERY", default_value_t = 256, value_name = "N")]
    check_every: u32,

    /// How long a worker may take to answer before another is asked.
    #[arg(long, env = "MOEX_TIMEOUT", default_value = "500ms", value_parser = values::duration)]
    timeout: Duration,

    #[command(flatten)]
    busy_poll: BusyPollArgs,

    /// Never compute experts on the hub; wait for workers instead.
    #[arg(long, env = "MOEX_NO_HUB_COMPUTE", value_parser = FalseyValueParser::new())]
    no_hub_compute: bool,

    /// Who computes experts that the hub and a worker both hold: faster, whoever is, by the hub's own measurement; workers, the
    /// worker, even where the hub alone is faster. Texts do not depend on it. The default is faster, or workers with the demo
    /// model, which is there to try them.
    #[arg(long, env = "MOEX_PREFER", value_name = "faster|workers", value_parser = values::prefer)]
    prefer: Option<Prefer>,

    /// How long a request waits for a worker that holds a missing expert.
    #[arg(long, env = "MOEX_COVERAGE_WAIT", default_value = "60s", value_name = "TIME", value_parser = values::duration)]
    coverage_wait: Duration,

    /// Site whose pages may use the API from a browser, such as `https://chat.example`, or `*` for all; may be
    /// repeated.
    #[arg(long, env = "MOEX_CORS_ORIGIN", value_name = "ORIGIN", value_delimiter = ',')]
    cors_origin: Vec<CorsOrigin>,

    /// Time limit of an answer, after which it ends with an error. Default: no limit.
    #[arg(long, env = "MOEX_REQUEST_TIMEOUT", value_name = "TIME", value_parser = values::duration)]
    request_timeout: Option<Duration>,

    /// Context in tokens, prompt and answer together. Default: the model's own, as far as memory allows.
    #[arg(long, env = "MOEX_CONTEXT", value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(16..))]
    context: Option<u32>,

    /// Maximum rows in one step; prompts are prefilled in chunks of this size, and in shorter ones while others generate.
    /// Default: 128, with a GPU 512.
    #[arg(long, env = "MOEX_MAX_ROWS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    max_rows: Option<u32>,

    /// Groups of rows in flight: one is computed on the hub while the experts of others are computed elsewhere. auto
    /// chooses by measured speed. Texts do not depend on it.
    #[arg(long, env = "MOEX_IN_FLIGHT", default_value = "auto", value_name = "auto|N", value_parser = values::in_flight)]
    in_flight: values::InFlight,

    /// Turn off speculative decoding, which drafts tokens from repeated text and verifies several in one step where
    /// measurements show that it is faster. Texts do not depend on it.
    #[arg(long, env = "MOEX_NO_GUESSES", value_parser = FalseyValueParser::new())]
    no_guesses: bool,

    /// Folder for packed experts. Default: the cache folder.
    #[arg(long, env = "MOEX_SHARDS", value_name = "DIR")]
    shards: Option<PathBuf>,

    /// Write a trace of each layer to this file, one JSON object per line, for `moex-sim replay`.
    #[arg(long, env = "MOEX_TRACE", value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Number of native workers to start as processes on this machine.
    #[arg(long, env = "MOEX_WORKERS", default_value_t = 0, value_name = "N",
          value_parser = clap::value_parser!(u8).range(..=32))]
    workers: u8,

    /// Print the addresses as one JSON object on stdout.
    #[arg(long, env = "MOEX_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(serving_threads()).enable_all().build()?;
    let served = runtime.block_on(async {
        let (count, mut signals) = watch::channel(0);
        tokio::spawn(count_signals(count));
        let ready = tokio::select! {
            ready = prepare(args) => ready?,
            // It has no other end than a signal.
            _ = signals.wait_for(|n| *n > 0) => return Ok(Served::NotYet),
        };
        ready.serve(signals).await
    });
    if let Ok(Served::NotYet) = served {
        eprintln!("Stopped before the hub was ready.");
        // What loads or packs is not waited for: files get their names when they are complete.
        runtime.shutdown_background();
    }
    served.map(drop)
}

/// How serving ended.
enum Served {
    /// As asked.
    Done,
    /// The process was asked to end before the hub was ready.
    NotYet,
}

/// Counts the signals to end, from the first moment: the first process of a container is not ended by a signal that it does not
/// handle.
async fn count_signals(count: watch::Sender<u32>) {
    loop {
        server::stop_signal().await;
        count.send_modify(|n| *n += 1);
    }
}

/// A hub that is ready, and its workers.
struct Ready {
    serving: Serving,
    workers: WorkerProcesses,
    /// Held as long as the hub is announced on the network.
    opened: Opened,
}

/// Loads the model and starts the hub's own workers.
async fn prepare(args: Args) -> anyhow::Result<Ready> {
    // Binds before loading the model, so that a port in use is reported at once.
    let mut opened = args.access.open(args.workers > 0).await?;
    let busy_poll = args.busy_poll.choose(args.workers > 0);
    let has_workers = args.workers > 0 || args.no_hub_compute;
    let prefer = args.prefer.unwrap_or(if args.model.is_demo() { Prefer::Workers } else { Prefer::Faster });
    let mut config = HubConfig {
        model: None,
        experts: args.experts,
        compute: args.device.compute(&args.compute, ActivationFormat::Int8, has_workers)?,
        // Workers that are wanted are asked.
        device: args.device.wish().unless(has_workers || prefer == Prefer::Workers),
        wire: args.wire,
        compression: args.compress,
        replicas: usize::from(args.replicas),
        hedge: match args.hedge {
            Hedge::Adaptive { .. } => Hedge::Adaptive { budget: args.hedge_budget },
            fixed @ Hedge::Fixed(_) => fixed,
        },
        verify: args.verify.unwrap_or(Verify::by_default(!args.no_hub_compute)),
        check_every: args.check_every,
        seed: values::seed()?,
        timeout: args.timeout,
        busy_poll,
        hub_compute: !args.no_hub_compute,
        prefer,
        coverage_wait: args.coverage_wait,
        local_workers: usize::from(args.workers),
        context_tokens: args.context.map(|tokens| tokens as usize),
        max_rows: args.max_rows.map(|n| n as usize),
        in_flight: args.in_flight.0,
        guesses: !args.no_guesses,
        shards: args.shards,
        token: opened.token.clone(),
        revocations: std::mem::take(&mut opened.revocations),
        api_key: opened.api_key.clone(),
        cors_origins: CorsOrigins(args.cors_origin),
        request_timeout: args.request_timeout,
        grammar_checker: own_program(),
        public_url: args.access.public_url.clone(),
        trace: args.trace,
    };
    let server = Server::start(std::mem::take(&mut opened.listeners), &config.reach())?;
    eprintln!("{}/ is open, and shows progress until the hub is ready.", opened.url());
    let loading = server.loading();
    let located = tokio::task::spawn_blocking(move || {
        args.model.path(&mut |done, total| loading.downloaded(done, total))
    });
    config.model = located.await??;
    let (bar, loading) = (packing_bar()?, server.loading());
    let progress = move |done, total| {
        loading.packed(done, total);
        bar(done, total);
    };
    let hub = Hub::open(config, progress).await?;
    let (description, asks_workers) = (hub.description().to_owned(), hub.asks_workers());
    let serving = server.ready(hub);

    let workers = WorkerProcesses::start(usize::from(args.workers), &opened.local_join(), None, busy_poll)?;
    if args.json {
        writeln!(stdout(), "{}", opened.json()).context("the addresses could not be printed")?;
    }
    let next = next_step(asks_workers, workers.count(), args.no_hub_compute);
    eprintln!("{}", opened.greeting(&description, next));
    Ok(Ready { serving, workers, opened })
}

impl Ready {
    /// Serves until the first signal, and at most until the second.
    async fn serve(self, signals: watch::Receiver<u32>) -> anyhow::Result<Served> {
        let Self { serving, mut workers, opened: _opened } = self;
        let (mut once, mut twice) = (signals.clone(), signals);
        let (stopping, is_stopping) = tokio::sync::oneshot::channel::<()>();
        let first_signal = async move {
            let _ = once.wait_for(|n| *n > 0).await;
            drop(stopping);
            let seconds = server::DRAIN_DEADLINE.as_secs();
            eprintln!(
                "Stopping: answers in progress get up to {seconds} s. Press Ctrl-C again to stop at once."
            );
        };
        tokio::select! {
            served = serving.until(first_signal) => served?,
            _ = twice.wait_for(|n| *n > 1) => {}
            () = keep_running(&mut workers, is_stopping) => {}
        }
        workers.stop().await;
        Ok(Served::Done)
    }
}

/// Supervises the hub's own workers until the hub stops; never returns.
async fn keep_running(workers: &mut WorkerProcesses, is_stopping: tokio::sync::oneshot::Receiver<()>) {
    tokio::select! {
        never = workers.keep_running() => match never {},
        _ = is_stopping => std::future::pending().await,
    }
}

/// Shows the progress of packing once there is something to pack.
fn packing_bar() -> anyhow::Result<impl Fn(usize, usize) + Send + Sync + 'static> {
    let style = ProgressStyle::with_template("packing experts [{bar:20}] {pos} of {len}, {eta} left")?;
    let bar = ProgressBar::hidden().with_style(style.progress_chars("=> "));
    Ok(move |done, total| {
        if bar.is_hidden() {
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        bar.set_length(total as u64);
        bar.set_position(done as u64);
        if done == total {
            bar.finish_and_clear();
        }
    })
}

/// What the user can do next.
fn next_step(asks_workers: bool, n_workers: usize, no_hub_compute: bool) -> &'static str {
    match (n_workers, no_hub_compute) {
        _ if !asks_workers => "The hub computes everything: no worker is needed.",
        (0, false) => {
            "Open a join address in a tab, or give it to `moex worker`, to lend a machine; until then the hub computes alone."
        }
        (0, true) => {
            "Open a join address in a tab, or give it to `moex worker`: nothing is answered until workers hold every expert."
        }
        _ => "The workers are joining; the swarm page shows them.",
    }
}
