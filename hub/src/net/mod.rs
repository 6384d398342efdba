//! Drives the swarm over sockets: the clock, the WebSockets, the hub's own computing, and shards over HTTP.
//!
//! ```text
//! socket task (one a connection) --events, bounded--> driver task --actions--> outbox, bounded --> socket task
//! engine thread ([`SwarmExperts`]) --events----------->  [`Swarm`]  --actions--> compute thread --events--> driver
//!                                                          |
//!                                              published: status, readiness --> API
//! ```
//! Driver and socket tasks share one thread (`thread`); pages, API and shards are served on the runtime that called, which
//! hands each worker's socket over after the handshake. The driver owns the [`Swarm`] and never waits for a peer: a worker
//! whose outbox is full is closed. What workers answered is checked by the thread that sums it (`verifier`). What anything means is left to `moex_swarm`.
//!
//! [`Swarm`]: moex_swarm::Swarm

mod accept;
mod compute;
mod driver;
mod event;
mod failed;
mod files;
mod handle;
mod hub_experts;
mod local;
mod outbox;
mod projections;
mod seats;
mod served_bytes;
mod shards;
mod shared;
mod socket;
mod stream;
mod swarm_experts;
mod swarm_server;
mod terms;
mod thread;
mod trace;
mod verifier;
mod worker_processes;

#[cfg(test)]
mod tests;

pub(crate) use self::accept::{AcceptOn, accept, call};
pub use self::handle::SwarmHandle;
pub use self::hub_experts::HubExperts;
pub use self::local::{LocalSwarm, LocalSwarmConfig, LocalSwarmError};
pub(crate) use self::projections::projection_bytes;
pub use self::seats::Seats;
pub use self::swarm_experts::{MAX_IN_FLIGHT, SwarmExperts};
pub use self::swarm_server::SwarmServer;
pub use self::trace::Tracer;
pub use self::worker_processes::{WorkerEnded, WorkerProcesses};
