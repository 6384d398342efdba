//! Admission: who may connect and join, and how much each connection may send.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use moex_protocol::{Accepted, ErrorCode, HubSession, Join, SessionConfig, Visibility, WorkerId, peer_text};
use tracing::warn;

use super::connection::{Connection, Member, Standing};
use super::limits::{self, Allowance};
use super::residency::Residency;
use super::{Action, ConnectionId, Fleet};
use crate::Admission;

/// Connections at a time, joined or not.
pub const MAX_CONNECTIONS: usize = 2048;

/// The swarm's own WebSocket close codes; the protocol's are the session's.
pub mod close_code {
    /// The same worker id has joined on another connection.
    pub const REPLACED: u16 = 4001;
    /// There are too many connections: try again later.
    pub const TRY_AGAIN_LATER: u16 = 1013;
}

/// The message to a quarantined worker.
pub(crate) const QUARANTINED: &str = "this worker's results differ from the hub's: it computes wrong results";

/// The message to a worker whose answers cannot be checked.
const UNCHECKABLE: &str = "this hub checks every answer, and this worker does not return what that takes: it needs a newer \
                           build, or a hub that was started with --verify audit";

/// The message to a worker whose invitation was revoked.
const REVOKED: &str = "this invitation was revoked: ask for another";

/// What happened to a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receipt {
    /// The connection is unknown.
    Unknown,
    /// Its session accepted it.
    Taken,
    /// It exceeded a limit: the session ends.
    Refused,
}

/// The result of a join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JoinOutcome {
    /// The worker was refused; its session ends.
    Refused,
    /// The worker is a member.
    Accepted {
        /// The connection on which the same worker had joined before: to be closed.
        replaced: Option<ConnectionId>,
    },
}

impl Fleet {
    /// A connection was opened from this address. True if it is refused, so that its session has a message to send.
    pub(crate) fn connected(
        &mut self,
        now: Duration,
        id: ConnectionId,
        address: String,
        out: &mut VecDeque<Action>,
    ) -> bool {
        if self.connections.len() >= MAX_CONNECTIONS || self.is_draining {
            self.counts.limited += 1;
            out.push_back(Action::Close(id, close_code::TRY_AGAIN_LATER));
            return false;
        }
        let config = SessionConfig { compression: self.config.compression, ..SessionConfig::default() };
        let host = limits::host(&address);
        let n_open = self.connections.values().filter(|other| other.host == host).count();
        let refusal = self.limits.connect(now, &host, n_open).err();
        let session = HubSession::new(config, now);
        let allowance = Allowance::new(now);
        self.connections.insert(id, Connection { session, address, host, allowance, member: None });
        if let Some(refusal) = refusal {
            self.refuse_beyond_limit(now, id, refusal);
        }
        refusal.is_some()
    }

    /// A binary message arrived.
    pub(crate) fn handle_message(&mut self, now: Duration, id: ConnectionId, message: Bytes) -> Receipt {
        self.counts.bytes_received += message.len() as u64;
        let Some(connection) = self.connections.get_mut(&id) else { return Receipt::Unknown };
        if let Err(refusal) = connection.allowance.message(now, message.len()) {
            self.refuse_beyond_limit(now, id, refusal);
            return Receipt::Refused;
        }
        connection.session.handle_message(now, message);
        self.to_poll.insert(id);
        Receipt::Taken
    }

    /// A text message arrived, which violates the protocol.
    pub(crate) fn handle_text(&mut self, now: Duration, id: ConnectionId) -> Receipt {
        let Some(connection) = self.connections.get_mut(&id) else { return Receipt::Unknown };
        connection.session.handle_text(now);
        self.to_poll.insert(id);
        Receipt::Taken
    }

    /// Who joins.
    pub(crate) fn id_of(&self, join: &Join) -> WorkerId {
        (self.config.id_of)(join.key)
    }

