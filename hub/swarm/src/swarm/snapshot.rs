//! Snapshots of the swarm for readers.

use std::collections::BTreeSet;

use moex_protocol::{Block, State};

use super::Swarm;
use crate::dispatcher::{Performance, Tier};
use crate::fleet::{BlockIndex, Connection, Member, Standing};
use crate::status::ANSWERS_SHOWN;
use crate::{
    ConnectionId, Coverage, HubShare, InFlight, LayerExperts, Readiness, SwarmStatus, Totals, Verification,
    WorkerStatus,
};

/// Why a worker is not used where two at different addresses have to agree.
const ALONE: &str = "its answers need those of a worker at another address beside them, and there is none";

impl Swarm {
    /// The swarm's status. The HTTP side fills in `weights_served_bytes`, and the checker its counts in `verification`.
    pub fn status(&self) -> SwarmStatus {
        let (passed_over, hub) = (self.dispatcher.passed_over(), self.dispatcher.hub_counts());
        let hosts: BTreeSet<&str> =
            self.fleet.members().map(|(_, connection, _)| connection.host.as_str()).collect();
        let is_alone = self.config.wants_agreement() && hosts.len() < self.config.needed_answers();
        let mut workers: Vec<WorkerStatus> = self
            .fleet
            .members()
            .filter_map(|(id, connection, member)| {
                let mut status = self.worker_status(connection, member, self.dispatcher.worker(id)?);
                // Equivalent to a fallback: it gets items that faster workers do not hold.
                if status.tier == Tier::Decode
                    && status.reason.is_none()
                    && let Some(reason) = passed_over.get(&status.id)
                {
                    (status.tier, status.reason) = (Tier::Fallback, Some(reason.clone()));
                }
                if is_alone {
                    status.reason = Some(ALONE.to_owned());
                }
                Some(status)
            })
            .collect();
        workers.sort_by_key(|worker| worker.id);
        let experts = self.experts();
        let covered = experts.iter().flat_map(|layer| &layer.holders).filter(|n| **n > 0).count();
        SwarmStatus {
            model: self.config.model.clone(),
            coverage: self.coverage(covered),
            workers,
            quarantined: self.auditor.quarantined().cloned().collect(),
            hub: HubShare { rows: hub.rows, dispatches: hub.dispatches, compared: None },
            verification: Verification { mode: self.config.verify, ..Verification::default() },
            totals: self.totals(),
            weights_served_bytes: 0,
            experts,
        }
    }

    /// Connected workers and coverage.
    pub fn readiness(&self) -> Readiness {
        let is_usable = |id: &ConnectionId| self.dispatcher.is_usable(&self.fleet, *id);
        let is_covered = |index: &BlockIndex| self.fleet.holders(*index).iter().any(is_usable);
        let covered = self.fleet.catalog().indices().filter(is_covered).count();
        Readiness { workers: self.fleet.members().count(), coverage: self.coverage(covered) }
    }

