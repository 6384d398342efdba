//! The state of a worker at one hub, as data: the page and the terminal print it, tests read it.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;

/// How many recent computations the latency percentiles are taken over.
pub const LATENCY_WINDOW: usize = 256;

/// The state of a worker at one hub. Counts are since the worker started, over all sessions with the hub.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Status {
    /// `joining`, `syncing`, `serving`, `paused`, `draining` or `closed`.
    pub state: String,
    /// The worker's stable id.
    pub worker: String,
    /// What computes: a GPU's name or the CPU's instruction set.
    pub adapter: String,
    /// `webgpu`, `vulkan`, `metal`, `dx12`, `cpu` or `wasm-simd`.
    pub backend: String,
    /// The adapter's optional features in use.
    pub features: Vec<String>,
    /// The served model, once the hub has named it.
    pub model: Option<String>,
    /// Bytes of blocks that this worker offers to hold.
    pub bytes_offered: u64,
    /// Blocks the hub asked this worker to hold.
    pub blocks_assigned: usize,
    /// Of these, the ones that answer dispatches.
    pub blocks_resident: usize,
    /// Blocks that could not be loaded.
    pub blocks_failed: u64,
    /// Bytes of the resident blocks.
    pub bytes_resident: u64,
    /// Bytes fetched over the network, that is, not found in this worker's own store.
    pub bytes_downloaded: u64,
    /// Dispatches taken up.
    pub dispatches: u64,
    /// Dispatches answered with a result.
    pub answers: u64,
    /// (row, expert) pairs computed.
    pub rows: u64,
    /// Dispatches answered with an error.
    pub errors: u64,
    /// Median time from taking up a dispatch to its answer, over the last [`LATENCY_WINDOW`].
    pub latency_p50_micros: u64,
    /// The 99th percentile of the same.
    pub latency_p99_micros: u64,
    /// The last thing that went wrong, in words.
    pub problem: Option<String>,
}

/// The most characters of a hub's text that are shown.
const MAX_TOLD_CHARS: usize = 300;

/// A text with words of the hub, made safe to show: short, and without characters that control a terminal or change the
/// direction of reading.
pub(super) fn told(text: &str) -> String {
    let steers = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
    };
    text.chars().take(MAX_TOLD_CHARS).map(|c| if steers(c) { ' ' } else { c }).collect()
}

/// The last [`LATENCY_WINDOW`] durations.
#[derive(Debug, Default)]
pub(super) struct Latencies(VecDeque<Duration>);

impl Latencies {
    pub(super) fn push(&mut self, latency: Duration) {
        if self.0.len() == LATENCY_WINDOW {
            self.0.pop_front();
        }
        self.0.push_back(latency);
    }

    /// The smallest recent duration that `percent` of them do not exceed; zero without any.
    pub(super) fn percentile_micros(&self, percent: usize) -> u64 {
        let mut sorted: Vec<_> = self.0.iter().copied().collect();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100).max(1) - 1;
        sorted.get(rank).map_or(0, |latency| u64::try_from(latency.as_micros()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_hub_says_is_short_and_steers_nothing() {
        assert_eq!(told("no\u{1b}[2Jroom\r\n\u{202e}here"), "no [2Jroom   here");
        assert_eq!(told(&"\u{e9}".repeat(100_000)), "\u{e9}".repeat(MAX_TOLD_CHARS));
    }

    #[test]
    fn percentiles_are_over_the_window() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.percentile_micros(50), 0);
        for _ in 0..LATENCY_WINDOW {
            latencies.push(Duration::from_secs(9));
        }
        for micros in 1..=LATENCY_WINDOW as u64 {
            latencies.push(Duration::from_micros(micros));
        }
        assert_eq!(latencies.percentile_micros(50), LATENCY_WINDOW as u64 / 2);
        assert_eq!(latencies.percentile_micros(99), 254);
        assert_eq!(latencies.percentile_micros(100), LATENCY_WINDOW as u64);
    }
}
