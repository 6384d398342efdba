//! The latency model of a swarm of expert workers, which recomputes the MoEx paper's figures, and a simulator of the
//! swarm.
//!
//! ```text
//! moex_latency, which the hub uses too:
//! latency     time of one worker: log-normal, shifted log-normal, empirical
//!   phase     wait of a layer: the slowest of k experts, each the fastest of h copies
//!     quadrature    its mean, with an error estimate
//!     monte_carlo   its mean by sampling, with a standard error
//! geometry    sizes of the model: parameters, bytes, a worker's share of them
//! token       time of a token, and rate of a prefill
//! world       the shipped swarm and workers on virtual time, over seeded links and devices
//!   chaos       random faults and invariants
//!   scenario    a room as a file; run   its results
//!   replay      a hub's trace: fitted, predicted, compared
//!   plan        the smallest room that serves a model fast enough
//! tables      all of it beside the paper's figures, with the reason for differences
//! report, plot, bars   output of tables, curves and stacks: text, JSON, CSV, SVG
//! ```
//!
//! Times are milliseconds in `f64`. Nothing here reads a clock or a random source: a seed is an argument, and the
//! same seed gives the same bytes on every machine, because `exp`, `log` and `erfc` come from the `libm` crate and
//! not from the platform's library, and everything else is exactly rounded by IEEE 754.
//!
//! ```
//! use moex_sim::{latency::Latency, phase::ExpertPhase};
//!
//! // Eight experts, each asked of two workers; a worker answers in 20 ms at the median.
//! let phase = ExpertPhase::iid(Latency::log_normal(20.0, 0.5)?, 8, 2)?;
//! assert!((phase.mean()?.value - 27.57).abs() < 0.01);
//! # Ok::<(), moex_sim::error::ModelError>(())
//! ```

pub use moex_latency::{error, latency, limits, phase, quadrature, random};

pub mod histogram;

pub mod monte_carlo;

pub mod geometry;

pub mod token;

pub mod tables;

pub mod world;

pub mod chaos;

pub mod scenario;

pub mod run;

pub mod replay;

pub mod plan;

pub mod report;

pub mod plot;

pub mod bars;

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
