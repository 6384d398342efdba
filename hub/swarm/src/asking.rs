//! From a job to its messages: what is asked, of whom, and when it is asked again.
//!
//! [`Swarm::cover`] is the one place that asks: it looks at a job's cells that are neither settled nor being asked in
//! time, and asks for each whom `choosing` names, else the hub. Everything that happens (an answer, a failure, a timeout,
//! a closed socket, a new holder, a free slot) only marks jobs to be covered again. [`Swarm::hedge`] adds a second copy to
//! what is late.

use std::collections::BTreeMap;
use std::time::Duration;

use moex_protocol::{AttemptId, Block};
use tracing::{debug, warn};

use super::attempts::{Attempt, Kind};
use super::choosing::Choice;
use super::job::{HubWork, Job};
use super::plan::{Share, WireJob, deal};
use super::{Action, ComputeId, ConnectionId, JobError, JobId, LayerJob, Swarm};

/// Layers in flight at a time.
pub const MAX_JOBS: usize = 64;
/// One worker at most is probed in this time.
const PROBE_SWEEP: Duration = Duration::from_secs(1);

impl Swarm {
    /// Starts a layer. Its end comes as [`Action::Finished`].
    pub fn start_layer(&mut self, now: Duration, id: JobId, job: LayerJob) {
        match self.admit(&job) {
            Ok(wire) => {
                self.heat.count(wire.calls.iter().filter_map(|call| {
                    let block = Block { layer: wire.layer, expert: call.expert };
                    Some((self.catalog.index(block)?, call.pairs.len()))
                }));
                self.tape(|tape| tape.started(now, id, &job));
                self.jobs.insert(id, Job::new(wire, now));
                self.to_cover.insert(id);
            }
            Err(error) => self.actions.push_back(Action::Finished(id, Err(error))),
        }
        self.run(now);
    }

    fn admit(&self, job: &LayerJob) -> Result<WireJob, JobError> {
        if self.is_shutting_down {
            return Err(JobError::ShuttingDown);
        }
        if self.jobs.len() >= MAX_JOBS {
            return Err(JobError::Busy { max: MAX_JOBS });
        }
        let summary = &self.config.model;
        let max_rows = (summary.max_rows as usize).min(summary.max_pairs as usize / job.routing.k.max(1));
        let wire = WireJob::encode(job, summary.hidden as usize, self.config.wire, max_rows)?;
        let missing = wire
            .calls
            .iter()
            .map(|call| Block { layer: job.layer, expert: call.expert })
            .find(|block| self.catalog.index(*block).is_none());
        missing.map_or(Ok(wire), |block| Err(JobError::NoSuchBlock { block }))
    }

    /// Asks for every cell of the job that nobody is being asked for in time.
    pub(super) fn cover(&mut self, now: Duration, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        if job.is_settled() {
            return self.finish(id, now, Ok(()));
        }
        let Asked { by, mut n_in_time } = self.asked(id, job);
        for cell in job.hub.iter().flat_map(|work| &work.cells) {
            n_in_time[*cell] += 1;
        }
        let mut is_withheld = vec![false; job.cells.len()];
        for cell in job.withheld.iter().flat_map(|claim| &claim.parts).flat_map(|part| &part.cells) {
            is_withheld[*cell] = true;
        }
        let (checked, open): (Vec<usize>, Vec<usize>) = (0..job.cells.len())
            .filter(|cell| !job.cells[*cell].is_settled)
            .filter(|cell| n_in_time[*cell] == 0 || is_withheld[*cell])
            .partition(|cell| is_withheld[*cell]);
        let hub_is_busy = !self.config.hub_compute || job.hub.is_some();
        let choice = self.choose(job, &open, &by);
        let mut probes = self.probe(now, id, &choice);
        let mut is_waiting = choice.takers.iter().any(|(_, takers)| takers.is_empty());
        let mut is_uncovered = false;
        let mut for_hub = choice.for_hub;
        for_hub.extend(checked);
        for_hub.sort_unstable();
        if !for_hub.is_empty() && hub_is_busy {
            is_waiting = true;
            is_uncovered = !self.config.hub_compute && choice.is_uncovered;
            for_hub.clear();
        }
        for (worker, mut share) in deal(choice.trials.into_iter().map(|(cell, new)| (cell, vec![new]))) {
            share.copies.clone_from(&share.cells);
            probes.insert(worker, share);
        }
        let shares = deal(choice.takers);
        if let Some(job) = self.jobs.get_mut(&id) {
            job.is_waiting = is_waiting;
            job.uncovered_since = is_uncovered.then(|| job.uncovered_since.unwrap_or(now));
        }
        self.ask_hub(now, id, for_hub, Kind::Ask);
        self.ask_workers(now, id, shares, Kind::Ask);
        self.ask_workers(now, id, probes, Kind::Probe);
    }

