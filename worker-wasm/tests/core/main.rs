//! The worker's core against a real hub session and a real engine, on virtual time.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod harness;
mod residency;
mod serving;
mod sessions;
