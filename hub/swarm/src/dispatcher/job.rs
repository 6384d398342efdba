//! One job: a layer's work items (an expert with its rows), which of them are settled, and by which answers.

use std::sync::Arc;
use std::time::Duration;

use moex_protocol::{Block, LayerId, WorkerId};

use super::error::JobError;
use super::layer::{EncodedLayer, LayerEncoding};
use super::parts::{Part, combine};
use crate::{ComputeId, ConnectionId};
use moex_protocol::Routing;

/// A layer's rows and where the router sends them.
#[derive(Clone, Debug)]
pub struct LayerJob {
    /// The layer.
    pub layer: LayerId,
    /// (T, D), normed.
    pub rows: Vec<f32>,
    /// (T, K) experts and gates.
    pub routing: Routing,
}

impl LayerJob {
    /// Encodes the job; see [`EncodedLayer::encode`].
    ///
    /// # Errors
    /// As [`EncodedLayer::encode`].
    pub fn encode(&self, encoding: LayerEncoding) -> Result<EncodedLayer, JobError> {
        EncodedLayer::encode(self.layer, &self.rows, &self.routing, encoding)
    }
}

/// A finished layer: the experts' results, still in the wire's number format and not summed. The receiver sums them, so
/// that the swarm's thread does not.
#[derive(Clone, Debug)]
pub struct LayerResult {
    pub(super) layer: Arc<EncodedLayer>,
    pub(super) winners: Vec<Winner>,
}

impl LayerResult {
    /// (T, D): the gated sum over the experts, ascending by expert.
    pub fn sum(&self) -> Vec<f32> {
        let mut sum = vec![0.0; self.layer.n_rows * self.layer.hidden];
        self.sum_into(&mut sum);
        sum
    }

    /// [`Self::sum`] into memory the caller has, `sum` (T, D).
    ///
    /// # Panics
    /// If `sum` is not (T, D).
    pub fn sum_into(&self, sum: &mut [f32]) {
        assert_eq!(
            sum.len(),
            self.layer.n_rows * self.layer.hidden,
            "the sum has the shape of the layer's rows"
        );
        self.sum_rows(0, sum);
    }

    /// [`Self::sum`] of some rows, from row `first` on, to `sum` (rows, D).
    pub fn sum_rows(&self, first: usize, sum: &mut [f32]) {
        combine(self.winners.iter().map(|winner| &winner.part), first, sum);
    }

    /// T, the layer's rows.
    pub fn n_rows(&self) -> usize {
        self.layer.n_rows
    }
}

/// A job in flight.
#[derive(Debug)]
pub(super) struct Job {
    pub layer: Arc<EncodedLayer>,
    pub started: Duration,
    /// One state per work item of `layer`, in its order.
    pub items: Vec<ItemState>,
    /// The hub's computation for it: at most one at a time.
    pub hub: Option<HubWork>,
    /// Answers withheld until the hub has checked them: at most one per attempt.
    pub withheld: Vec<WorkerAnswer>,
    /// Answers that wait for another worker's: at most one per attempt and item.
    pub held: Vec<PendingAnswer>,
    /// Since when some work item has no possible worker.
    pub uncovered_since: Option<Duration>,
    /// Whether a work item waits for a worker, a slot or the hub.
    pub is_waiting: bool,
    winners: Vec<Winner>,
}

/// State of one work item.
#[derive(Clone, Debug, Default)]
pub(super) struct ItemState {
    pub is_settled: bool,
    /// Whether any worker was asked.
    pub was_asked: bool,
    /// Whether workers answered it differently, so that the hub has to compute it.
    pub is_disputed: bool,
    /// The workers that failed at it, one entry per failure.
    pub failures: Vec<ConnectionId>,
}

/// The hub's computation for a job.
#[derive(Clone, Debug)]
pub(super) struct HubWork {
    pub id: ComputeId,
    pub items: Vec<usize>,
    /// Whether a worker was asked for the items and is late.
    pub is_hedge: bool,
    pub sent: Duration,
}

