//! Why a layer has no result.

use std::time::Duration;

use moex_protocol::{Block, LayerId};

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
