//! Workers on this machine for a bench: native ones on a device, or tabs of Chromium.

use anyhow::Result;

use crate::browser::{Adapter, Browser, Tab};
use crate::hub::{Hub, Moex, Worker, workers};

/// What a native worker offers: room for all experts of any model.
const ALL_MEMORY: &str = "1TiB";

/// Workers until dropped.
pub(super) struct LocalWorkers {
    _native: Vec<Worker>,
    _tabs: Option<(Browser, Vec<Tab>)>,
}

impl LocalWorkers {
    /// `n` workers that have joined the hub: native ones on `device`, or with `tab` tabs on this machine's own card, with `tab-auto`
    /// tabs that choose between it and the CPU as a visitor's do, with `tab-software` tabs on SwiftShader.
    pub(super) async fn start(moex: &Moex, hub: &Hub, device: &str, n: usize) -> Result<Self> {
        let tabs = match device {
            "tab" => Some((Adapter::Card, "gpu")),
            "tab-auto" => Some((Adapter::Card, "auto")),
            "tab-software" => Some((Adapter::Software, "gpu")),
            _ => None,
        };
        let local = match tabs {
            Some((adapter, choice)) => {
                let tabs = start_tabs(hub, adapter, choice, n).await?;
                Self { _native: Vec::new(), _tabs: Some(tabs) }
            }
            None => {
                let start =
                    |_| moex.worker("worker", &hub.join_url, &["--device", device, "--memory", ALL_MEMORY]);
                Self { _native: (0..n).map(start).collect::<Result<_>>()?, _tabs: None }
            }
        };
        let status = hub.wait_for_workers(n).await?;
        for worker in workers(&status) {
            let arithmetic = if worker["is_exact"] == true { "exact" } else { "not exact" };
            eprintln!("a worker on {} ({}): {arithmetic}", worker["adapter"], worker["backend"]);
        }
        Ok(local)
    }
}

/// A Chromium with `n` tabs; reports why one does not use a GPU.
async fn start_tabs(hub: &Hub, adapter: Adapter, choice: &str, n: usize) -> Result<(Browser, Vec<Tab>)> {
    let browser = Browser::launch_with(adapter).await?;
    let page = hub.join_url.replacen("/join#", &format!("/join?device={choice}&memory=8GiB#"), 1);
    let mut tabs = Vec::with_capacity(n);
    for _ in 0..n {
        let tab = browser.open(&page).await?;
        let status = tab.wait_until("connected", |status| status["phase"] == "connected").await?;
        if let Some(note) = status["note"].as_str() {
            eprintln!("a tab: {note}");
        }
        tabs.push(tab);
    }
    Ok((browser, tabs))
}
