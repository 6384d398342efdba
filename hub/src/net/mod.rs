//! Drives the swarm over sockets: the clock, the WebSockets, the hub's own computing, and shards over HTTP.
//!
//! ```text
//! socket task (one a connection) --events, bounded--> driver task --actions--> outbox, bounded --> socket task
//! engine thread ([`SwarmExperts`]) --events----------->  [`Swarm`]  --actions--> compute thread --events--> driver
//!                                                          |
//!                                              published: status, readiness --> API
//! ```
//! Driver and socket tasks share one thread (`thread`). The calling runtime serves pages, API and shards, and hands
//! each worker's socket over after the handshake. The driver owns the [`Swarm`] and never waits for a peer: it closes a
//! worker whose outbox is full. The thread that sums layers checks their answers
//! (`verifier`) while the next layer is away (`swarm_experts`). `moex_swarm` interprets
//! the messages.
//!
//! [`Swarm`]: moex_swarm::Swarm

mod accept;
mod asked;
mod compute;
mod connection_limit;
mod driver;
mod event;
mod failed;
mod faster;
mod files;
mod finite;
mod handle;
mod hub_experts;
mod local;
mod outbox;
mod projections;
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
pub use self::connection_limit::ConnectionLimit;
pub use self::handle::SwarmHandle;
pub use self::hub_experts::{HubExperts, Prefer};
pub use self::local::{LocalSwarm, LocalSwarmConfig, LocalSwarmError};
pub(crate) use self::projections::projection_bytes;
pub use self::swarm_experts::{MAX_IN_FLIGHT, SwarmExperts};
pub use self::swarm_server::SwarmServer;
pub use self::trace::Tracer;
pub use self::worker_processes::{WorkerEnded, WorkerProcesses};
