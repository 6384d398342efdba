//! The worker: it holds experts of a model and answers for them.
//!
//! [`core`] has all the logic, without I/O: for each hub a connection, a session, its blocks and the computations that
//! it waits for. `driver` runs it, the same in a browser (`browser`, wasm32) and natively (`native`, the feature of
//! that name), which provide sockets, a clock, downloads and a store. [`device`] opens the computing device, tests it,
//! and measures it for the hub.
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
#[cfg(any(test, target_arch = "wasm32"))]
mod threads;

#[cfg(target_arch = "wasm32")]
pub mod browser;
#[cfg(all(feature = "native", not(target_arch = "wasm32")))]
pub mod native;
