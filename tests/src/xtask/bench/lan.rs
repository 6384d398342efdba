//! `cargo xtask bench lan`: browsers on separate hosts join over https at the same time, with native workers beside
//! them.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures_util::future::try_join_all;
use serde_json::Value;

use crate::browser::Browser;
use crate::host::Host;
use crate::hub::{Moex, workers};

/// Memory of one Chromium with its processes, and of everything else together, in MiB.
const BROWSER_MIB: u64 = 600;
const RESERVE_MIB: u64 = 4096;

/// The command's arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The number of all workers.
    #[arg(long, default_value_t = 20)]
    workers: usize,
    /// The number of browsers among them; default: as many as fit into the free memory.
    #[arg(long)]
    tabs: Option<usize>,
}

/// Longer than the interval at which the hub looks at its addresses.
const CERTIFICATE_RENEWED: Duration = Duration::from_secs(7);

/// Starts the browsers, each with an empty window of the size of a phone, opens the link in all of them at once, and
/// prints when all of them serve.
pub(super) async fn run(moex: &Moex, args: &Args) -> Result<()> {
    let n_tabs = args.tabs.map_or_else(tabs_that_fit, Ok)?.min(args.workers);
    let state = tempfile::tempdir()?;
    let hub = moex.clone().keeping(state.path()).hub_at("0", &["--lan", "--https-port", "0", "--no-mdns"])?;
    let authority = hub.started["ca"]["certificate"].as_str().context("the hub has an authority")?.to_owned();
    let mut browsers = Vec::new();
    for n in 0..n_tabs {
        let host = Arc::new(Host::new()?);
        let browser = Browser::launch_trusting(&host, Path::new(&authority)).await?;
        let tab = browser.empty_window().await?;
        browsers.push((browser, tab, host));
        eprintln!("browser {} of {n_tabs} is up", n + 1);
    }
    let hosts = (n_tabs..args.workers).map(|_| Ok(Arc::new(Host::new()?))).collect::<Result<Vec<_>>>()?;
    // The hub's addresses on these hosts' networks are new: its certificate names them within this time.
    tokio::time::sleep(CERTIFICATE_RENEWED).await;
    let link = |host: &Host, url: &Value| -> Result<String> {
        let (_, rest) = url.as_str().and_then(|url| url.rsplit_once(':')).context("a URL has a port")?;
        Ok(format!("https://{}:{rest}", host.gateway()))
    };
    let begin = Instant::now();
    let mut natives = Vec::new();
    let links = browsers.iter().map(|(_, _, host)| link(host, &hub.started["join_url"]));
    let links = links.collect::<Result<Vec<_>>>()?;
    try_join_all(browsers.iter().zip(&links).map(|((_, tab, _), link)| tab.go(link))).await?;
    for (n, host) in hosts.into_iter().enumerate() {
        let there = moex.clone().on(host.clone());
        let worker = there.worker(&format!("worker-{n}"), &link(&host, &hub.started["worker_url"])?, &[])?;
        // The host's network is removed with the host.
        natives.push((worker, host));
    }
    let served = Cell::new(0);
    hub.wait_until("every worker serves", |status| {
        let now = workers(status).filter(|worker| worker["state"] == "serving").count();
        if now > served.get() {
            println!("{:6.1} s: {now} of {} serve", begin.elapsed().as_secs_f64(), args.workers);
            served.set(now);
        }
        now >= args.workers
    })
    .await?;
    println!(
        "{n_tabs} browsers and {} native workers, each on its own host over https: all serve after {:.1} s",
        natives.len(),
        begin.elapsed().as_secs_f64()
    );
    for (browser, _tab, _host) in browsers {
        browser.close().await?;
    }
    Ok(())
}

/// The number of browsers that fit into the free memory.
fn tabs_that_fit() -> Result<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").context("the free memory is unknown")?;
    let available =
        text.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB"));
    let kib: u64 = available.context("the free memory is unknown")?.trim().parse()?;
    Ok(usize::try_from((kib / 1024).saturating_sub(RESERVE_MIB) / BROWSER_MIB)?)
}
