//! One layer's work for a step: its cells (an expert with its rows), which of them are settled, and with what.

use std::time::Duration;

use moex_protocol::{Block, LayerId, WorkerId};

use super::combine::{Part, combine};
use super::plan::WireJob;
use super::{ComputeId, ConnectionId};
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

/// Why a job has no result. Each is one sentence for the one who asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// Nobody could be asked for a block, for as long as one may wait.
    #[error(
        "{block} is held by no worker that answers, and none came within {} s: open more workers, give them more \
         memory, or let the hub compute what is missing",
        waited.as_secs_f32()
    )]
    Uncovered {
        /// The first such block.
        block: Block,
        /// How long it was waited for.
        waited: Duration,
    },
    /// Rows, experts and gates do not fit together.
    #[error("layer {layer}: the rows, experts and gates are not of one shape")]
    Shape {
        /// The layer.
        layer: LayerId,
    },
    /// More rows than workers have planned memory for.
    #[error("{rows} rows in one step where workers take {max}: use smaller prefill chunks")]
    TooManyRows {
        /// Rows of the job.
        rows: usize,
        /// The bound.
        max: usize,
    },
    /// The router chose an expert that the catalog does not have.
    #[error("{block} is not in the packed experts: they were packed from another model")]
    NoSuchBlock {
        /// The block.
        block: Block,
    },
    /// The experts' results are not finite even on the hub.
    #[error("layer {layer}: an expert's result is not finite in the wire's number format: try --wire bf16")]
    NotFinite {
        /// The layer.
        layer: LayerId,
    },
    /// The hub failed to compute what no worker could.
    #[error("layer {layer}: computing on the hub failed: {message}")]
    Hub {
        /// The layer.
        layer: LayerId,
        /// What went wrong.
        message: String,
    },
    /// Too many jobs at once.
    #[error("{max} layers are in flight already")]
    Busy {
        /// The bound.
        max: usize,
    },
    /// The hub is going down.
    #[error("the hub is shutting down")]
    ShuttingDown,
}

/// A job in flight.
#[derive(Debug)]
pub(super) struct Job {
    pub wire: WireJob,
    pub started: Duration,
    /// One a call of `wire`, in its order.
    pub cells: Vec<Cell>,
    /// The hub computation that is running for it: at most one at a time.
    pub hub: Option<HubWork>,
    /// Answers that are used when the hub has checked them: one an attempt at most.
    pub withheld: Vec<Claim>,
    /// Since when there is a cell that nobody can be asked for.
    pub uncovered_since: Option<Duration>,
    /// Whether a cell waits for a worker, a slot or the hub.
    pub is_waiting: bool,
    winners: Vec<Winner>,
}

/// One expert's rows within a job.
#[derive(Clone, Debug, Default)]
pub(super) struct Cell {
    pub is_settled: bool,
    /// Whether anybody was asked.
    pub was_asked: bool,
    /// Those who were asked and failed, once for each time.
    pub failures: Vec<ConnectionId>,
}

/// What the hub computes for a job.
#[derive(Clone, Debug)]
pub(super) struct HubWork {
    pub id: ComputeId,
    pub cells: Vec<usize>,
    /// Whether a worker was asked for them and is late.
    pub is_hedge: bool,
    pub sent: Duration,
}

/// Who an answer is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Hub,
    Worker(WorkerId),
}

/// What one worker says of some cells.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub worker: WorkerId,
    pub parts: Vec<Part>,
}

/// A part that settled its cells.
#[derive(Clone, Debug)]
pub(super) struct Winner {
    pub source: Source,
    pub part: Part,
}

/// What an answer was worth.
#[derive(Debug, Default)]
pub(super) struct Worth {
    /// The cells that it settled; none if all it says was known, or cannot be told apart from what was.
    pub settled: Vec<usize>,
    /// Parts that another answer had settled before, to be compared with it.
    pub redundant: Vec<Part>,
}

impl Job {
    pub(super) fn new(wire: WireJob, started: Duration) -> Self {
        let cells = vec![Cell::default(); wire.calls.len()];
        Self {
            wire,
            started,
            cells,
            hub: None,
            withheld: Vec::new(),
            uncovered_since: None,
            is_waiting: false,
            winners: Vec::new(),
        }
    }

    /// The block that a cell needs.
    pub(super) fn block(&self, cell: usize) -> Block {
        Block { layer: self.wire.layer, expert: self.wire.calls[cell].expert }
    }

    /// Takes what the hub computed, also in place of what a worker said of the same cells. The cells that were open.
    pub(super) fn accept_own(&mut self, parts: Vec<Part>) -> Vec<usize> {
        let mut opened = Vec::new();
        for part in &parts {
            let shared = |w: &Winner| w.part.cells.iter().filter(|cell| part.cells.contains(cell)).count();
            // A worker's sum that reaches beyond the hub's part cannot be replaced by it.
            if self.winners.iter().any(|w| shared(w) > 0 && shared(w) < w.part.cells.len()) {
                continue;
            }
            for winner in self.winners.extract_if(.., |w| w.source != Source::Hub && shared(w) > 0) {
                opened.extend(winner.part.cells);
            }
        }
        for cell in &opened {
            self.cells[*cell].is_settled = false;
        }
        let mut settled = self.accept(Source::Hub, parts).settled;
        settled.retain(|cell| !opened.contains(cell));
        settled
    }

    /// Takes what `source` says: the first valid answer to a cell wins.
    pub(super) fn accept(&mut self, source: Source, parts: Vec<Part>) -> Worth {
        let mut worth = Worth::default();
        for part in parts {
            // A sum over experts of which one is settled already cannot be taken apart.
            if part.cells.iter().any(|cell| self.cells[*cell].is_settled) {
                worth.redundant.push(part);
                continue;
            }
            for cell in &part.cells {
                self.cells[*cell].is_settled = true;
            }
            worth.settled.extend(&part.cells);
            self.winners.push(Winner { source, part });
        }
        worth
    }

    /// Takes back what a worker settled: these cells are open again.
    pub(super) fn retract(&mut self, worker: WorkerId) -> Vec<usize> {
        let is_its = |winner: &Winner| winner.source == Source::Worker(worker);
        let its = self.winners.iter().filter(|winner| is_its(winner));
        let cells: Vec<usize> = its.flat_map(|winner| winner.part.cells.iter().copied()).collect();
        for cell in &cells {
            self.cells[*cell].is_settled = false;
        }
        self.winners.retain(|winner| !is_its(winner));
        self.withheld.retain(|claim| claim.worker != worker);
        cells
    }

    pub(super) fn is_settled(&self) -> bool {
        self.cells.iter().all(|cell| cell.is_settled)
    }

    /// Whether these cells are all settled, so that an attempt at them is moot.
    pub(super) fn are_settled(&self, cells: &[usize]) -> bool {
        cells.iter().all(|cell| self.cells[*cell].is_settled)
    }

    pub(super) fn winners(&self) -> &[Winner] {
        &self.winners
    }

    /// (T, D): the sum of what was taken.
    pub(super) fn sum(&self) -> Vec<f32> {
        combine(self.winners.iter().map(|winner| &winner.part), self.wire.n_rows, self.wire.hidden)
    }

    /// The job's shape and what was taken, when it is over.
    pub(super) fn into_winners(self) -> (WireJob, Vec<Winner>) {
        (self.wire, self.winners)
    }
}
