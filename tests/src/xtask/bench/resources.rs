//! Reads the memory and other resources that a hub holds, as Linux counts them.

use anyhow::{Context, Result};

use crate::hub::Hub;

/// The resources of the hub that the system counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct HubResources {
    pub(super) resident_kib: u64,
    /// The part that does not belong to mapped files.
    pub(super) anonymous_kib: u64,
    pub(super) n_files: usize,
    pub(super) n_threads: u64,
}

/// Linux's counts for the hub.
pub(super) fn of_hub(hub: &Hub) -> Result<HubResources> {
    let folder = format!("/proc/{}", hub.pid());
    let status = std::fs::read_to_string(format!("{folder}/status")).context("this bench needs Linux")?;
    let number = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        let word = line.and_then(|line| line.split_whitespace().next());
        word.and_then(|word| word.parse().ok()).with_context(|| format!("no {key} in {folder}/status"))
    };
    Ok(HubResources {
        resident_kib: number("VmRSS:")?,
        anonymous_kib: number("RssAnon:")?,
        n_files: std::fs::read_dir(format!("{folder}/fd"))?.count(),
        n_threads: number("Threads:")?,
    })
}
