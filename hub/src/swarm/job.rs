//! One layer's work for a step: its cells (an expert with its rows), which of them are settled, and with what.

use std::time::Duration;

use moex_protocol::{Answer, Block, LayerId};

use super::combine::{Contribution, combine, decode_part};
use super::plan::{FormPolicy, WireJob};
use super::{ComputeId, ConnectionId};
use crate::model::Routing;

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
    pub hub: Option<(ComputeId, Vec<usize>)>,
    /// Since when there is a cell that nobody can be asked for.
    pub uncovered_since: Option<Duration>,
    /// Whether a cell waits for a worker, a slot or the hub.
    pub is_waiting: bool,
    contributions: Vec<Contribution>,
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

/// What an answer was worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Worth {
    /// It settled at least one cell.
    Used,
    /// All it says was known, or cannot be told apart from what was.
    Redundant,
    /// It does not have the shape that was asked for, or a value in it is not finite.
    Invalid,
}

impl Job {
    pub(super) fn new(wire: WireJob, started: Duration) -> Self {
        let cells = vec![Cell::default(); wire.calls.len()];
        Self {
            wire,
            started,
            cells,
            hub: None,
            uncovered_since: None,
            is_waiting: false,
            contributions: Vec::new(),
        }
    }

    /// The block that a cell needs.
    pub(super) fn block(&self, cell: usize) -> Block {
        Block { layer: self.wire.layer, expert: self.wire.calls[cell].expert }
    }

    /// Takes what `answer` says of `cells`, those its dispatch asked for: the first valid answer to a cell wins.
    pub(super) fn accept(&mut self, cells: &[usize], policy: FormPolicy, answer: &Answer) -> Worth {
        let groups: Vec<(Vec<usize>, Vec<u16>)> = match policy {
            FormPolicy::Summed => vec![(cells.to_vec(), self.wire.rows_of(cells))],
            FormPolicy::PerExpert => cells
                .iter()
                .map(|cell| (vec![*cell], self.wire.calls[*cell].pairs.iter().map(|p| p.row).collect()))
                .collect(),
        };
        if answer.parts.len() != groups.len() {
            return Worth::Invalid;
        }
        let mut contributions = Vec::with_capacity(groups.len());
        for ((cells, rows), part) in groups.into_iter().zip(&answer.parts) {
            let Some(values) = decode_part(part, answer.dtype, self.wire.hidden, rows.len()) else {
                return Worth::Invalid;
            };
            let expert = self.wire.calls[cells[0]].expert.0;
            contributions.push((cells, Contribution { expert, rows, values }));
        }
        let mut worth = Worth::Redundant;
        for (cells, contribution) in contributions {
            // A sum over experts of which one is settled already cannot be taken apart.
            if cells.iter().all(|cell| !self.cells[*cell].is_settled) {
                for cell in cells {
                    self.cells[cell].is_settled = true;
                }
                self.contributions.push(contribution);
                worth = Worth::Used;
            }
        }
        worth
    }

    pub(super) fn is_settled(&self) -> bool {
        self.cells.iter().all(|cell| cell.is_settled)
    }

    /// Whether these cells are all settled, so that an attempt at them is moot.
    pub(super) fn are_settled(&self, cells: &[usize]) -> bool {
        cells.iter().all(|cell| self.cells[*cell].is_settled)
    }

    /// (T, D): the sum of what was taken.
    pub(super) fn into_sum(self) -> Vec<f32> {
        combine(self.contributions, self.wire.n_rows, self.wire.hidden)
    }
}