    /// Second copies of what is later than it usually is, as far as the budget goes.
    pub(super) fn hedge(&mut self, now: Duration) {
        for late in self.attempts.due_for_hedge(now) {
            let Some(attempt) = self.attempts.get(late).cloned() else { continue };
            if let Some(worker) = self.connections.get_mut(&attempt.worker).and_then(|c| c.worker.as_mut()) {
                worker.health.late();
            }
            let Some(job) = self.jobs.get(&attempt.job) else { continue };
            let Asked { by, n_in_time } = self.asked(attempt.job, job);
            let open: Vec<usize> = attempt
                .cells
                .iter()
                .copied()
                .filter(|cell| !job.cells[*cell].is_settled && n_in_time[*cell] == 1)
                .collect();
            let choice = self.choose(job, &open, &by);
            let mut shares = BTreeMap::new();
            for (worker, share) in deal(choice.takers) {
                if self.budget.spend(job.wire.message_bytes(&share.cells)) {
                    let copies = share.cells.clone();
                    shares.insert(worker, Share { copies, ..share });
                } else {
                    self.totals.hedges_denied += 1;
                }
            }
            let n_pairs = job.wire.n_pairs(&choice.for_hub);
            let hub_is_in_time =
                self.hub_latencies.expected(n_pairs).is_none_or(|expected| now + expected < attempt.deadline);
            let may_hub = self.config.hub_compute && job.hub.is_none() && hub_is_in_time;
            debug!(attempt = late.0, connection = attempt.worker.0, "late: asked for again elsewhere");
            if may_hub {
                self.ask_hub(now, attempt.job, choice.for_hub, Kind::Hedge);
            }
            self.ask_workers(now, attempt.job, shares, Kind::Hedge);
        }
    }

    /// Who is asked for what of a job, by cell. A probe does not count as asking: nobody waits for it.
    fn asked(&self, id: JobId, job: &Job) -> Asked {
        let n = job.cells.len();
        let mut asked = Asked { by: vec![Vec::new(); n], n_in_time: vec![0; n] };
        for (_, attempt) in self.attempts.iter().filter(|(_, attempt)| attempt.job == id) {
            for cell in &attempt.cells {
                asked.by[*cell].push(attempt.worker);
                asked.n_in_time[*cell] += usize::from(!attempt.is_overdue && attempt.kind != Kind::Probe);
            }
        }
        asked
    }

    /// Workers whose answers nobody waits for, with a cell that they hold and another is asked for: those that were late or
    /// out and are alive, and now and then one that has been passed over for long.
    fn probe(&mut self, now: Duration, id: JobId, choice: &Choice) -> BTreeMap<ConnectionId, Share> {
        let mut probes = BTreeMap::new();
        let may_sweep = self.config.hedge.is_adaptive() && now >= self.next_probe;
        let mut is_swept = false;
        let Some(job) = self.jobs.get(&id) else { return probes };
        let asked = choice.takers.iter().filter(|(_, takers)| !takers.is_empty());
        let asked = asked.map(|(cell, takers)| (*cell, takers.as_slice()));
        for (cell, takers) in asked.chain(choice.for_hub.iter().map(|cell| (*cell, &[][..]))) {
            let Some(index) = self.catalog.index(job.block(cell)) else { continue };
            for holder in self.holders.of(index).iter().filter(|holder| !takers.contains(holder)) {
                let Some(worker) = self.worker(*holder).filter(|w| w.probe.is_none()) else { continue };
                if probes.contains_key(holder) || !self.is_present(*holder) {
                    continue;
                }
                let is_next =
                    may_sweep && !is_swept && self.is_usable(*holder) && worker.is_due_for_probe(now);
                if worker.health.is_to_be_tried(now) || is_next {
                    is_swept |= is_next;
                    probes.insert(*holder, Share { cells: vec![cell], copies: vec![cell] });
                }
            }
        }
        if may_sweep {
            self.next_probe = now + PROBE_SWEEP;
        }
        probes
    }

    /// Probes that were not answered in time: a strike each, though nobody waited.
    pub(super) fn expire_probes(&mut self, now: Duration) {
        while let Some((deadline, attempt, id)) = self.probes.first().copied()
            && deadline <= now
        {
            self.probes.pop_first();
            let Some(worker) = self.connections.get_mut(&id).and_then(|c| c.worker.as_mut()) else {
                continue;
            };
            if worker.probe.take_if(|(probe, _)| *probe == attempt).is_some() {
                self.totals.timeouts += 1;
                worker.counts.timeouts += 1;
                self.strike(now, id);
            }
        }
    }

