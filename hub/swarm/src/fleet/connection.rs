//! A connection, and its worker once it has joined.

use moex_protocol::{HubSession, Join, Visibility, WorkerId};

use super::limits::Allowance;
use super::residency::Residency;

/// A connection, and its worker once it has joined.
#[derive(Debug)]
pub(crate) struct Connection {
    pub session: HubSession,
    pub address: String,
    /// The address without its port.
    pub host: String,
    pub allowance: Allowance,
    pub member: Option<Member>,
}

/// How much of the model a worker may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Any share: its key has proven itself.
    Proven,
    /// Any share: nobody had proven itself when it joined.
    Early,
    /// A bounded one, while others have free memory.
    Probation,
}

/// A joined worker: its own description, and its blocks.
#[derive(Debug)]
pub(crate) struct Member {
    pub id: WorkerId,
    pub join: Join,
    /// The invitation that admitted it, if it was not the hub's token.
    pub invitation: Option<String>,
    pub residency: Residency,
    /// Whether it may be asked for digests.
    pub gives_digests: bool,
    pub standing: Standing,
    pub visibility: Visibility,
    /// Dispatches it had waiting at its last heartbeat.
    pub queue_depth: u32,
    /// Bytes of weights that it reports as downloaded.
    pub bytes_downloaded: u64,
}
