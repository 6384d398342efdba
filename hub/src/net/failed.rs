//! Converts the swarm's errors to the engine's.

use moex_model::{ExpertsError, SwarmFailure};
use moex_swarm::JobError;

/// The engine's error for a failed job.
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

/// The engine's error with its own message.
pub(super) fn swarm_error(failure: SwarmFailure, message: impl Into<String>) -> ExpertsError {
    ExpertsError::Swarm { failure, message: message.into() }
}