    /// A probe is answered, or will not be: it counts no more.
    pub(super) fn end_probe(&mut self, id: ConnectionId, is_it: impl Fn(AttemptId) -> bool) {
        let Some(worker) = self.connections.get_mut(&id).and_then(|c| c.worker.as_mut()) else { return };
        if let Some((attempt, deadline)) = worker.probe.take_if(|(probe, _)| is_it(*probe)) {
            self.probes.remove(&(deadline, attempt, id));
        }
    }

    /// What the hub, or the swarm, usually takes for so many pairs, as far as either was measured.
    fn usual(&self, n_pairs: usize) -> Option<Duration> {
        let hub = self.config.hub_compute.then(|| self.hub_latencies.expected(n_pairs)).flatten();
        [hub, self.worker_latencies.expected(n_pairs)].into_iter().flatten().min()
    }

    fn ask_workers(&mut self, now: Duration, id: JobId, shares: BTreeMap<ConnectionId, Share>, kind: Kind) {
        let flops_per_pair = self.flops_per_pair();
        for (worker_id, Share { cells, copies }) in shares {
            let Some(n_pairs) = self.jobs.get(&id).map(|job| job.wire.n_pairs(&cells)) else { return };
            let usual = self.usual(n_pairs);
            let Some(job) = self.jobs.get_mut(&id) else { return };
            let Some(connection) = self.connections.get_mut(&worker_id) else { continue };
            let Some(worker) = connection.worker.as_mut() else { continue };
            let flops = n_pairs as f64 * flops_per_pair;
            let timeout = worker.timeout(self.config.timeout, n_pairs, flops, usual);
            let dispatch = job.wire.dispatch(&cells, self.config.form);
            let is_retry =
                kind == Kind::Ask && copies.is_empty() && cells.iter().any(|cell| job.cells[*cell].was_asked);
            for cell in &cells {
                job.cells[*cell].was_asked = true;
            }
            let may_hedge = kind == Kind::Ask && self.config.hedge.is_adaptive();
            let delay = if may_hedge { worker.hedge_delay(n_pairs) } else { None };
            let copied_bytes = job.wire.message_bytes(&copies);
            let attempt = self.attempts.insert(Attempt {
                job: id,
                worker: worker_id,
                cells: cells.clone(),
                copies: copies.clone(),
                kind,
                sent: now,
                hedge_at: delay.filter(|delay| *delay < timeout).map(|delay| now + delay),
                deadline: now + timeout,
                is_overdue: false,
            });
            self.afterlife.reuse(attempt);
            self.to_pump.insert(worker_id);
            if let Err(error) = connection.session.dispatch(now, attempt, &dispatch) {
                warn!(worker = worker.id().short(), %error, "a dispatch could not be sent");
                self.attempt_failed(now, attempt, true);
                continue;
            }
            worker.asked(now);
            if kind == Kind::Probe {
                worker.probe = Some((attempt, now + timeout));
                self.probes.insert((now + timeout, attempt, worker_id));
            }
            if let Some((tape, sent)) = self.tape.as_mut().zip(self.attempts.get(attempt)) {
                tape.asked(attempt, sent, worker.id(), &dispatch);
            }
            self.totals.dispatches += 1;
            self.totals.retries += u64::from(is_retry);
            if !copies.is_empty() {
                self.totals.duplicate_bytes += copied_bytes;
            }
            match kind {
                Kind::Probe => self.totals.probes += 1,
                Kind::Ask | Kind::Hedge => self.totals.hedges += u64::from(!copies.is_empty()),
            }
            if kind == Kind::Ask {
                self.budget.earn(job.wire.message_bytes(&cells));
            }
        }
    }

    fn ask_hub(&mut self, now: Duration, id: JobId, cells: Vec<usize>, kind: Kind) {
        let Some(job) = self.jobs.get_mut(&id).filter(|_| !cells.is_empty()) else { return };
        let is_hedge = kind == Kind::Hedge;
        self.last_compute = ComputeId(self.last_compute.0 + 1);
        self.n_computing += 1;
        self.totals.hub_computed += 1;
        self.totals.hedges += u64::from(is_hedge);
        self.hub_share.dispatches += 1;
        self.hub_share.rows += job.wire.n_pairs(&cells) as u64;
        let dispatch = job.wire.dispatch(&cells, self.config.form);
        for cell in &cells {
            job.cells[*cell].was_asked = true;
        }
        if let Some(tape) = &mut self.tape {
            tape.hub_asked(now, id, self.last_compute, &job.wire, &cells);
        }
        job.hub = Some(HubWork { id: self.last_compute, cells, is_hedge, sent: now });
        self.actions.push_back(Action::HubCompute(self.last_compute, dispatch));
    }
}

/// Who is asked for the cells of a job.
struct Asked {
    by: Vec<Vec<ConnectionId>>,
    n_in_time: Vec<usize>,
}
