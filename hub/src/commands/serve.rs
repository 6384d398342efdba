//! `moex serve`

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::builder::FalseyValueParser;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use moex_kernels::{ExpertFormat, engine::ActivationFormat};
use moex_protocol::{CompressionMode, Dtype};
use moex_worker::native::BusyPoll;

use super::compute::ComputeArgs;
use super::door_args::DoorArgs;
use super::experts::ModelArgs;
use super::values;
use crate::net::WorkerProcesses;
use crate::server::{self, CorsOrigin, CorsOrigins, Hub, HubConfig, Server};
use moex_swarm::{Hedge, Verify};

/// Runs the hub: OpenAI-shaped API, chat page, swarm page, join page.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    door: DoorArgs,

    /// What experts are packed to for workers: int4, f16, q8_0, ..., or q4_K+q6_K, gate and up's and down's; without it,
    /// as they are if the model is quantised, and int4 if not.
    #[arg(long, env = "MOEX_EXPERTS", value_name = "FORMAT")]
    experts: Option<ExpertFormat>,

    #[command(flatten)]
    compute: ComputeArgs,

    /// How rows travel: f16, bf16 or int8.
    #[arg(long, env = "MOEX_WIRE", default_value = "f16", value_name = "DTYPE", value_parser = values::wire)]
    wire: Dtype,

    /// When rows and results are compressed (LZ4): auto, on or off; auto does so for workers whose link is measured to be
    /// slow, if it makes their messages smaller.
    #[arg(long, env = "MOEX_COMPRESS", default_value = "auto", value_name = "auto|on|off", value_parser = values::compress)]
    compress: CompressionMode,

    /// Workers that hold each expert.
    #[arg(long, env = "MOEX_REPLICAS", default_value_t = 2, value_name = "N",
          value_parser = clap::value_parser!(u8).range(1..=16))]
    replicas: u8,

    /// Workers asked for each expert: 1 to 4 at once, or adaptive: one, and a second when the first is late.
    #[arg(long, env = "MOEX_HEDGE", default_value = "adaptive", value_name = "adaptive|N")]
    hedge: Hedge,

    /// Bytes that adaptive second copies may take, as a part of the rest.
    #[arg(long, env = "MOEX_HEDGE_BUDGET", default_value = "5%", value_name = "PERCENT", value_parser = values::percent)]
    hedge_budget: f64,

    /// What is known of a worker's answer before it is used: blocking, that it passed the hub's check; audit, nothing: wrong
    /// answers are looked for by --check-every, and some are used before they are found. Without it, blocking, and with
    /// --no-hub-compute audit, since what fails a check is computed by the hub.
    #[arg(long, env = "MOEX_VERIFY", value_name = "blocking|audit")]
    verify: Option<Verify>,

    /// One answer in so many is also computed by the hub and compared with its own; 1 does so with each before it is used, 0
    /// with none.
    #[arg(long, env = "MOEX_CHECK_EVERY", default_value_t = 256, value_name = "N")]
    check_every: u32,

    /// How long a worker may take to answer before another is asked.
    #[arg(long, env = "MOEX_TIMEOUT", default_value = "500ms", value_parser = values::duration)]
    timeout: Duration,

    /// Go on looking for messages for a millisecond before sleeping: saves tens of microseconds a layer where workers are
    /// on this machine or a fast cable away, and keeps a core busy while tokens are made. On with --workers.
    #[arg(long, env = "MOEX_BUSY_POLL", value_parser = FalseyValueParser::new())]
    busy_poll: bool,

    /// Never compute experts on the hub; wait for workers instead.
    #[arg(long, env = "MOEX_NO_HUB_COMPUTE", value_parser = FalseyValueParser::new())]
    no_hub_compute: bool,

    /// How long a request waits for a worker that holds a missing expert.
    #[arg(long, env = "MOEX_COVERAGE_WAIT", default_value = "60s", value_name = "TIME", value_parser = values::duration)]
    coverage_wait: Duration,

    /// A site whose pages may use the API from a browser, as `https://chat.example`, or `*` for all; may be given several times.
    #[arg(long, env = "MOEX_CORS_ORIGIN", value_name = "ORIGIN", value_delimiter = ',')]
    cors_origin: Vec<CorsOrigin>,

    /// How long an answer may take before it is ended with an error; without it, as long as it likes.
    #[arg(long, env = "MOEX_REQUEST_TIMEOUT", value_name = "TIME", value_parser = values::duration)]
    request_timeout: Option<Duration>,

    /// Tokens of prompt and answer together; without it, as many as the model was made for and memory allows.
    #[arg(long, env = "MOEX_CONTEXT", value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(16..))]
    context: Option<u32>,

    /// Rows in one step: prompts are read in chunks of this.
    #[arg(long, env = "MOEX_MAX_ROWS", default_value_t = 128, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    max_rows: u32,

    /// Groups of rows that go through the model in turn, so that one is computed while the experts of others are away; auto
    /// is as many as are measured to pay. Texts are the same.
    #[arg(long, env = "MOEX_IN_FLIGHT", default_value = "auto", value_name = "auto|N", value_parser = values::in_flight)]
    in_flight: values::InFlight,

    /// Never guess tokens ahead. Where it is measured to pay, what a text repeats is guessed, and several tokens are checked
    /// in one step; texts are the same.
    #[arg(long, env = "MOEX_NO_GUESSES", value_parser = FalseyValueParser::new())]
    no_guesses: bool,

    /// Where packed experts are kept; without it, the cache folder.
    #[arg(long, env = "MOEX_SHARDS", value_name = "DIR")]
    shards: Option<PathBuf>,

    /// Write what becomes of each layer into this file, a JSON object a line, for `moex-sim replay`.
    #[arg(long, env = "MOEX_TRACE", value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Native workers to start as processes on this machine.
    #[arg(long, env = "MOEX_WORKERS", default_value_t = 0, value_name = "N",
          value_parser = clap::value_parser!(u8).range(..=32))]
    workers: u8,

    /// Print the addresses as one JSON object on stdout.
    #[arg(long, env = "MOEX_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(args))
}

