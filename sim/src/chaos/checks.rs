//! The invariants of a simulated swarm, checked after each step and at the end.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use moex_protocol::{Visibility, WorkerId};
use moex_swarm::{JobError, JobId, LayerJob, SwarmConfig, WorkerStatus};

use super::{JOB_DEADLINE, Scenario};
use crate::world::{Model, PeerId, WorkerSpec, World};

/// The most events within one virtual second: far above what a fleet of a dozen needs, far below what an endless loop
/// gives.
const MAX_EVENTS_PER_SECOND: u64 = 50_000;
/// The most messages to one worker that the swarm may track.
const MAX_ATTEMPTS_PER_PEER: usize = 128;
/// The longest time of a job when nothing is wrong.
const SOON: Duration = Duration::from_secs(20);
/// The longest time of a layer where the hub computes and only hostile peers do harm: a timeout or two, and the hub's
/// own time. No answer of a worker may stretch it.
pub(super) const PROMPT: Duration = Duration::from_secs(2);
/// Workers whose keys have not proven themselves hold one block in this many together, while others have room.
const NEW_KEYS_HOLD_ONE_IN: usize = 4;

/// Expectations, and the peers that are excused from them.
pub(super) struct Checks {
    model: Arc<Model>,
    swarm: SwarmConfig,
    open: BTreeMap<JobId, Expected>,
    /// Peers whose sessions may end because of a fault injected into them.
    excused: BTreeSet<PeerId>,
    /// Workers with memory for the whole model.
    large: BTreeSet<WorkerId>,
    /// Workers that were not on probation at the last check: the swarm has placed blocks with them since.
    trusted: BTreeSet<WorkerId>,
    second: u64,
    events_before: u64,
    pub(super) has_hostile: bool,
    /// With such a link an answer may take longer than a job waits, and an echo longer than a heartbeat.
    pub(super) has_bad_link: bool,
    pub(super) had_failing_loads: bool,
    pub(super) is_shut_down: bool,
    /// From now on no job may fail.
    pub(super) expects_all: bool,
    pub(super) n_uncovered: u64,
    /// Whether every layer is done within [`PROMPT`].
    expects_prompt: bool,
    pub(super) slowest: Duration,
}

struct Expected {
    job: LayerJob,
    started: Duration,
    deadline: Duration,
}

impl Checks {
    pub(super) fn new(scenario: &Scenario) -> Self {
        Self {
            model: scenario.model.clone(),
            swarm: scenario.swarm.clone(),
            open: BTreeMap::new(),
            excused: BTreeSet::new(),
            large: BTreeSet::new(),
            trusted: BTreeSet::new(),
            second: 0,
            events_before: 0,
            has_hostile: false,
            has_bad_link: false,
            had_failing_loads: false,
            is_shut_down: false,
            expects_all: scenario.swarm.hub_compute,
            n_uncovered: 0,
            expects_prompt: scenario.is_prompt,
            slowest: Duration::ZERO,
        }
    }

    /// Jobs that have not ended.
    pub(super) fn n_open(&self) -> usize {
        self.open.len()
    }

    /// Returns an open job.
    #[cfg(test)]
    pub(super) fn job(&self, id: JobId) -> Option<&LayerJob> {
        self.open.get(&id).map(|expected| &expected.job)
    }

    /// Counts an open job as started `by` earlier.
    #[cfg(test)]
    pub(super) fn delay(&mut self, id: JobId, by: Duration) {
        if let Some(expected) = self.open.get_mut(&id) {
            expected.started = expected.started.saturating_sub(by);
        }
    }

    /// This peer's sessions may end from now on.
    pub(super) fn excuse(&mut self, peer: PeerId) {
        self.excused.insert(peer);
    }

    /// An honest worker joins.
    pub(super) fn joins(&mut self, spec: &WorkerSpec) {
        let n_blocks = self.model.catalog().len() as u64;
        if spec.memory_budget_bytes >= n_blocks * self.model.summary().block_bytes {
            self.large.insert(spec.id);
        }
    }

    pub(super) fn started(&mut self, id: JobId, job: &LayerJob, now: Duration) {
        self.open.insert(id, Expected { job: job.clone(), started: now, deadline: now + JOB_DEADLINE });
    }

    /// The faults are over: this job must finish soon.
    pub(super) fn expects_soon(&mut self, id: JobId) {
        if let Some(expected) = self.open.get_mut(&id) {
            expected.deadline = expected.deadline - JOB_DEADLINE + SOON.max(self.swarm.coverage_wait);
        }
    }

    pub(super) fn finished(
        &mut self,
        id: JobId,
        result: &Result<Vec<f32>, JobError>,
        now: Duration,
    ) -> Result<(), String> {
        let Some(Expected { job, started, .. }) = self.open.remove(&id) else {
            return Err(format!("job {} ended twice", id.0));
        };
        let took = now.saturating_sub(started);
        self.slowest = self.slowest.max(took);
        if self.expects_prompt && !self.has_bad_link && took > PROMPT {
            return Err(format!("job {} took {took:?}, although only hostile peers did harm", id.0));
        }
        match result {
            Ok(sum) => self.compare(id, &job, sum),
            Err(JobError::ShuttingDown) if self.is_shut_down => Ok(()),
            Err(JobError::Uncovered { .. }) if !self.expects_all => {
                self.n_uncovered += 1;
                Ok(())
            }
            Err(error) => Err(format!("job {} failed: {error}", id.0)),
        }
    }

