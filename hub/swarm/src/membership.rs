//! Who comes and goes: connections, joins, heartbeats, reports of blocks, and the weights that follow from them.

use std::time::Duration;

use bytes::Bytes;
use moex_protocol::{
    Accepted, Beat, Blame, BlockReport, ErrorCode, HubEvent, HubSession, Join, SessionConfig, Visibility,
    WeightSync,
};
use tracing::{debug, info, warn};

use super::judging::QUARANTINED;
use super::limits::{self, Allowance};
use super::placement::{Member, Placement};
use super::ring::virtual_nodes;
use super::shelf::Holders;
use super::worker::Worker;
use super::{Action, ConnectionId, Swarm};
use moex_protocol::peer_text;

/// Connections at a time, joined or not.
pub const MAX_CONNECTIONS: usize = 2048;

/// WebSocket close codes of the swarm's own; those of the wire's rules are the session's.
pub mod close_code {
    /// The same worker id has joined on another connection.
    pub const REPLACED: u16 = 4001;
    /// There are too many connections: try again later.
    pub const TRY_AGAIN_LATER: u16 = 1013;
}

/// One connection, and the worker at its other end once it has joined.
#[derive(Debug)]
pub(super) struct Connection {
    pub session: HubSession,
    pub address: String,
    /// The address without its port.
    pub host: String,
    pub allowance: Allowance,
    pub worker: Option<Worker>,
}

impl Swarm {
    /// A connection was opened from this address.
    pub fn connected(&mut self, now: Duration, id: ConnectionId, address: impl Into<String>) {
        if self.connections.len() >= MAX_CONNECTIONS || self.is_shutting_down {
            self.totals.limited += 1;
            self.actions.push_back(Action::Close(id, close_code::TRY_AGAIN_LATER));
            return;
        }
        let config = SessionConfig { compression: self.config.compression, ..SessionConfig::default() };
        let address = address.into();
        let host = limits::host(&address);
        let n_open = self.connections.values().filter(|other| other.host == host).count();
        let refusal = self.gate.connect(now, &host, n_open).err();
        let session = HubSession::new(config, now);
        let allowance = Allowance::new(now);
        self.connections.insert(id, Connection { session, address, host, allowance, worker: None });
        if let Some(refusal) = refusal {
            self.limit(now, id, refusal);
            self.run(now);
        }
    }

    /// Whether a worker has joined on this connection, and is still there.
    pub fn has_joined(&self, id: ConnectionId) -> bool {
        self.worker(id).is_some()
    }

    /// A binary message came.
    pub fn handle_message(&mut self, now: Duration, id: ConnectionId, message: Bytes) {
        self.totals.bytes_received += message.len() as u64;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Err(refusal) = connection.allowance.message(now, message.len()) {
            self.limit(now, id, refusal);
            return self.run(now);
        }
        self.with_session(now, id, |session| session.handle_message(now, message));
    }

    fn limit(&mut self, now: Duration, id: ConnectionId, refusal: &str) {
        let address = self.connections.get(&id).map(|connection| connection.address.clone());
        warn!(connection = id.0, address, refusal, "a limit was passed");
        self.totals.limited += 1;
        self.turn_out(now, id, ErrorCode::TooLarge, refusal);
    }

    /// A text message came: a violation of the protocol.
    pub fn handle_text(&mut self, now: Duration, id: ConnectionId) {
        self.with_session(now, id, |session| session.handle_text(now));
    }

