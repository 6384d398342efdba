//! The fleet: connections, the placement of blocks, and the blocks that workers hold.
//!
//! Inputs: connections, messages, heartbeats and block reports. Outputs: messages to workers and closed connections
//! ([`Action`]s), the sessions' events ([`Fleet::poll_event`]), and what the dispatcher reads to choose workers:
//! [`Fleet::holders`], [`Fleet::rank`], [`Fleet::is_present`].
//!
//! The fleet does not know workers' requests, their speed, or whether their answers are right.

mod admission;
mod catalog;
mod connection;
mod expert_load;
mod limits;
mod load_failures;
mod placement;
mod residency;
mod ring;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use moex_protocol::{
    AttemptId, Beat, Block, BlockReport, Dispatch, ErrorCode, HubEvent, SendError, State, Visibility,
    WeightSync, WorkerId, peer_text,
};
use tracing::{debug, info, warn};

pub use self::admission::{MAX_CONNECTIONS, close_code};
pub use self::catalog::BlockCatalog;
pub use self::limits::MAX_CONNECTIONS_PER_ADDRESS;

pub(crate) use self::admission::{JoinOutcome, QUARANTINED, Receipt};
pub(crate) use self::catalog::BlockIndex;
pub(crate) use self::connection::{Connection, Member, Standing};

use self::expert_load::ExpertLoad;
use self::limits::{AdmissionLimits, RebalanceRate};
use self::placement::{Placement, PlacementMember};
use self::residency::Holders;
use self::ring::{Ring, virtual_nodes};
use super::{Action, ConnectionId, SwarmConfig};

/// Membership, placement and residency. See the [module's description](self).
#[derive(Debug)]
pub(crate) struct Fleet {
    config: Arc<SwarmConfig>,
    catalog: BlockCatalog,
    connections: BTreeMap<ConnectionId, Connection>,
    /// The connection of each joined worker.
    by_id: HashMap<WorkerId, ConnectionId>,
    limits: AdmissionLimits,
    ring: Ring,
    placement: Placement,
    holders: Holders,
    expert_load: ExpertLoad,
    must_rebalance: bool,
    rebalance_rate: RebalanceRate,
    /// Connections whose session may have events or messages.
    to_poll: BTreeSet<ConnectionId>,
    /// Workers whose blocks may need another sync.
    to_sync: BTreeSet<ConnectionId>,
    is_draining: bool,
    /// Names of the invitations that admit nobody any more.
    revoked: BTreeSet<String>,
    counts: FleetCounts,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FleetCounts {
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub refused: u64,
    pub limited: u64,
    pub sessions_ended: u64,
}

impl Fleet {
    /// A fleet without workers.
    pub(crate) fn new(config: Arc<SwarmConfig>, catalog: BlockCatalog) -> Self {
        Self {
            config,
            connections: BTreeMap::new(),
            by_id: HashMap::new(),
            limits: AdmissionLimits::default(),
            ring: Ring::default(),
            placement: Placement::default(),
            holders: Holders::new(catalog.len()),
            expert_load: ExpertLoad::new(catalog.len()),
            catalog,
            must_rebalance: false,
            rebalance_rate: RebalanceRate::default(),
            to_poll: BTreeSet::new(),
            to_sync: BTreeSet::new(),
            is_draining: false,
            revoked: BTreeSet::new(),
            counts: FleetCounts::default(),
        }
    }

    // What others read.

    /// The blocks that exist.
    pub(crate) fn catalog(&self) -> &BlockCatalog {
        &self.catalog
    }

    /// The workers that have reported this block resident.
    pub(crate) fn holders(&self, index: BlockIndex) -> &[ConnectionId] {
        self.holders.of(index)
    }

    /// How often the router has recently chosen this block.
    pub(crate) fn load(&self, index: BlockIndex) -> u32 {
        self.expert_load.pairs(index)
    }

    /// A worker's rank among the wanted holders of a block; none if it is not one of them.
    pub(crate) fn rank(&self, index: BlockIndex, worker: WorkerId) -> Option<usize> {
        self.placement.rank(index, worker)
    }

