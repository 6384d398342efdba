//! `moex serve`

use std::io::{Write, stdout};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::builder::FalseyValueParser;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use moex_kernels::{ExpertFormat, engine::ActivationFormat};
use moex_protocol::Dtype;
use moex_worker::native::BusyPoll;
use serde_json::json;
use tokio::net::TcpListener;

use super::compute::ComputeArgs;
use super::values;
use crate::net::WorkerProcesses;
use crate::server::{self, Hub, HubConfig, Listener, PublicUrl, Server};
use crate::swarm::Hedge;

/// Runs the hub: OpenAI-shaped API, chat page, swarm page, join page.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A Hugging Face folder of a Qwen3-MoE, or a GGUF file; without it, the demo model.
    #[arg(long, env = "MOEX_MODEL", value_name = "PATH")]
    model: Option<PathBuf>,

    /// Where to listen; port 0 takes a free one. Beyond loopback an API key is required.
    #[arg(long, env = "MOEX_LISTEN", default_value = "127.0.0.1:8080", value_name = "ADDRESS")]
    listen: SocketAddr,

    /// The token workers join with; without it, a new one at each start.
    #[arg(long, env = "MOEX_TOKEN", hide_env_values = true, value_parser = values::token)]
    token: Option<String>,

    /// By which others reach the hub when a proxy stands before it: https://HOST. Join links name it.
    #[arg(long, env = "MOEX_PUBLIC_URL", value_name = "URL")]
    public_url: Option<PublicUrl>,

    /// What clients of the API must show as `Authorization: Bearer KEY`.
    #[arg(long, env = "MOEX_API_KEY", hide_env_values = true, value_name = "KEY", value_parser = values::api_key)]
    api_key: Option<String>,

    /// What experts are packed to for workers: int4, f16, q8_0, ..., or q4_K+q6_K, gate and up's and down's; without it,
    /// as they are if the model is quantised, and int4 if not.
    #[arg(long, env = "MOEX_EXPERTS", value_name = "FORMAT")]
    experts: Option<ExpertFormat>,

    #[command(flatten)]
    compute: ComputeArgs,

    /// How rows travel: f16, bf16 or int8.
    #[arg(long, env = "MOEX_WIRE", default_value = "f16", value_name = "DTYPE", value_parser = values::wire)]
    wire: Dtype,

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

    /// One answer in so many is checked against the hub's own; 1 checks each before it is used, 0 none.
    #[arg(long, env = "MOEX_CHECK_EVERY", default_value_t = 256, value_name = "N")]
    check_every: u32,

    /// How long a worker may take to answer before another is asked.
    #[arg(long, env = "MOEX_TIMEOUT", default_value = "500ms", value_parser = values::duration)]
    timeout: Duration,

    /// Go on looking for messages for a millisecond before sleeping: saves tens of microseconds a layer where workers are
    /// on this machine or a fast cable away, and keeps a core busy while tokens are made.
    #[arg(long, env = "MOEX_BUSY_POLL", value_parser = FalseyValueParser::new())]
    busy_poll: bool,

    /// Never compute experts on the hub; wait for workers instead.
    #[arg(long, env = "MOEX_NO_HUB_COMPUTE", value_parser = FalseyValueParser::new())]
    no_hub_compute: bool,

    /// How long a request waits for a worker that holds a missing expert.
    #[arg(long, env = "MOEX_COVERAGE_WAIT", default_value = "60s", value_name = "TIME", value_parser = values::duration)]
    coverage_wait: Duration,

    /// Tokens of prompt and answer together; without it, as many as the model was made for and memory allows.
    #[arg(long, env = "MOEX_CONTEXT", value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(16..))]
    context: Option<u32>,

    /// Rows in one step: prompts are read in chunks of this.
    #[arg(long, env = "MOEX_MAX_ROWS", default_value_t = 128, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    max_rows: u32,

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
    if !args.listen.ip().is_loopback() && args.api_key.is_none() {
        bail!(
            "{} can be reached from other machines: give the hub an --api-key, or listen on 127.0.0.1",
            args.listen
        );
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(args))
}

