//! A hub with native workers behind delayed links writes a trace, and the simulator predicts its second half from its
//! first: what `cargo xtask bench replay` measures and a test checks in short form.

use std::{
    fmt::{self, Display},
    fs::File,
    io::BufReader,
    path::Path,
    str::FromStr,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use moex_sim::replay::{self, Comparison, Trace};
use serde_json::{Value, json};

use crate::{
    chat,
    hub::{Hub, Moex, PATIENCE, Signal, workers},
    proxy::{Link, Proxy, Weather},
};

/// The number of answers before the measured ones.
const N_WARM_UP: usize = 2;

/// A swarm to measure: `WORKERS:MILLIS:HEDGE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Native workers.
    pub n_workers: usize,
    /// The time that the links add to a round trip.
    pub added_millis: u64,
    /// The value of `moex serve --hedge`.
    pub hedge: String,
}

impl FromStr for Config {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not WORKERS:MILLIS:HEDGE, such as 2:10:adaptive");
        let [workers, millis, hedge] = text.split(':').collect::<Vec<_>>()[..] else { return Err(wrong()) };
        Ok(Self {
            n_workers: workers.parse().map_err(|_| wrong())?,
            added_millis: millis.parse().map_err(|_| wrong())?,
            hedge: hedge.to_owned(),
        })
    }
}

impl Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.n_workers, self.added_millis, self.hedge)
    }
}

/// The load on the hub while it writes its trace.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Answers, one after another.
    pub n_answers: usize,
    /// The most tokens of each.
    pub n_tokens: u32,
}

/// Serves `model` (default: the demo model), writes a trace of the load into a folder, and predicts its second half.
///
/// # Errors
/// If the swarm does not start, or its trace cannot be replayed.
pub async fn measure(
    moex: &Moex,
    model: Option<&str>,
    config: &Config,
    load: Load,
    traces: &Path,
) -> Result<Comparison> {
    let path = traces.join(format!("{config}.jsonl").replace(':', "-"));
    let file = path.to_str().context("the folder of traces has a name that is no text")?;
    // No hub compute: the hub would take over work from slow workers once it knows them, but this measures a swarm. The
    // simulated hub has one group of rows in flight, and does not speculate.
    let mut serve = vec!["--experts", "int4", "--no-hub-compute", "--hedge", &config.hedge, "--trace", file];
    serve.extend(["--in-flight", "1", "--no-guesses"]);
    if let Some(model) = model {
        serve.extend(["--model", model]);
    }
    let hub = moex.hub(&serve)?;
    let one_way = Weather { delay: Duration::from_micros(500 * config.added_millis), ..Weather::default() };
    let (mut proxies, mut processes) = (Vec::new(), Vec::new());
    for index in 0..config.n_workers {
        let proxy = Proxy::start(hub.address()?, Link::Open).await?;
        let join_url = hub.join_url_by(proxy.address)?;
        proxies.push(proxy);
        let key = format!("{:032x}", index + 1);
        processes.push(moex.worker("worker", &join_url, &["--key", &key])?);
    }
    hub.wait_for_workers(config.n_workers).await?;
    // A single copy of each block is not enough: workers that still load take processor, disk and link from those that
    // serve.
    let holds_all = |worker: &Value| worker["blocks_resident"] == worker["blocks_assigned"];
    hub.wait_until("every worker holds what it was given", |status| workers(status).all(holds_all)).await?;
    if config.added_millis > 0 {
        proxies.iter().for_each(|proxy| proxy.set(Link::Shaped { up: one_way, down: one_way }));
    }
    for n in 0..load.n_answers + N_WARM_UP {
        generate(&hub, n, load.n_tokens).await?;
    }
    hub.end(Signal::TERM).await?;
    let mut trace = Trace::read(BufReader::new(File::open(&path)?))?;
    if trace.dropped > 0 {
        bail!("the trace lost {} records", trace.dropped);
    }
    trace.skip_answers(N_WARM_UP);
    Ok(replay::replay(&trace, 1)?)
}

/// Asks a new question each time: keys and values of a repeated one would be cached.
async fn generate(hub: &Hub, n: usize, max_tokens: u32) -> Result<()> {
    let body = json!({
        "messages": [{"role": "user", "content": format!("Tell me story {n} about a bear.")}],
        "chat_template_kwargs": {"enable_thinking": false},
        "temperature": 0,
        "max_tokens": max_tokens,
    });
    let asked = chat::client()?.post(format!("{}/v1/chat/completions", hub.url)).json(&body).send();
    let answer = tokio::time::timeout(PATIENCE, asked).await.context("the hub does not answer")??;
    let _: Value = answer.error_for_status()?.json().await?;
    Ok(())
}
