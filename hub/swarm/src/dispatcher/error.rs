//! Errors of a layer.

use std::time::Duration;

use moex_protocol::{Block, LayerId};

/// Why a job has no result. Each is one sentence for the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// No worker could be asked for a block within the allowed wait.
    #[error(
        "no responsive worker held {block} within {} s: add workers, give them more \
         memory, or let the hub compute missing experts",
        waited.as_secs_f32()
    )]
    Uncovered {
        /// The first such block.
        block: Block,
        /// How long the job waited.
        waited: Duration,
    },
    /// Rows, experts and gates have inconsistent shapes.
    #[error("layer {layer}: rows, experts and gates have inconsistent shapes")]
    Shape {
        /// The layer.
        layer: LayerId,
    },
    /// More rows than workers have planned memory for.
    #[error("{rows} rows in one step, but workers take {max}: use smaller prefill chunks")]
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
    /// The hub failed to compute an item that no worker could.
    #[error("layer {layer}: computing on the hub failed: {message}")]
    Hub {
        /// The layer.
        layer: LayerId,
        /// The reason.
        message: String,
    },
    /// Too many jobs at once.
    #[error("{max} layers are in flight already")]
    Busy {
        /// The bound.
        max: usize,
    },
    /// The hub is shutting down.
    #[error("the hub is shutting down")]
    ShuttingDown,
}
