//! The worker against a real hub session with a real engine: the core on virtual time, the native driver over sockets.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod harness;
mod hubs;
#[cfg(feature = "native")]
mod native;
mod residency;
mod serving;
mod sessions;