    /// Whether a worker's session can accept work now: it serves and is visible.
    pub(crate) fn is_present(&self, id: ConnectionId) -> bool {
        self.connections.get(&id).is_some_and(|connection| {
            connection.session.state() == State::Serving
                && connection.member.as_ref().is_some_and(|m| m.visibility == Visibility::Visible)
        })
    }

    /// Whether a worker has joined on this connection and is still connected.
    pub(crate) fn has_joined(&self, id: ConnectionId) -> bool {
        self.member(id).is_some()
    }

    /// The connection of a worker that has joined.
    pub(crate) fn connection_of(&self, worker: WorkerId) -> Option<ConnectionId> {
        self.by_id.get(&worker).copied()
    }

    /// The address of a connection.
    pub(crate) fn address(&self, id: ConnectionId) -> Option<&str> {
        self.connections.get(&id).map(|connection| connection.address.as_str())
    }

    /// The address of a connection without its port.
    pub(crate) fn host(&self, id: ConnectionId) -> Option<&str> {
        self.connections.get(&id).map(|connection| connection.host.as_str())
    }

    /// All connections with the worker that has joined on each.
    pub(crate) fn members(&self) -> impl Iterator<Item = (ConnectionId, &Connection, &Member)> {
        self.connections.iter().filter_map(|(id, c)| Some((*id, c, c.member.as_ref()?)))
    }

    /// The worker that has joined on this connection.
    pub(crate) fn member(&self, id: ConnectionId) -> Option<&Member> {
        self.connections.get(&id)?.member.as_ref()
    }

    /// Connections, joined or not.
    pub(crate) fn n_connections(&self) -> usize {
        self.connections.len()
    }

    pub(crate) fn counts(&self) -> FleetCounts {
        self.counts
    }

    /// When the next deadline is due: a session's, or that of a delayed rebalance.
    pub(crate) fn poll_timeout(&self) -> Option<Duration> {
        let sessions = self.connections.values().filter_map(|c| c.session.poll_timeout()).min();
        let rebalance = self.must_rebalance.then(|| self.rebalance_rate.next());
        [sessions, rebalance].into_iter().flatten().min()
    }

    // What happens to sessions.

    /// Lets sessions handle due deadlines.
    pub(crate) fn handle_timeout(&mut self, now: Duration) {
        for (id, connection) in &mut self.connections {
            if connection.session.poll_timeout().is_some_and(|deadline| deadline <= now) {
                connection.session.handle_timeout(now);
                self.to_poll.insert(*id);
            }
        }
    }

    /// Asks every worker to finish and leave; refuses new connections.
    pub(crate) fn drain(&mut self, now: Duration) {
        self.is_draining = true;
        for (id, connection) in &mut self.connections {
            connection.session.drain(now);
            self.to_poll.insert(*id);
        }
    }

    /// Sends a dispatch to a worker.
    ///
    /// # Errors
    /// If the session cannot accept it now, or has ended. Nothing was sent.
    pub(crate) fn send(
        &mut self,
        now: Duration,
        to: ConnectionId,
        attempt: AttemptId,
        dispatch: &Dispatch,
    ) -> Result<(), SendError> {
        let connection = self.connections.get_mut(&to).ok_or(SendError::State(State::Closed))?;
        self.to_poll.insert(to);
        connection.session.dispatch(now, attempt, dispatch)
    }

    /// Tells a worker to cancel an attempt.
    pub(crate) fn cancel(&mut self, now: Duration, at: ConnectionId, attempt: AttemptId) {
        if let Some(connection) = self.connections.get_mut(&at) {
            connection.session.cancel(now, attempt);
            self.to_poll.insert(at);
        }
    }

