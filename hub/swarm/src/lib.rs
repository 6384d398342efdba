//! Distributes experts and layers over workers: placement, dispatch, hedging and auditing. No I/O, no clock, no
//! randomness.
//!
//! Three parts own the state, and [`Swarm`] joins them:
//!
//! ```text
//!              messages                        attempts                        answers
//!  driver <-------------> Fleet <---------------------------- Dispatcher ------------------> Auditor
//!              blocks       \___ holders, ranks, presence ______^   ^________ findings ________/
//! ```
//!
//! | part | owns | in | out |
//! |---|---|---|---|
//! | `fleet` | connections, members, placement, residency | messages, heartbeats, block reports | messages, sessions' events; who holds what, to read |
//! | `dispatcher` | jobs, attempts, hedges, what is known of each worker's speed | layers, answers, failures, the hub's results | orders: send, cancel, compute, finish |
//! | `auditor` | comparisons, checks, strikes, quarantine | answers, and what to compare them with | findings: wrong, confirmed, disputed |
//! No part calls another one. The dispatcher reads the fleet and cannot change it; the auditor sees neither.
//!
//! Rows are encoded, results summed and the hub's own answers scanned by types that need no swarm ([`EncodedLayer`],
//! [`LayerResult`], [`HubResult`]), each on the thread that has the values, not on the driver's. Workers' answers are
//! scanned once, by the session that receives them, since an answer with values that are not finite settles nothing.
//!
//! A driver (`net`, the simulator, the tests) makes these calls, with times that never decrease:
//!
//! | event | call |
//! |---|---|
//! | a connection | [`Swarm::connected`], [`Swarm::handle_message`], [`Swarm::handle_text`], [`Swarm::disconnected`] |
//! | a layer to compute | [`Swarm::start_layer`] |
//! | a result of the hub's own computation | [`Swarm::hub_computed`], [`Swarm::hub_failed`] |
//! | lies, found by the caller that checks a [`LayerResult`] before it sums it | [`Swarm::caught`] |
//! | a due deadline | [`Swarm::handle_timeout`] |
//!
//! After each call it takes all of [`Swarm::poll_action`] (and of [`Swarm::poll_trace`], if it wants a trace), then arms
//! its timer by [`Swarm::poll_timeout`].

mod config;
mod policy;
mod status;
mod swarm;
mod token;

mod auditor;
mod dispatcher;
mod fleet;

pub mod trace;

#[cfg(test)]
mod tests;

use bytes::Bytes;
use moex_protocol::Dispatch;

pub use self::auditor::{Evidence, MAX_STRIKES, Quarantined, TOLERANCE_NMSE};
pub use self::config::SwarmConfig;
pub use self::dispatcher::{
    EncodedLayer, HubResult, JobError, LayerEncoding, LayerJob, LayerResult, Lie, MAX_JOBS, Tier, Unchecked,
    max_pairs_a_message,
};
pub use self::fleet::{BlockCatalog, MAX_CONNECTIONS, MAX_CONNECTIONS_PER_ADDRESS, close_code};
pub use self::policy::{DEFAULT_HEDGE_BUDGET, Hedge, MAX_HEDGE, Probation, Verify};
pub use self::status::{
    Coverage, HubShare, InFlight, LayerExperts, Readiness, StepTimes, SwarmStatus, Totals, Verification,
    WorkerStatus,
};
pub use self::swarm::Swarm;
pub use self::token::{Admission, JoinToken, MAX_INVITATION_NAME_BYTES};

/// A connection, as its driver names it; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// A layer's work, as its driver names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// A computation of the hub's own, as the swarm names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComputeId(pub u64);

/// What the driver is to do.
#[derive(Debug)]
pub enum Action {
    /// Send a message. A connection that cannot take it now is to be closed, and reported as disconnected.
    Transmit(ConnectionId, Bytes),
    /// Close a connection with this code, after what was to be sent. The swarm has forgotten it already.
    Close(ConnectionId, u16),
    /// Compute on the hub, rounding like a worker. At most one at a time for each job.
    HubCompute(ComputeId, Dispatch),
    /// A job's result, which the caller sums, or why there is none.
    Finished(JobId, Result<LayerResult, JobError>),
}
