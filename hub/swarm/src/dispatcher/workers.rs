//! Measurements of all joined workers, and the probes in flight.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use moex_protocol::{AttemptId, WorkerId};
use tracing::warn;

use super::attempts::Kind;
use super::latency::Latencies;
use super::performance::Performance;
use crate::ConnectionId;
use crate::fleet::{Fleet, Member};

/// Minimum interval between probes of idle workers.
const PROBE_SWEEP: Duration = Duration::from_secs(1);

/// All joined workers.
#[derive(Debug, Default)]
pub(super) struct Workers {
    workers: BTreeMap<ConnectionId, Performance>,
    /// The last connection that each worker joined on.
    connections: HashMap<WorkerId, ConnectionId>,
    /// Latencies over all workers.
    latencies: Latencies,
    /// Deadlines of probes: at most one per worker.
    probes: BTreeSet<(Duration, AttemptId, ConnectionId)>,
    /// When an idle worker may be probed again.
    next_sweep: Duration,
}

impl Workers {
    pub(super) fn joined(
        &mut self,
        now: Duration,
        id: ConnectionId,
        (member, host): (&Member, &str),
        max_failures: u32,
    ) {
        let mut worker = Performance::new(now, member.id, host, &member.join, max_failures);
        worker.gives_digests = member.gives_digests;
        self.workers.insert(id, worker);
        self.connections.insert(member.id, id);
    }

    pub(super) fn left(&mut self, id: ConnectionId) -> Option<Performance> {
        let worker = self.workers.remove(&id)?;
        if self.connections.get(&worker.id()) == Some(&id) {
            self.connections.remove(&worker.id());
        }
        Some(worker)
    }

    pub(super) fn get(&self, id: ConnectionId) -> Option<&Performance> {
        self.workers.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Performance> {
        self.workers.get_mut(&id)
    }

    pub(super) fn by_id_mut(&mut self, id: WorkerId) -> Option<&mut Performance> {
        self.connections.get(&id).and_then(|connection| self.workers.get_mut(connection))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Performance> {
        self.workers.values()
    }

    pub(super) fn id(&self, id: ConnectionId) -> Option<WorkerId> {
        self.get(id).map(Performance::id)
    }

    /// Whether a worker may get work: it is healthy or, if no hub can replace it, at least alive.
    pub(super) fn is_usable(&self, fleet: &Fleet, id: ConnectionId, hub_compute: bool) -> bool {
        let is_asked = |worker: &Performance| {
            worker.health.is_healthy() || (!hub_compute && worker.health.is_last_resort())
        };
        fleet.is_present(id) && self.get(id).is_some_and(is_asked)
    }

    /// Usual time of workers for a message of `n_pairs`, once measured.
    pub(super) fn usual(&self, n_pairs: usize) -> Option<Duration> {
        self.latencies.expected(n_pairs)
    }

    /// Records the latency of an answer to a message of this kind.
    pub(super) fn timed(&mut self, from: ConnectionId, kind: Kind, n_pairs: usize, latency: Duration) {
        self.latencies.record(n_pairs, latency);
        let Some(worker) = self.get_mut(from) else { return };
        match kind {
            Kind::Probe => worker.probed(n_pairs, latency),
            Kind::Ask | Kind::Hedge => worker.took(n_pairs, latency),
        }
    }

    /// Records that a worker failed or answered wrong. True if this made it unhealthy.
    pub(super) fn failed(&mut self, now: Duration, id: ConnectionId) -> bool {
        let Some(worker) = self.get_mut(id) else { return false };
        let is_news = worker.health.failed(now);
        if is_news {
            warn!(worker = worker.id().short(), "unhealthy: gets only probes until it answers again");
        }
        is_news
    }

    /// Whether an idle worker may be probed now.
    pub(super) fn may_sweep(&self, now: Duration) -> bool {
        now >= self.next_sweep
    }

    /// Idle workers were searched for one to probe.
    pub(super) fn swept(&mut self, now: Duration) {
        self.next_sweep = now + PROBE_SWEEP;
    }

    /// A probe was sent.
    pub(super) fn probe_sent(&mut self, id: ConnectionId, attempt: AttemptId, deadline: Duration) {
        if let Some(worker) = self.get_mut(id) {
            worker.probe = Some((attempt, deadline));
            self.probes.insert((deadline, attempt, id));
        }
    }

    /// A probe was answered, or will not be.
    pub(super) fn end_probe(&mut self, id: ConnectionId, is_it: impl Fn(AttemptId) -> bool) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        if let Some((attempt, deadline)) = worker.probe.take_if(|(probe, _)| is_it(*probe)) {
            self.probes.remove(&(deadline, attempt, id));
        }
    }

    /// The next worker with an overdue probe; each is returned once.
    pub(super) fn next_overdue_probe(&mut self, now: Duration) -> Option<ConnectionId> {
        while let Some((deadline, attempt, id)) = self.probes.first().copied()
            && deadline <= now
        {
            self.probes.pop_first();
            let Some(worker) = self.workers.get_mut(&id) else { continue };
            if worker.probe.take_if(|(probe, _)| *probe == attempt).is_some() {
                return Some(id);
            }
        }
        None
    }

    /// When the next probe is overdue.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.probes.first().map(|(deadline, ..)| *deadline)
    }
}