    fn compare(&self, id: JobId, job: &LayerJob, sum: &[f32]) -> Result<(), String> {
        let alone = self.model.alone(job, self.swarm.wire).map_err(|error| error.to_string())?;
        if sum.len() != alone.len() {
            return Err(format!("job {} gave {} values for {}", id.0, sum.len(), alone.len()));
        }
        let is_same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
        match sum.iter().zip(&alone).position(|pair| !is_same(pair)) {
            Some(at) => {
                Err(format!("job {} has {} as value {at}, the hub alone gives {}", id.0, sum[at], alone[at]))
            }
            None => Ok(()),
        }
    }

    /// A session has ended: checks whose it was, and whether a fault was injected into that peer.
    pub(super) fn closed(&self, peer: PeerId, by: &str, code: u16) -> Result<(), String> {
        if self.is_shut_down || self.excused.contains(&peer) {
            return Ok(());
        }
        Err(format!("{by} closed the session of peer {} with {code}, which had no fault", peer.0))
    }

    pub(super) fn stopped(&self, peer: PeerId, reason: &str) -> Result<(), String> {
        if self.is_shut_down || self.excused.contains(&peer) {
            return Ok(());
        }
        Err(format!("peer {}, which had no fault, gave up: {reason}", peer.0))
    }

    /// Runs after each step: time advances, jobs end in time, and tables hold only what is in flight.
    pub(super) fn step(&mut self, world: &World) -> Result<(), String> {
        let (second, events) = (world.now().as_secs(), world.traffic().events);
        if second > self.second {
            (self.second, self.events_before) = (second, events);
            self.new_keys(world)?;
        } else if events - self.events_before > MAX_EVENTS_PER_SECOND {
            return Err(format!(
                "more than {MAX_EVENTS_PER_SECOND} events within a second: time stands still"
            ));
        }
        if let Some((id, _)) = self.open.iter().find(|(_, expected)| expected.deadline < world.now()) {
            return Err(format!("job {} has not ended in time", id.0));
        }
        let held = world.swarm().in_flight();
        let n_connections = world.n_hub_connections();
        if held.connections != n_connections {
            return Err(format!(
                "the swarm has {} connections, its driver {n_connections}",
                held.connections
            ));
        }
        if held.jobs != self.open.len() {
            return Err(format!("the swarm has {} jobs of the {} that are open", held.jobs, self.open.len()));
        }
        let most = if held.jobs == 0 { 0 } else { MAX_ATTEMPTS_PER_PEER * held.connections };
        if held.attempts > most {
            return Err(format!("{} attempts are out for {} jobs", held.attempts, held.jobs));
        }
        Ok(())
    }

    /// Where as many workers as there are replicas have proven themselves or came early, before the last check, and have room for
    /// all blocks, workers on probation are given a bounded share.
    fn new_keys(&mut self, world: &World) -> Result<(), String> {
        let status = world.swarm().status();
        let n_blocks = status.coverage.blocks;
        let (new, others): (Vec<_>, Vec<_>) =
            status.workers.iter().partition(|worker| worker.is_on_probation);
        let has_room = |worker: &&&WorkerStatus| {
            self.large.contains(&worker.id) && worker.visibility != Visibility::Leaving
        };
        let n_new: usize = new.iter().map(|worker| worker.blocks_assigned).sum();
        let trusted = others.iter().map(|worker| worker.id).collect();
        let trusted = std::mem::replace(&mut self.trusted, trusted);
        let n_large = others.iter().filter(|worker| trusted.contains(&worker.id)).filter(has_room).count();
        if n_large < self.swarm.replicas
            || self.had_failing_loads
            || n_new <= n_blocks.div_ceil(NEW_KEYS_HOLD_ONE_IN)
        {
            return Ok(());
        }
        Err(format!(
            "{} new keys hold {n_new} of {n_blocks} blocks, with room at {n_large} others",
            new.len()
        ))
    }

    /// Whether the remaining fleet holds every block, if its memory allows that.
    pub(super) fn is_covered(&self, world: &World) -> bool {
        let coverage = world.swarm().status().coverage;
        coverage.covered == coverage.blocks
    }

    /// Runs after the faults, once all has settled: nobody is working, and all blocks are held that fit into memory.
    pub(super) fn settled(&self, world: &World, honest: &[PeerId]) -> Result<(), String> {
        if let Some(peer) = honest.iter().find(|peer| world.is_computing(**peer)) {
            return Err(format!("peer {} still computes though no job is left", peer.0));
        }
        if self.is_shut_down {
            return match world.n_hub_connections() {
                0 => Ok(()),
                n => Err(format!("{n} connections are left after the shut-down")),
            };
        }
        let status = world.swarm().status();
        // A worker that dies while hidden still counts as hidden, and keeps its place and its last status for minutes.
        let is_hidden = |worker: &WorkerStatus| worker.visibility != Visibility::Visible;
        let waits = |worker: &&WorkerStatus| worker.queue_depth > 0 && !is_hidden(worker);
        if let Some(worker) = status.workers.iter().find(waits) {
            return Err(format!("worker {} says that {} dispatches wait", worker.id, worker.queue_depth));
        }
        let block_bytes = self.model.summary().block_bytes;
        let room: u64 =
            honest.iter().filter_map(|peer| world.memory_budget(*peer)).map(|b| b / block_bytes).sum();
        let blocks = status.coverage.blocks;
        // An unhealthy worker recovers by answering, and there is no work left to answer.
        let is_out = |worker: &WorkerStatus| worker.state == "unhealthy";
        let may_lack = status.workers.iter().any(is_out)
            || self.had_failing_loads
            || self.has_bad_link
            || status.workers.iter().any(is_hidden);
        if room >= blocks as u64 && !may_lack && status.coverage.covered < blocks {
            return Err(format!(
                "{} of {blocks} blocks are held, with room for {room}",
                status.coverage.covered
            ));
        }
        Ok(())
    }
}
