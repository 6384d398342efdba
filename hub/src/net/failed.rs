//! What the engine hears of a layer that the swarm did not compute.

use moex_model::{ExpertsError, SwarmFailure};
use moex_swarm::JobError;

/// Why the swarm has no result, in the engine's terms.
pub(super) fn failed(error: &JobError) -> ExpertsError {
    let failure = match error {
        JobError::Busy { .. } => SwarmFailure::Busy,
        JobError::Uncovered { .. } => SwarmFailure::Uncovered,
        JobError::ShuttingDown => SwarmFailure::Stopping,
        JobError::Shape { .. }
        | JobError::TooManyRows { .. }
        | JobError::NoSuchBlock { .. }
        | JobError::NotFinite { .. }
        | JobError::Hub { .. } => SwarmFailure::Failed,
    };
    swarm_error(failure, error.to_string())
}

/// The same in words of one's own.
pub(super) fn swarm_error(failure: SwarmFailure, message: impl Into<String>) -> ExpertsError {
    ExpertsError::Swarm { failure, message: message.into() }
}
