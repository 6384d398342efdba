//! One connection, and the worker that has joined on it.

use moex_protocol::{HubSession, Join, Visibility, WorkerId};

use super::limits::Allowance;
use super::residency::Residency;

/// One connection, and the worker at its other end once it has joined.
#[derive(Debug)]
pub(crate) struct Connection {
    pub session: HubSession,
    pub address: String,
    /// The address without its port.
    pub host: String,
    pub allowance: Allowance,
    pub member: Option<Member>,
}

/// A worker that has joined: what it said of itself, and what it holds.
#[derive(Debug)]
pub(crate) struct Member {
    pub join: Join,
    pub residency: Residency,
    pub visibility: Visibility,
    /// Dispatches it had waiting at its last heartbeat.
    pub queue_depth: u32,
    /// Bytes of weights it says it has downloaded.
    pub bytes_downloaded: u64,
}

impl Member {
    pub(crate) fn id(&self) -> WorkerId {
        self.join.worker
    }
}