/// The origin of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Hub,
    Worker(WorkerId),
}

/// One worker's answer.
#[derive(Clone, Debug)]
pub(crate) struct WorkerAnswer {
    pub worker: WorkerId,
    pub parts: Vec<Part>,
}

/// A worker's answer to one item that waits for another worker's.
#[derive(Clone, Debug)]
pub(super) struct PendingAnswer {
    pub worker: WorkerId,
    /// The worker's address.
    pub host: Arc<str>,
    pub part: Part,
}

/// A part that settled its items.
#[derive(Clone, Debug)]
pub(crate) struct Winner {
    pub source: Source,
    pub part: Part,
}

/// Result of accepting an answer's parts.
#[derive(Debug, Default)]
pub(super) struct Acceptance {
    /// The items that it settled.
    pub settled: Vec<usize>,
    /// The other workers that answered the same before, where that is needed, and to which item.
    pub agreed: Vec<(WorkerId, usize)>,
    /// Parts whose item another answer settled before, for comparison.
    pub redundant: Vec<Part>,
}

impl Job {
    pub(super) fn new(layer: Arc<EncodedLayer>, started: Duration) -> Self {
        let items = vec![ItemState::default(); layer.items.len()];
        Self {
            layer,
            started,
            items,
            hub: None,
            withheld: Vec::new(),
            held: Vec::new(),
            uncovered_since: None,
            is_waiting: false,
            winners: Vec::new(),
        }
    }

    /// The block that a work item needs.
    pub(super) fn block(&self, item: usize) -> Block {
        self.layer.block(item)
    }

    /// Accepts the hub's result, also in place of a worker's. Returns the items that were open.
    pub(super) fn accept_from_hub(&mut self, parts: Vec<Part>) -> Vec<usize> {
        let mut opened = Vec::new();
        for Part { item, .. } in &parts {
            let replaced = self.winners.extract_if(.., |w| w.source != Source::Hub && w.part.item == *item);
            opened.extend(replaced.map(|winner| winner.part.item));
        }
        for item in &opened {
            self.items[*item].is_settled = false;
        }
        let mut settled = self.accept(Source::Hub, parts).settled;
        settled.retain(|item| !opened.contains(item));
        settled
    }

    /// Accepts the parts of a valid answer: the first answer to a work item wins.
    pub(super) fn accept(&mut self, source: Source, parts: Vec<Part>) -> Acceptance {
        let mut acceptance = Acceptance::default();
        for part in parts {
            if std::mem::replace(&mut self.items[part.item].is_settled, true) {
                acceptance.redundant.push(part);
                continue;
            }
            acceptance.settled.push(part.item);
            self.winners.push(Winner { source, part });
        }
        acceptance
    }

    /// Discards a worker's results. Returns the items that are open again.
    pub(super) fn retract(&mut self, worker: WorkerId) -> Vec<usize> {
        let is_its = |winner: &Winner| winner.source == Source::Worker(worker);
        let its = self.winners.iter().filter(|winner| is_its(winner));
        let items: Vec<usize> = its.map(|winner| winner.part.item).collect();
        for item in &items {
            self.items[*item].is_settled = false;
        }
        self.winners.retain(|winner| !is_its(winner));
        self.withheld.retain(|answer| answer.worker != worker);
        self.held.retain(|held| held.worker != worker);
        items
    }

    pub(super) fn is_settled(&self) -> bool {
        self.items.iter().all(|item| item.is_settled)
    }

    /// Whether these items are all settled, so that no attempt at them is needed.
    pub(super) fn are_settled(&self, items: &[usize]) -> bool {
        items.iter().all(|item| self.items[*item].is_settled)
    }

    pub(super) fn push_winner(&mut self, winner: Winner) {
        self.winners.push(winner);
    }

    pub(super) fn winners(&self) -> &[Winner] {
        &self.winners
    }

    /// The accepted results, to be summed.
    pub(super) fn into_result(self) -> LayerResult {
        LayerResult { layer: self.layer, winners: self.winners }
    }
}