    /// Ends a session with an ERROR.
    pub(crate) fn reject(&mut self, now: Duration, id: ConnectionId, code: ErrorCode, message: &str) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.session.reject(now, code, message);
            self.to_poll.insert(id);
        }
    }

    /// A connection whose session may have events or messages; each is returned once.
    pub(crate) fn next_to_poll(&mut self) -> Option<ConnectionId> {
        self.to_poll.pop_first()
    }

    /// The next event of a session.
    pub(crate) fn poll_event(&mut self, id: ConnectionId) -> Option<HubEvent> {
        let event = self.connections.get_mut(&id)?.session.poll_event()?;
        if matches!(event, HubEvent::Closed { .. }) {
            self.counts.sessions_ended += 1;
        }
        Some(event)
    }

    /// Moves a session's messages, and its close, to `out`. True if it has ended and the connection must be removed.
    pub(crate) fn flush(&mut self, id: ConnectionId, out: &mut VecDeque<Action>) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return false };
        while let Some(message) = connection.session.poll_transmit() {
            self.counts.bytes_sent += message.len() as u64;
            out.push_back(Action::Transmit(id, message));
        }
        let code = connection.session.close_code();
        out.extend(code.map(|code| Action::Close(id, code)));
        code.is_some()
    }

    /// The connection was closed: its session ends, and its last events can be polled.
    pub(crate) fn handle_closed(&mut self, now: Duration, id: ConnectionId) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return false };
        connection.session.handle_closed(now);
        true
    }

    /// Removes a connection; its blocks go to the next workers on the ring. False if it was unknown.
    pub(crate) fn remove(&mut self, id: ConnectionId) -> bool {
        let Some(mut connection) = self.connections.remove(&id) else { return false };
        if let Some(member) = connection.member.as_mut() {
            info!(worker = member.id.short(), "a worker left");
            member.residency.clear(&mut self.holders);
            if self.by_id.get(&member.id) == Some(&id) {
                self.by_id.remove(&member.id);
            }
            self.must_rebalance = true;
        }
        true
    }

    // What workers say of themselves, and what they should hold.

    /// Handles a heartbeat. True if the worker newly is frozen or leaving, and will not answer its requests.
    pub(crate) fn beat(&mut self, now: Duration, id: ConnectionId, beat: &Beat) -> bool {
        let Some(member) = self.connections.get_mut(&id).and_then(|c| c.member.as_mut()) else {
            return false;
        };
        member.queue_depth = beat.queue_depth;
        let was = std::mem::replace(&mut member.visibility, beat.visibility);
        let is_news = was != beat.visibility;
        if is_news {
            debug!(worker = member.id.short(), visibility = ?beat.visibility, "visibility changed");
            self.must_rebalance |= (was == Visibility::Leaving) != (beat.visibility == Visibility::Leaving);
        }
        self.must_rebalance |= member.residency.may_load_again(now);
        if member.residency.has_retry_due(now) {
            self.to_sync.insert(id);
        }
        is_news && matches!(beat.visibility, Visibility::Frozen | Visibility::Leaving)
    }

    /// Handles a report of blocks that a worker has loaded or failed to load.
    pub(crate) fn blocks_reported(&mut self, now: Duration, id: ConnectionId, report: BlockReport) {
        let Some(member) = self.connections.get_mut(&id).and_then(|c| c.member.as_mut()) else { return };
        member.bytes_downloaded = report.bytes_downloaded;
        if let Some((block, reason)) = report.failed.first() {
            let (n, reason) = (report.failed.len(), peer_text(reason));
            warn!(worker = member.id.short(), n, %block, %reason, "blocks could not be loaded");
        }
        for index in report.failed.iter().filter_map(|(block, _)| self.catalog.index(*block)) {
            self.must_rebalance |= member.residency.failed(now, index, &mut self.holders);
        }
        let mut new = Vec::new();
        for index in report.resident.into_iter().filter_map(|block| self.catalog.index(block)) {
            if member.residency.loaded(index, &mut self.holders) {
                new.push(index);
            }
        }
        // A worker that held one of them temporarily may drop it now.
        let stands_in =
            |m: &Member| new.iter().any(|index| m.residency.holds(*index) && !m.residency.wants(*index));
        let stand_ins = self.connections.iter().filter(|(_, c)| c.member.as_ref().is_some_and(stands_in));
        self.to_sync.extend(stand_ins.map(|(other, _)| *other));
        self.to_sync.insert(id);
    }

    /// A worker reported that it does not hold one of these; it reports its resident blocks again.
    pub(crate) fn not_resident(&mut self, id: ConnectionId, blocks: &[Block]) {
        if let Some(member) = self.connections.get_mut(&id).and_then(|c| c.member.as_mut()) {
            for index in blocks.iter().filter_map(|block| self.catalog.index(*block)) {
                member.residency.forget(index, &mut self.holders);
            }
        }
        self.to_sync.insert(id);
    }

    /// A worker's key has proven itself: it may hold any share of the model, and keeps what it holds.
    pub(crate) fn trust(&mut self, id: ConnectionId) {
        let Some(member) = self.connections.get_mut(&id).and_then(|c| c.member.as_mut()) else { return };
        let was = std::mem::replace(&mut member.standing, Standing::Proven);
        self.must_rebalance |= was == Standing::Probation;
    }

    /// Counts how often the router chose each block of a layer.
    pub(crate) fn count_load(&mut self, chosen: impl IntoIterator<Item = (Block, usize)>) {
        let Self { expert_load, catalog, .. } = self;
        expert_load
            .count(chosen.into_iter().filter_map(|(block, n_pairs)| Some((catalog.index(block)?, n_pairs))));
    }

    /// Recomputes the placement if it is due.
    ///
    /// Leaving workers keep nothing. Hidden or unhealthy workers keep their blocks, since they may return.
    pub(crate) fn rebalance_if_due(&mut self, now: Duration) {
        if self.must_rebalance && self.rebalance_rate.take(now) {
            self.must_rebalance = false;
            self.rebalance();
        }
    }

    fn rebalance(&mut self) {
        let members: Vec<PlacementMember> = self
            .members()
            .filter(|(.., member)| member.visibility != Visibility::Leaving)
            .map(|(_, connection, member)| PlacementMember {
                id: member.id,
                host: connection.host.clone(),
                capacity: member.residency.capacity() as u64,
                is_on_probation: member.standing == Standing::Probation,
                lost: member.residency.lost(self.catalog.indices()),
            })
            .collect();
        self.ring
            .update(members.iter().map(|m| (m.id, virtual_nodes(m.capacity, self.catalog.len() as u64))));
        let SwarmConfig { replicas, probation, .. } = *self.config;
        self.placement = Placement::compute(&self.ring, &self.catalog, &members, replicas, probation);
        let mut wanted = self.placement.by_worker();
        for (id, connection) in &mut self.connections {
            let Some(member) = &mut connection.member else { continue };
            // Among a thousand workers, a join changes the placement of only a few.
            let is_news = member.residency.want(wanted.remove(&member.id).unwrap_or_default());
            if is_news || member.residency.stands_in() {
                self.to_sync.insert(*id);
            }
        }
    }

    /// Sends one worker the next step towards its placement. False if no worker has one.
    pub(crate) fn sync_next(&mut self, now: Duration) -> bool {
        let Some(id) = self.to_sync.pop_first() else { return false };
        self.sync(now, id);
        true
    }

    fn sync(&mut self, now: Duration, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some(member) = connection.member.as_mut() else { return };
        let is_replaced = |index, holders: &Holders| {
            let wanted = self.placement.holders(index);
            let has = |worker| self.by_id.get(worker).is_some_and(|c| holders.of(index).contains(c));
            !wanted.is_empty() && wanted.iter().all(has)
        };
        let may_uncover = self.config.hub_compute;
        let step =
            member.residency.next_step(now, &mut self.holders, &self.expert_load, is_replaced, may_uncover);
        if step.is_empty() {
            return;
        }
        let message = WeightSync {
            epoch: member.residency.next_epoch(),
            hold: step.hold.iter().map(|index| self.catalog.source(*index).clone()).collect(),
            drop: step.drop.iter().map(|index| self.catalog.block(*index)).collect(),
        };
        if let Err(error) = connection.session.sync_weights(now, message) {
            warn!(worker = member.id.short(), %error, "blocks could not be sent");
        }
        self.to_poll.insert(id);
    }
}
