//! The hub as a replica of every block: what it is computing, and how fast it is.

use std::time::Duration;

use super::latency::Latencies;
use crate::ComputeId;
use crate::status::HubShare;

/// The hub as the dispatcher knows it.
#[derive(Debug, Default)]
pub(super) struct HubReplica {
    last: ComputeId,
    /// Computations that the hub was asked for and has not done.
    n_computing: usize,
    latencies: Latencies,
    /// What it has computed of layers; checks are not counted.
    pub share: HubShare,
}

impl HubReplica {
    /// The hub is asked for a computation, which gets this id.
    pub(super) fn begin(&mut self) -> ComputeId {
        self.last = ComputeId(self.last.0 + 1);
        self.n_computing += 1;
        self.last
    }

    /// A computation has ended, well or not.
    pub(super) fn end(&mut self) {
        self.n_computing = self.n_computing.saturating_sub(1);
    }

    /// Computations under way.
    pub(super) fn n_computing(&self) -> usize {
        self.n_computing
    }

    /// A computation of `n_pairs` took this long.
    pub(super) fn took(&mut self, n_pairs: usize, latency: Duration) {
        self.latencies.record(n_pairs, latency);
    }

    /// What a computation of `n_pairs` usually takes, once it was measured.
    pub(super) fn usual(&self, n_pairs: usize) -> Option<Duration> {
        self.latencies.expected(n_pairs)
    }

    /// When the hub would have computed so many more pairs, behind what it is computing already.
    pub(super) fn expected(&self, n_pairs: usize) -> Option<Duration> {
        Some(self.usual(n_pairs)?.saturating_mul(1 + self.n_computing as u32))
    }

    pub(super) fn latencies(&self) -> &Latencies {
        &self.latencies
    }
}
