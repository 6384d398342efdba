//! The worker: it holds experts of a model and answers for them.
//!
//! [`core`] is the whole of its logic, without I/O: the session with the hub, the blocks it holds, and the computations it
//! owes. Around it are two drivers: `native` (feature `native`, any platform with tokio) and `browser` (wasm32), which differ
//! only in how bytes, time and files reach the core. [`device`] opens what computes, tests it, and measures it for the hub.
//!
//! Invariant: outside the drivers nothing reads a clock or a random source, and nothing waits.

pub mod core;

pub mod backoff;
pub mod device;
#[cfg(any(feature = "native", target_arch = "wasm32"))]
mod download;
#[cfg(any(test, target_arch = "wasm32"))]
mod inbox;

#[cfg(target_arch = "wasm32")]
pub mod browser;
#[cfg(all(feature = "native", not(target_arch = "wasm32")))]
pub mod native;
