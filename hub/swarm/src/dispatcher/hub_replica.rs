//! The hub as a replica of every block: its computations in progress, its speed, and its results.

use std::time::Duration;

use moex_protocol::Answer;

use super::latency::Latencies;
use crate::ComputeId;

/// The hub as seen by the dispatcher.
#[derive(Debug, Default)]
pub(super) struct HubReplica {
    last: ComputeId,
    /// Computations requested and not finished.
    n_computing: usize,
    latencies: Latencies,
    pub counts: HubCounts,
}

/// Counts of the hub's computations for layers, without checks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HubCounts {
    /// Computations, each as large as a message to a worker.
    pub dispatches: u64,
    /// (row, expert) pairs in them.
    pub rows: u64,
}

impl HubReplica {
    /// Starts a computation and returns its id.
    pub(super) fn begin(&mut self) -> ComputeId {
        self.last = ComputeId(self.last.0 + 1);
        self.n_computing += 1;
        self.last
    }

    /// Ends a computation, successful or not.
    pub(super) fn end(&mut self) {
        self.n_computing = self.n_computing.saturating_sub(1);
    }

    /// Number of computations in progress.
    pub(super) fn n_computing(&self) -> usize {
        self.n_computing
    }

    /// Records the time of a computation of `n_pairs`.
    pub(super) fn took(&mut self, n_pairs: usize, latency: Duration) {
        self.latencies.record(n_pairs, latency);
    }

    /// Usual time for `n_pairs`, once measured.
    pub(super) fn usual(&self, n_pairs: usize) -> Option<Duration> {
        self.latencies.expected(n_pairs)
    }

    /// Expected time until the hub would have computed `n_pairs` more, after its current work.
    pub(super) fn expected(&self, n_pairs: usize) -> Option<Duration> {
        Some(self.usual(n_pairs)?.saturating_mul(1 + self.n_computing as u32))
    }

    pub(super) fn latencies(&self) -> &Latencies {
        &self.latencies
    }
}

/// The hub's result, already scanned for values that are not finite. The computing thread creates it, so that the
/// swarm's thread scans nothing.
#[derive(Clone, Debug)]
pub struct HubResult {
    answer: Answer,
    is_finite: bool,
}

impl HubResult {
    /// Scans an answer.
    pub fn new(answer: Answer) -> Self {
        Self { is_finite: !answer.has_non_finite(), answer }
    }

    /// The answer, if all values are finite.
    pub(crate) fn finite(&self) -> Option<&Answer> {
        self.is_finite.then_some(&self.answer)
    }
}

#[cfg(test)]
mod tests {
    use half::f16;
    use moex_protocol::{AnswerPart, Dtype, ExpertId, LayerId};

    use super::*;

    #[test]
    fn an_answer_with_a_value_that_is_not_finite_is_none() {
        let is_finite = |values: [f32; 2]| {
            let payload: Vec<u8> = values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
            let part = AnswerPart { expert: ExpertId(0), rows: 1, payload: payload.into() };
            let (layer, dtype, parts) = (LayerId(0), Dtype::F16, vec![part]);
            let answer = Answer { layer, hidden: 2, dtype, parts, products: None };
            HubResult::new(answer).finite().is_some()
        };
        assert!(is_finite([1.0, -2.0]));
        assert!(!is_finite([1.0, f32::NAN]));
        assert!(!is_finite([f32::INFINITY, 0.0]));
    }
}
