//! The worker: it holds experts of a model and answers for them.
//!
//! [`core`] is the whole of its logic, without I/O: for each of its hubs a connection, a session, the blocks held and the
//! computations owed. `driver` runs it, the same in a browser (`browser`, wasm32) and natively (`native`, the feature of that
//! name), which bring sockets, a clock, downloads and a store. [`device`] opens what computes, tests it, and measures it for
//! the hub.
//!
//! Invariant: outside `browser` and `native` nothing reads a clock or a random source, and nothing waits.

pub mod core;

pub mod backoff;
pub mod device;
#[cfg(any(feature = "native", target_arch = "wasm32"))]
mod download;
#[cfg(any(feature = "native", target_arch = "wasm32"))]
mod driver;
#[cfg(any(test, target_arch = "wasm32"))]
mod inbox;

#[cfg(target_arch = "wasm32")]
pub mod browser;
#[cfg(all(feature = "native", not(target_arch = "wasm32")))]
pub mod native;
