//! Errors in a model's inputs, each in one sentence.

use crate::limits::{MAX_CALLS, MAX_COPIES, MAX_CUTS, MAX_DRAWS, MAX_SAMPLE_COUNT, MAX_SIGMA, MAX_TIME_MS};

/// Why a model, a distribution or a plot could not be made from its input.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// A time that is negative, not finite or beyond any network.
    #[error("{what} must be between 0 and {MAX_TIME_MS} ms, not {value}")]
    Time {
        /// Which time.
        what: &'static str,
        /// The value given, milliseconds.
        value: f64,
    },
    /// A log-normal whose median is 0.
    #[error("the median of a log-normal must be above 0 ms; a worker that takes no time is a constant")]
    ZeroMedian,
    /// A log-normal whose spread is zero, negative or so wide that its mean is useless.
    #[error("sigma must be above 0 and at most {MAX_SIGMA}, not {0}; a latency without spread is a constant")]
    Sigma(f64),
    /// An empirical distribution with no samples, or too many.
    #[error("an empirical latency needs 1 to {MAX_SAMPLE_COUNT} samples, not {0}")]
    SampleCount(usize),
    /// A text that is not a distribution.
    #[error("'{0}' is no latency: write lognormal:MEDIAN,SIGMA or shifted:SHIFT,MEDIAN,SIGMA, times in ms")]
    Spec(String),
    /// A line of a sample file that is not a latency.
    #[error("line {line}: '{text}' is no latency in milliseconds")]
    SampleLine {
        /// Counted from 1.
        line: usize,
        /// The line's text, shortened.
        text: String,
    },
    /// A phase with no expert, or with more than any model has.
    #[error("a phase needs 1 to {MAX_CALLS} experts, not {0}")]
    Calls(u64),
    /// An expert with no copy, or with more than a plan may use.
    #[error("an expert needs 1 to {MAX_COPIES} copies, not {0}")]
    Copies(usize),
    /// Empirical latencies whose samples together are too many to integrate over.
    #[error("the phase's latencies have {0} samples together; at most {MAX_CUTS} can be integrated over")]
    Cuts(usize),
    /// A quadrature that ran into its limit of evaluations.
    #[error("the integral did not converge: {value} +- {error} after {evaluations} evaluations")]
    NotConverged {
        /// The best value so far.
        value: f64,
        /// Its error estimate.
        error: f64,
        /// How often the integrand was evaluated.
        evaluations: usize,
    },
    /// Too few draws for a standard error, or too many to wait for.
    #[error("a Monte Carlo needs 2 to {MAX_DRAWS} samples, not {0}")]
    Draws(u64),
    /// A share of replicas that no set of workers can hold.
    #[error(
        "{replicas} replicas need as many workers, and at least one of each: there are {workers} workers"
    )]
    Replicas {
        /// Copies of each expert.
        replicas: u32,
        /// Workers that hold them.
        workers: u32,
    },
    /// A probability outside the open interval in which a quantile is defined.
    #[error("a quantile needs a probability above 0 and below 1, not {0}")]
    Probability(f64),
    /// A prefill of no rows, or over a link without a rate.
    #[error(
        "a prefill needs at least one row and a link rate above 0, not {rows} rows at {bytes_per_s} bytes/s"
    )]
    Prefill {
        /// Rows in the chunk.
        rows: u32,
        /// The hub's link, bytes per second.
        bytes_per_s: f64,
    },
    /// The drawing library refused; the text is its own.
    #[error("the plot could not be drawn: {0}")]
    Plot(String),
}