    /// The blocks that some worker has reported resident.
    pub fn held_blocks(&self) -> impl Iterator<Item = Block> + '_ {
        let catalog = self.fleet.catalog();
        let is_held = |index: &BlockIndex| !self.fleet.holders(*index).is_empty();
        catalog.indices().filter(is_held).map(|index| catalog.block(index))
    }

    /// Sizes of its tables.
    pub fn in_flight(&self) -> InFlight {
        InFlight {
            connections: self.fleet.n_connections(),
            jobs: self.dispatcher.n_jobs(),
            attempts: self.dispatcher.n_attempts(),
        }
    }

    fn coverage(&self, covered: usize) -> Coverage {
        Coverage { blocks: self.fleet.catalog().len(), covered, replicas: self.config.replicas }
    }

    fn experts(&self) -> Vec<LayerExperts> {
        let catalog = self.fleet.catalog();
        let mut layers: Vec<LayerExperts> = Vec::new();
        for index in catalog.indices() {
            let layer = catalog.block(index).layer.0;
            if layers.last().is_none_or(|last| last.layer != layer) {
                layers.push(LayerExperts { layer, ..LayerExperts::default() });
            }
            let holders = self.fleet.holders(index).iter();
            let n_holders = holders.filter(|id| self.dispatcher.is_usable(&self.fleet, **id)).count();
            if let Some(last) = layers.last_mut() {
                last.holders.push(n_holders as u32);
                last.load.push(self.fleet.load(index));
            }
        }
        layers
    }

    fn totals(&self) -> Totals {
        let (fleet, audit) = (self.fleet.counts(), self.auditor.counts());
        let (dispatch, layer) = (self.dispatcher.counts(), self.dispatcher.layer_latency());
        Totals {
            layers: dispatch.layers,
            dispatches: dispatch.dispatches,
            answers: dispatch.answers,
            retries: dispatch.retries,
            hedges: dispatch.hedges,
            hedge_wins: dispatch.hedge_wins,
            hedges_denied: dispatch.hedges_denied,
            probes: dispatch.probes,
            duplicate_bytes: dispatch.duplicate_bytes,
            bytes_sent: fleet.bytes_sent,
            bytes_received: fleet.bytes_received,
            compared: audit.compared,
            checks: audit.checks,
            mismatches: audit.mismatches,
            doubts: audit.doubts,
            quarantined: audit.quarantined,
            unhealthy: dispatch.unhealthy,
            refused: fleet.refused,
            limited: fleet.limited,
            sessions_ended: fleet.sessions_ended,
            late: dispatch.late,
            timeouts: dispatch.timeouts,
            errors: dispatch.errors,
            hub_computed: dispatch.hub_computed,
            layer_mean_micros: layer.mean_micros(),
            layer_p50_micros: layer.quantile_micros(0.5),
            layer_p95_micros: layer.quantile_micros(0.95),
            layer_p99_micros: layer.quantile_micros(0.99),
        }
    }

    fn worker_status(
        &self,
        connection: &Connection,
        member: &Member,
        performance: &Performance,
    ) -> WorkerStatus {
        let Member {
            id,
            join,
            invitation,
            residency,
            standing,
            visibility,
            queue_depth,
            bytes_downloaded,
            ..
        } = member;
        let (latency, counts) = (performance.usual_latency(), &performance.counts);
        let blocks_resident = residency.n_resident();
        WorkerStatus {
            id: *id,
            name: join.name.clone(),
            invitation: invitation.clone(),
            kind: join.kind,
            adapter: join.adapter.clone(),
            backend: join.backend.clone(),
            address: connection.address.clone(),
            state: state_name(connection.session.state(), performance.health.is_healthy()).to_owned(),
            tier: performance.tier(),
            reason: performance.reason(*visibility),
            visibility: *visibility,
            is_on_probation: *standing == Standing::Probation,
            blocks_assigned: residency.n_wanted(),
            blocks_resident,
            bytes_resident: blocks_resident as u64 * self.fleet.catalog().block_bytes(),
            bytes_downloaded: *bytes_downloaded,
            weights_served_bytes: 0,
            dispatches: counts.dispatches,
            answers: counts.answers,
            rows: counts.rows,
            timeouts: counts.timeouts,
            errors: counts.errors,
            latency_p50_micros: latency.quantile_micros(0.5),
            latency_p99_micros: latency.quantile_micros(0.99),
            round_trip_micros: performance.round_trip().map(|took| took.as_micros() as u64),
            answers_micros: performance.answers().spread_micros(ANSWERS_SHOWN),
            sync_latency_micros: join.sync_latency_micros,
            is_exact: join.is_exact(),
            self_test_nmse: Some(join.self_test.worst_nmse).filter(|nmse| nmse.is_finite()),
            queue_depth: *queue_depth,
        }
    }
}

fn state_name(state: State, is_healthy: bool) -> &'static str {
    match state {
        State::Serving if !is_healthy => "unhealthy",
        State::Joining => "joining",
        State::Syncing => "syncing",
        State::Serving => "serving",
        State::Paused => "paused",
        State::Draining => "draining",
        State::Closed => "closed",
    }
}
