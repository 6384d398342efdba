//! The latency model of a swarm, as pure functions: the simulator computes the paper's figures with it, the hub what it
//! shows as "predicted".
//!
//! ```text
//! latency     time of one worker: log-normal, shifted log-normal, empirical
//!   phase     wait of a layer: the slowest of k experts, each the fastest of h copies
//!     quadrature    its mean, with an error estimate
//! room        the workers of a hub as measured: a layer's wait, tokens/s, and what changes of the room would give
//! random      draws from a latency, by seed
//! ```
//!
//! Times are milliseconds in `f64`. Nothing here reads a clock or does I/O, and it depends on no other crate of ours.

pub mod limits;

pub mod random;

pub mod latency;

pub mod phase;

pub mod quadrature;

pub mod room;

pub mod error;