    /// Accepts the join of `worker` as a member, or refuses it.
    pub(crate) fn join(
        &mut self,
        now: Duration,
        id: ConnectionId,
        worker: WorkerId,
        join: Join,
        is_quarantined: bool,
    ) -> JoinOutcome {
        let block_bytes = self.catalog.block_bytes().max(1);
        let capacity = (join.memory_budget_bytes / block_bytes).min(self.catalog.len() as u64) as usize;
        let admitted = self.admit(worker, &join.token);
        let refusal = if let Err(message) = admitted {
            Some((ErrorCode::Unauthorized, message.to_owned()))
        } else if !join.self_test.passed {
            Some((ErrorCode::SelfTest, format!("the self-test failed: {}", join.self_test.detail)))
        } else if capacity == 0 {
            let budget = join.memory_budget_bytes;
            let message = format!("a budget of {budget} bytes holds no block of {block_bytes} bytes");
            Some((ErrorCode::OutOfMemory, message))
        } else if self.config.wants_products() && !join.gives_products {
            Some((ErrorCode::SelfTest, UNCHECKABLE.to_owned()))
        } else if is_quarantined {
            Some((ErrorCode::SelfTest, QUARANTINED.to_owned()))
        } else {
            None
        };
        // Checked last, so that only a worker with the token uses up its rate of joins.
        if refusal.is_none()
            && let Err(refusal) = self.limits.join(now, worker)
        {
            self.refuse_beyond_limit(now, id, refusal);
            return JoinOutcome::Refused;
        }
        let is_other = |other: &Member| other.standing == Standing::Proven && other.id != worker;
        let is_early = !self.members().any(|(.., other)| is_other(other));
        let Some(connection) = self.connections.get_mut(&id) else { return JoinOutcome::Refused };
        if let Some((code, message)) = refusal {
            let said = peer_text(&message);
            warn!(connection = id.0, address = connection.address, message = %said, "a worker was refused");
            connection.session.reject(now, code, message);
            self.counts.refused += 1;
            return JoinOutcome::Refused;
        }
        let gives_digests = self.config.asks_for_digests(&join);
        let terms = Accepted {
            session: id.0,
            heartbeat_interval_millis: self.config.heartbeat_interval.as_millis() as u64,
            dispatch_timeout_millis: self.config.timeout.as_millis() as u64,
            model: self.config.model.clone(),
            wants_products: self.config.wants_products(),
        };
        connection.session.accept(now, terms);
        connection.member = Some(Member {
            id: worker,
            join,
            invitation: admitted.unwrap_or_default(),
            residency: Residency::new(id, capacity),
            gives_digests,
            standing: if is_early { Standing::Early } else { Standing::Probation },
            visibility: Visibility::Visible,
            queue_depth: 0,
            bytes_downloaded: 0,
        });
        self.must_rebalance = true;
        JoinOutcome::Accepted { replaced: self.by_id.insert(worker, id).filter(|old| *old != id) }
    }

    /// The invitation by which this token admits `worker`, if it is not the hub's own; or why it does not.
    fn admit(&self, worker: WorkerId, token: &str) -> Result<Option<String>, &'static str> {
        match self.config.token.admits(token) {
            None => Err("the join token is wrong: open the join link again"),
            Some(Admission::Token) => Ok(None),
            Some(Admission::Invitation(name)) if self.revoked.contains(&name) => Err(REVOKED),
            Some(Admission::Invitation(name)) => {
                let is_anothers = |m: &Member| m.invitation.as_ref() == Some(&name) && m.id != worker;
                match self.members().any(|(.., member)| is_anothers(member)) {
                    true => Err("this invitation is in use by another worker: ask for one of your own"),
                    false => Ok(Some(name)),
                }
            }
        }
    }

    /// Lets this invitation admit nobody any more. Ends the sessions of those it has admitted, and returns them.
    pub(crate) fn revoke(&mut self, now: Duration, name: String) -> Vec<ConnectionId> {
        let its = self.members().filter(|(.., member)| member.invitation.as_ref() == Some(&name));
        let its: Vec<ConnectionId> = its.map(|(id, ..)| id).collect();
        self.revoked.insert(name);
        its.iter().for_each(|id| self.reject(now, *id, ErrorCode::Unauthorized, REVOKED));
        its
    }

    fn refuse_beyond_limit(&mut self, now: Duration, id: ConnectionId, refusal: &str) {
        warn!(connection = id.0, address = self.address(id), refusal, "a limit was exceeded");
        self.counts.limited += 1;
        self.reject(now, id, ErrorCode::TooLarge, refusal);
    }
}
