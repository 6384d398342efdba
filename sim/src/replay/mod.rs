//! Predicts a trace of `moex serve --trace FILE`: fits links, devices and the hub's own times to the first half of its
//! steps, simulates the second half with them, and compares the two.
//!
//! ```text
//! trace     lines -> steps with their layers
//! fit       the first half -> times of links, devices and the hub
//! predict   the workload of both halves (rows, routing, connected workers), by the shipped swarm on virtual time
//! compare   the second half, measured and predicted
//! ```
//! The first half is simulated as a warm-up, so that the swarm knows its workers as the real one did; it is not
//! counted.

mod compare;
mod fit;
mod predict;
mod trace;

pub use self::{
    compare::{Comparison, Figures},
    fit::{Fit, HubFit, Rows, WorkerFit},
    predict::predict,
    trace::{MAX_LINE_BYTES, MAX_RECORDS, Step, Trace, Worker},
};

/// Fewer steps than this have no halves worth comparing.
pub const MIN_STEPS: usize = 8;

/// Why a trace cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// A line that is not a record, or one that contradicts another.
    #[error("line {line}: {why}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// In a sentence.
        why: String,
    },
    /// An error of the whole file.
    #[error("{0}")]
    Trace(String),
    /// A layer that could not be simulated.
    #[error("step {step}, layer {layer}: {why}")]
    Layer {
        /// Counted from 0.
        step: usize,
        /// Of the model.
        layer: u16,
        /// The swarm's error message.
        why: String,
    },
}

/// Fits the first half of a trace, predicts the second and compares.
///
/// # Errors
/// If the trace is too short to be halved, or the simulated swarm cannot compute one of its layers.
pub fn replay(trace: &Trace, seed: u64) -> Result<Comparison, ReplayError> {
    if trace.steps.len() < MIN_STEPS {
        let n = trace.steps.len();
        return Err(ReplayError::Trace(format!("the trace has {n} steps; at least {MIN_STEPS} are needed")));
    }
    let cut = trace.steps.len() / 2;
    let fit = Fit::of(trace, cut);
    let predicted = predict(trace, &fit, cut, seed)?;
    Ok(Comparison { measured: Figures::measured(&trace.steps[cut..]), predicted, fit, n_fitted: cut })
}