async fn serve(args: Args) -> anyhow::Result<()> {
    // Bound before the model is loaded: a port in use is said at once.
    let mut door = args.door.open(args.workers > 0).await?;
    // Workers of its own share its machine, where waking a thread takes longer than its messages.
    let busy_poll = BusyPoll::new(args.busy_poll || args.workers > 0);
    let mut config = HubConfig {
        model: None,
        experts: args.experts,
        compute: args.compute.compute(ActivationFormat::Int8)?,
        wire: args.wire,
        compression: args.compress,
        replicas: usize::from(args.replicas),
        hedge: match args.hedge {
            Hedge::Adaptive { .. } => Hedge::Adaptive { budget: args.hedge_budget },
            fixed @ Hedge::Fixed(_) => fixed,
        },
        verify: args.verify.unwrap_or(if args.no_hub_compute { Verify::Audit } else { Verify::Blocking }),
        check_every: args.check_every,
        seed: values::seed()?,
        timeout: args.timeout,
        busy_poll,
        hub_compute: !args.no_hub_compute,
        coverage_wait: args.coverage_wait,
        local_workers: usize::from(args.workers),
        context_tokens: args.context.map(|tokens| tokens as usize),
        max_rows: args.max_rows as usize,
        in_flight: args.in_flight.0,
        guesses: !args.no_guesses,
        shards: args.shards,
        token: door.token.clone(),
        api_key: door.api_key.clone(),
        cors_origins: CorsOrigins(args.cors_origin),
        request_timeout: args.request_timeout,
        public_url: args.door.public_url.clone(),
        trace: args.trace,
    };
    let server = Server::start(std::mem::take(&mut door.listeners), &config.reach())?;
    eprintln!("{}/ answers, and says how far the hub is while it gets ready.", door.url());
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
    let description = hub.description().to_owned();
    let serving = server.ready(hub);

    let mut workers = WorkerProcesses::start(usize::from(args.workers), &door.local_join(), None, busy_poll)?;
    if args.json {
        writeln!(stdout(), "{}", door.json()).context("the addresses could not be printed")?;
    }
    let next = next_step(workers.count(), args.no_hub_compute);
    eprintln!("{}", door.greeting(&description, next));
    let (stopping, is_stopping) = tokio::sync::oneshot::channel::<()>();
    let first_signal = async move {
        server::stop_signal().await;
        drop(stopping);
        let seconds = server::DRAIN_DEADLINE.as_secs();
        eprintln!(
            "Stopping: answers under way may end, for {seconds} s at most. Ctrl-C again stops at once."
        );
    };
    let second_signal = async {
        server::stop_signal().await;
        server::stop_signal().await;
    };
    tokio::select! {
        served = serving.until(first_signal) => served?,
        () = second_signal => {}
        () = keep_running(&mut workers, is_stopping) => {}
    }
    workers.stop().await;
    Ok(())
}

/// Looks after the hub's own workers until the hub is told to stop; never returns.
async fn keep_running(workers: &mut WorkerProcesses, is_stopping: tokio::sync::oneshot::Receiver<()>) {
    tokio::select! {
        never = workers.keep_running() => match never {},
        _ = is_stopping => std::future::pending().await,
    }
}

/// Shows how far packing is, once there is something to pack.
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

/// What its user is to do next.
fn next_step(n_workers: usize, no_hub_compute: bool) -> &'static str {
    match (n_workers, no_hub_compute) {
        (0, false) => {
            "Open a join address in a tab, or give it to `moex worker`, to lend a machine; until then the hub computes alone."
        }
        (0, true) => {
            "Open a join address in a tab, or give it to `moex worker`: nothing is answered until workers hold every expert."
        }
        _ => "The workers are joining; the swarm page shows them.",
    }
}