    /// The connection is closed. What it was asked goes to others at once.
    pub fn disconnected(&mut self, now: Duration, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.session.handle_closed(now);
            self.pump(now, id);
        }
        self.remove(now, id);
        self.run(now);
    }

    fn with_session(&mut self, now: Duration, id: ConnectionId, call: impl FnOnce(&mut HubSession)) {
        if let Some(connection) = self.connections.get_mut(&id) {
            call(&mut connection.session);
            self.to_pump.insert(id);
            self.run(now);
        }
    }

    pub(super) fn expire_sessions(&mut self, now: Duration) {
        for (id, connection) in &mut self.connections {
            if connection.session.poll_timeout().is_some_and(|deadline| deadline <= now) {
                connection.session.handle_timeout(now);
                self.to_pump.insert(*id);
            }
        }
    }

    pub(super) fn drain_all(&mut self, now: Duration) {
        for (id, connection) in &mut self.connections {
            connection.session.drain(now);
            self.to_pump.insert(*id);
        }
    }

    /// Takes what a session has: events first, since they may make it say more, then messages, then its end.
    pub(super) fn pump(&mut self, now: Duration, id: ConnectionId) {
        while let Some(event) = self.connections.get_mut(&id).and_then(|c| c.session.poll_event()) {
            self.session_event(now, id, event);
        }
        let Some(connection) = self.connections.get_mut(&id) else { return };
        while let Some(message) = connection.session.poll_transmit() {
            self.totals.bytes_sent += message.len() as u64;
            self.actions.push_back(Action::Transmit(id, message));
        }
        if let Some(code) = connection.session.close_code() {
            self.actions.push_back(Action::Close(id, code));
            self.remove(now, id);
        }
    }

    fn session_event(&mut self, now: Duration, id: ConnectionId, event: HubEvent) {
        match event {
            HubEvent::Joined(join) => self.joined(now, id, join),
            HubEvent::Beat { beat, round_trip } => self.beat(now, id, &beat, round_trip),
            HubEvent::Blocks(report) => self.blocks_reported(now, id, report),
            HubEvent::Answered { attempt, answer } => self.answered(now, id, attempt, &answer),
            HubEvent::NotFinite { attempt } => self.answered_not_finite(now, id, attempt),
            HubEvent::Failed { attempt, error } => self.refused(now, id, attempt, &error),
            HubEvent::Late { attempt, answer } => self.answered_late(now, id, attempt, &answer),
            HubEvent::Closed { reason } => {
                let address = self.connections.get(&id).map(|connection| connection.address.as_str());
                let said = reason.to_string();
                let said = peer_text(&said);
                if reason.blame() == Blame::Peer {
                    warn!(connection = id.0, address, reason = %said, "a session broke the protocol");
                } else {
                    info!(connection = id.0, address, reason = %said, "a session ended");
                }
                self.totals.sessions_ended += 1;
                self.abandon(now, id);
            }
        }
    }

    fn joined(&mut self, now: Duration, id: ConnectionId, join: Join) {
        let block_bytes = self.catalog.block_bytes().max(1);
        let capacity = (join.memory_budget_bytes / block_bytes).min(self.catalog.len() as u64) as usize;
        let refusal = if !self.config.token.matches(&join.token) {
            Some((
                ErrorCode::Unauthorized,
                "the join token is not the hub's: open the join link again".to_owned(),
            ))
        } else if !join.self_test.passed {
            Some((ErrorCode::SelfTest, format!("the self-test failed: {}", join.self_test.detail)))
        } else if capacity == 0 {
            let budget = join.memory_budget_bytes;
            let message = format!("a budget of {budget} bytes holds no block of {block_bytes} bytes");
            Some((ErrorCode::OutOfMemory, message))
        } else if self.register.is_quarantined(join.worker) {
            Some((ErrorCode::SelfTest, QUARANTINED.to_owned()))
        } else {
            None
        };
        // Last, so that only whoever has the token uses up a worker's joins.
        if refusal.is_none()
            && let Err(refusal) = self.gate.join(now, join.worker)
        {
            return self.limit(now, id, refusal);
        }
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Some((code, message)) = refusal {
            let said = peer_text(&message);
            warn!(connection = id.0, address = connection.address, message = %said, "a worker was turned away");
            connection.session.reject(now, code, message);
            self.totals.refused += 1;
            return;
        }
        let terms = Accepted {
            session: id.0,
            heartbeat_interval_millis: self.config.heartbeat_interval.as_millis() as u64,
            dispatch_timeout_millis: self.config.timeout.as_millis() as u64,
            model: self.config.model.clone(),
        };
        connection.session.accept(now, terms);
        let worker = join.worker;
        let new = Worker::new(now, id, join, capacity, self.config.strikes);
        info!(
            worker = worker.short(),
            address = connection.address,
            adapter = %peer_text(&new.join.adapter),
            capacity,
            tier = ?new.tier,
            reason = new.reason(),
            "a worker joined"
        );
        if let Some(tape) = &mut self.tape {
            tape.joined(now, &new.join);
        }
        connection.worker = Some(new);
        if let Some(old) = self.by_id.insert(worker, id).filter(|old| *old != id) {
            self.actions.push_back(Action::Close(old, close_code::REPLACED));
            self.remove(now, old);
        }
        self.must_rebalance = true;
    }

    fn beat(&mut self, now: Duration, id: ConnectionId, beat: &Beat, round_trip: Option<Duration>) {
        let Some(worker) = self.connections.get_mut(&id).and_then(|c| c.worker.as_mut()) else { return };
        worker.queue_depth = beat.queue_depth;
        let was = std::mem::replace(&mut worker.visibility, beat.visibility);
        if let Some((tape, took)) = self.tape.as_mut().zip(round_trip) {
            tape.round_trip(now, worker.id(), took);
        }
        if round_trip.is_some() {
            worker.health.heartbeat();
        }
        if was != beat.visibility {
            debug!(worker = worker.id().short(), visibility = ?beat.visibility, "visibility changed");
            // It will not come to answer: ask others now and not at the timeout.
            if matches!(beat.visibility, Visibility::Frozen | Visibility::Leaving) {
                self.abandon(now, id);
            }
            self.must_rebalance |= (was == Visibility::Leaving) != (beat.visibility == Visibility::Leaving);
        }
        if let Some(worker) = self.connections.get_mut(&id).and_then(|c| c.worker.as_mut()) {
            self.must_rebalance |= worker.shelf.may_load_again(now);
            if worker.shelf.has_retry_due(now) {
                self.to_sync.insert(id);
            }
        }
        self.cover_waiting();
    }

    fn blocks_reported(&mut self, now: Duration, id: ConnectionId, report: BlockReport) {
        let Some(worker) = self.connections.get_mut(&id).and_then(|c| c.worker.as_mut()) else { return };
        worker.bytes_downloaded = report.bytes_downloaded;
        if let Some((block, reason)) = report.failed.first() {
            let (n, reason) = (report.failed.len(), peer_text(reason));
            warn!(worker = worker.id().short(), n, %block, %reason, "blocks could not be loaded");
        }
        for index in report.failed.iter().filter_map(|(block, _)| self.catalog.index(*block)) {
            self.must_rebalance |= worker.shelf.failed(now, index, &mut self.holders);
        }
        let mut new = Vec::new();
        for index in report.resident.into_iter().filter_map(|block| self.catalog.index(block)) {
            if worker.shelf.loaded(index, &mut self.holders) {
                new.push(index);
            }
        }
        // Whoever held one of them in this worker's stead may let go of it now.
        let stands_in = |w: &Worker| new.iter().any(|index| w.shelf.holds(*index) && !w.shelf.wants(*index));
        let stand_ins = self.connections.iter().filter(|(_, c)| c.worker.as_ref().is_some_and(stands_in));
        self.to_sync.extend(stand_ins.map(|(other, _)| *other));
        self.to_sync.insert(id);
        self.cover_waiting();
    }

    /// Recomputes who should hold what. Those who leave keep nothing; those who are hidden or unhealthy may be back.
    pub(super) fn rebalance(&mut self) {
        let joined =
            || self.connections.iter().filter_map(|(id, c)| c.worker.as_ref().map(|worker| (*id, worker)));
        let members: Vec<Member> = joined()
            .filter(|(_, worker)| worker.visibility != Visibility::Leaving)
            .map(|(_, w)| Member {
                id: w.id(),
                capacity: w.shelf.capacity() as u64,
                lost: w.shelf.lost(self.catalog.indices()),
            })
            .collect();
        self.ring
            .update(members.iter().map(|m| (m.id, virtual_nodes(m.capacity, self.catalog.len() as u64))));
        self.placement = Placement::compute(&self.ring, &self.catalog, &members, self.config.replicas);
        let mut wanted = self.placement.by_worker();
        for (id, connection) in &mut self.connections {
            let Some(worker) = &mut connection.worker else { continue };
            // Of a thousand workers a join changes what few of them should hold.
            let is_news = worker.shelf.want(wanted.remove(&worker.join.worker).unwrap_or_default());
            if is_news || worker.shelf.stands_in() {
                self.to_sync.insert(*id);
            }
        }
    }

    /// Tells a worker the next step towards what it should hold.
    pub(super) fn sync(&mut self, now: Duration, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some(worker) = connection.worker.as_mut() else { return };
        let is_replaced = |index, holders: &Holders| {
            let wanted = self.placement.holders(index);
            let has = |worker| self.by_id.get(worker).is_some_and(|c| holders.of(index).contains(c));
            !wanted.is_empty() && wanted.iter().all(has)
        };
        let may_uncover = self.config.hub_compute;
        let step = worker.shelf.next_step(now, &mut self.holders, &self.heat, is_replaced, may_uncover);
        if step.is_empty() {
            return;
        }
        let message = WeightSync {
            epoch: worker.shelf.next_epoch(),
            hold: step.hold.iter().map(|index| self.catalog.source(*index).clone()).collect(),
            drop: step.drop.iter().map(|index| self.catalog.block(*index)).collect(),
        };
        if let Err(error) = connection.session.sync_weights(now, message) {
            warn!(worker = worker.id().short(), %error, "blocks could not be sent");
        }
        self.to_pump.insert(id);
    }

    /// Forgets a connection: its attempts go to others, its blocks to those who follow on the ring.
    fn remove(&mut self, now: Duration, id: ConnectionId) {
        let Some(mut connection) = self.connections.remove(&id) else { return };
        if let Some(worker) = connection.worker.as_mut() {
            info!(worker = worker.id().short(), "a worker left");
            if let Some(tape) = &mut self.tape {
                tape.left(now, worker.id());
            }
            worker.shelf.clear(&mut self.holders);
            if self.by_id.get(&worker.id()) == Some(&id) {
                self.by_id.remove(&worker.id());
            }
            self.must_rebalance = true;
        }
        self.abandon(now, id);
        self.afterlife.forget(id);
    }

    pub(super) fn worker(&self, id: ConnectionId) -> Option<&Worker> {
        self.connections.get(&id)?.worker.as_ref()
    }
}
