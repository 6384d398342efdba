//! The hub: HTTP API, pages and commands over `moex-model`, `moex-engine` and `moex-swarm`, and the sockets that
//! connect them.

pub mod access;
pub mod api;
pub mod commands;
pub mod log;
pub mod net;
mod pace;
mod pass_device;
mod priority;
pub mod pull;
pub mod server;
pub mod shards;
pub mod web;

#[cfg(test)]
mod fuzzing_tests;