async fn serve(args: Args) -> anyhow::Result<()> {
    // Bound before the model is loaded: a port in use is said at once.
    let listener = bind(args.listen).await?;
    let token = match args.token {
        Some(token) => token,
        None => values::secret()?,
    };
    let busy_poll = BusyPoll::new(args.busy_poll);
    let config = HubConfig {
        model: args.model,
        experts: args.experts,
        compute: args.compute.compute(ActivationFormat::Int8)?,
        wire: args.wire,
        replicas: usize::from(args.replicas),
        hedge: match args.hedge {
            Hedge::Adaptive { .. } => Hedge::Adaptive { budget: args.hedge_budget },
            fixed @ Hedge::Fixed(_) => fixed,
        },
        check_every: args.check_every,
        seed: values::seed()?,
        timeout: args.timeout,
        busy_poll,
        hub_compute: !args.no_hub_compute,
        coverage_wait: args.coverage_wait,
        local_workers: usize::from(args.workers),
        context_tokens: args.context.map(|tokens| tokens as usize),
        max_rows: args.max_rows as usize,
        shards: args.shards,
        token: token.clone(),
        api_key: args.api_key,
        public_url: args.public_url.clone(),
        trace: args.trace,
    };
    let addresses = Addresses::new(listener.local_addr()?, &token, args.public_url.as_ref());
    let server = Server::start(vec![Listener::plain(listener)], &config.reach())?;
    eprintln!("{}/ answers, and says how far the hub is while it gets ready.", addresses.url);
    let (bar, loading) = (packing_bar()?, server.loading());
    let progress = move |done, total| {
        loading.packed(done, total);
        bar(done, total);
    };
    let hub = Hub::open(config, progress).await?;
    let description = hub.description().to_owned();
    let serving = server.ready(hub);

    let mut workers =
        WorkerProcesses::start(usize::from(args.workers), &addresses.local_join(), None, busy_poll)?;
    if args.json {
        let line = json!({ "listen": addresses.url, "join_url": addresses.join(), "token": token });
        writeln!(stdout(), "{line}").context("the addresses could not be printed")?;
    }
    let next = match (workers.count(), args.no_hub_compute) {
        (0, false) => Next::MayJoin,
        (0, true) => Next::MustJoin,
        _ => Next::Joining,
    };
    eprintln!("{}", addresses.greeting(&description, next));
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

async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let error = match TcpListener::bind(address).await {
        Ok(listener) => return Ok(listener),
        Err(error) => error,
    };
    if error.kind() == std::io::ErrorKind::AddrInUse {
        let way_out = match free_port_after(address).await {
            Some(free) => format!("`--listen {free}` is free"),
            None => "`--listen` takes another, and port 0 any free one".to_owned(),
        };
        bail!("{address} is in use by another program: stop that, or choose another port ({way_out})");
    }
    Err(error).with_context(|| format!("cannot listen on {address}"))
}

/// The first free port of the next few.
async fn free_port_after(address: SocketAddr) -> Option<SocketAddr> {
    const TRIES: u16 = 20;
    for step in 1..=TRIES {
        let next = SocketAddr::new(address.ip(), address.port().checked_add(step)?);
        if TcpListener::bind(next).await.is_ok() {
            return Some(next);
        }
    }
    None
}

/// What its user is to do next.
#[derive(Clone, Copy)]
enum Next {
    MayJoin,
    MustJoin,
    /// Workers of the hub's own are on their way.
    Joining,
}

/// What a person or a tool needs to reach the hub.
struct Addresses {
    /// As a browser writes it: the public URL, or this machine's own.
    url: String,
    /// As this machine itself reaches it.
    local_url: String,
    token: String,
    /// Whether browsers call it a secure context.
    is_secure: bool,
}

impl Addresses {
    fn new(bound: SocketAddr, token: &str, public: Option<&PublicUrl>) -> Self {
        // An unspecified address is none that can be opened; this machine's own name for it is.
        let ip = match bound.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
            ip => ip,
        };
        let url = format!("http://{}", SocketAddr::new(ip, bound.port()));
        let is_secure = public.map_or(bound.ip().is_loopback(), PublicUrl::is_https);
        let local_url = url.clone();
        let url = public.map_or(url, ToString::to_string);
        Self { url, local_url, token: token.to_owned(), is_secure }
    }

    fn join(&self) -> String {
        format!("{}/join#{}", self.url, self.token)
    }

    /// For workers on this machine: past any proxy.
    fn local_join(&self) -> String {
        format!("{}/join#{}", self.local_url, self.token)
    }

    fn greeting(&self, model: &str, next: Next) -> String {
        let Self { url, token, .. } = self;
        let next = match next {
            Next::MayJoin => {
                "Open the join address in a tab, or give it to `moex worker`,\nto lend a machine; until then the hub computes alone."
            }
            Next::MustJoin => {
                "Open the join address in a tab, or give it to `moex worker`:\nnothing is answered until workers hold every expert."
            }
            Next::Joining => "The workers are joining; the swarm page shows them.",
        };
        let reach = match self.is_secure {
            true => "",
            false => {
                "\nBrowsers give WebGPU to https and localhost only: a tab on another machine computes on its CPU."
            }
        };
        format!(
            "moex serves {model}\n\n  chat   {url}/\n  API    {url}/v1\n  swarm  {url}/swarm#{token}\n  join   {}\n\n{next}{reach}\nCtrl-C stops it.",
            self.join()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unspecified_address_is_shown_as_one_that_opens() {
        let shown = |bound: &str| Addresses::new(bound.parse().unwrap(), "t", None).join();
        assert_eq!(shown("127.0.0.1:80"), "http://127.0.0.1:80/join#t");
        assert_eq!(shown("0.0.0.0:80"), "http://127.0.0.1:80/join#t");
        assert_eq!(shown("[::]:80"), "http://[::1]:80/join#t");
        assert_eq!(shown("192.168.0.7:80"), "http://192.168.0.7:80/join#t");
    }

    #[test]
    fn a_public_url_is_what_links_name_and_this_machines_own_workers_pass_by() {
        let url = "https://moex.example".parse().unwrap();
        let addresses = Addresses::new("127.0.0.1:80".parse().unwrap(), "t", Some(&url));
        assert_eq!(addresses.join(), "https://moex.example/join#t");
        assert_eq!(addresses.local_join(), "http://127.0.0.1:80/join#t");
        assert!(addresses.greeting("", Next::MayJoin).contains("https://moex.example/v1"));
    }

    #[tokio::test]
    async fn a_port_in_use_is_named_with_a_way_out() {
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = taken.local_addr().unwrap();
        let said = bind(address).await.unwrap_err().to_string();
        assert!(said.contains(&address.to_string()) && said.contains("--listen"), "{said}");
    }
}
