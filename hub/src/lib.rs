//! The hub: it owns the conversation, and everything of the model but the experts that workers hold.
//!
//! Without the features `server` and `gpu` this crate knows neither tokio nor wgpu; the simulator uses it so.

pub mod engine;
pub mod gguf;
mod mapped;
pub mod model;
pub mod peer_text;
pub mod sampler;
pub mod shards;
pub mod swarm;
pub mod text;

#[cfg(feature = "server")]
pub mod api;
#[cfg(feature = "server")]
pub mod commands;
#[cfg(feature = "server")]
pub mod door;
#[cfg(feature = "server")]
pub mod log;
#[cfg(feature = "server")]
pub mod net;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "server")]
pub mod web;
