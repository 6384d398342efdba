//! Turns jobs into messages: which items are requested, from which workers, and when they are requested again.
//!
//! Only [`Dispatcher::cover_next`] sends requests: it takes a job's items that are neither settled nor requested in
//! time, and requests them from the workers that `candidates` chooses, otherwise from the hub. Every event (an answer,
//! a failure, a timeout, a closed socket, a new holder, a free slot) only marks jobs to be covered again.
//! [`Dispatcher::hedge`] sends second copies of late requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use moex_protocol::{AttemptId, Dispatch, Reply};
use tracing::debug;

use super::asked_workers::AskedWorkers;
use super::attempts::{Attempt, Kind};
use super::candidates::Choice;
use super::error::JobError;
use super::job::{HubWork, Job};
use super::layer::{EncodedLayer, Share, group_by_worker};
use super::{Dispatcher, Order};
use crate::fleet::{BlockCatalog, Fleet};
use crate::{ConnectionId, JobId};

/// Layers in flight at a time.
pub const MAX_JOBS: usize = 64;

impl Dispatcher {
    /// Starts a layer. Its result comes as [`Order::Finish`]. None if it fails at once.
    pub(crate) fn start(
        &mut self,
        now: Duration,
        id: JobId,
        layer: EncodedLayer,
        catalog: &BlockCatalog,
    ) -> Option<Arc<EncodedLayer>> {
        match self.admit(&layer, catalog) {
            Ok(()) => {
                let layer = Arc::new(layer);
                self.record(|recorder| recorder.started(now, id, &layer));
                self.jobs.insert(id, Job::new(layer.clone(), now));
                self.to_cover.insert(id);
                Some(layer)
            }
            Err(error) => {
                self.orders.push_back(Order::Finish(id, Err(error)));
                None
            }
        }
    }

    fn admit(&self, layer: &EncodedLayer, catalog: &BlockCatalog) -> Result<(), JobError> {
        if self.is_shutting_down {
            return Err(JobError::ShuttingDown);
        }
        if self.jobs.len() >= MAX_JOBS {
            return Err(JobError::Busy { max: MAX_JOBS });
        }
        let missing = layer.load().map(|(block, _)| block).find(|block| catalog.index(*block).is_none());
        missing.map_or(Ok(()), |block| Err(JobError::NoSuchBlock { block }))
    }

    /// Covers the next marked job. False if none is marked.
    pub(crate) fn cover_next(&mut self, now: Duration, fleet: &Fleet) -> bool {
        let Some(id) = self.to_cover.pop_first() else { return false };
        self.cover(now, fleet, id);
        true
    }

    /// Requests every item of the job that is not requested in time.
    fn cover(&mut self, now: Duration, fleet: &Fleet, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        if job.is_settled() {
            return self.finish(id, now, Ok(()));
        }
        let mut asked = self.asked(id, job);
        for item in job.hub.iter().flat_map(|work| &work.items) {
            asked.n_in_time[*item] += self.config.needed_answers();
            asked.n_with_rows[*item] += 1;
        }
        let mut is_withheld = vec![false; job.items.len()];
        for part in job.withheld.iter().flat_map(|answer| &answer.parts) {
            is_withheld[part.item] = true;
        }
        for (item, state) in job.items.iter().enumerate() {
            is_withheld[item] |= state.is_disputed;
        }
        let (withheld, open): (Vec<usize>, Vec<usize>) = (0..job.items.len())
            .filter(|item| !job.items[*item].is_settled)
            .filter(|item| asked.missing(&self.config, job, *item) > 0 || is_withheld[*item])
            .partition(|item| is_withheld[*item]);
        let hub_is_busy = !self.config.hub_compute || job.hub.is_some();
        let choice = self.chooser(fleet).choose(job, &open, &asked);
        let mut probes = self.probes(now, fleet, job, &choice);
        if self.may_sweep(now) {
            self.workers.swept(now);
        }
        let mut is_waiting = choice.is_short;
        let mut is_uncovered = false;
        let mut for_hub = choice.for_hub;
        for_hub.extend(withheld);
        for_hub.sort_unstable();
        if !for_hub.is_empty() && hub_is_busy {
            is_waiting = true;
            is_uncovered = !self.config.hub_compute && choice.is_uncovered;
            for_hub.clear();
        }
        for (worker, mut share) in
            group_by_worker(choice.trials.into_iter().map(|(item, new)| (item, vec![new])))
        {
            share.copies.clone_from(&share.items);
            probes.insert(worker, share);
        }
        let shares = self.replies(job, choice.candidates, |item| asked.has_rows(job, item, 0));
        let shares = group_by_worker(shares);
        let rows = job.layer.reply();
        if let Some(job) = self.jobs.get_mut(&id) {
            job.is_waiting = is_waiting;
            job.uncovered_since = is_uncovered.then(|| job.uncovered_since.unwrap_or(now));
        }
        self.ask_hub(now, id, for_hub, Kind::Ask);
        self.ask_workers(now, id, shares, Kind::Ask);
        let probes = probes.into_iter().map(|(worker, share)| ((worker, rows), share)).collect();
        self.ask_workers(now, id, probes, Kind::Probe);
    }

    /// Sends second copies of late requests, within the budget.
    pub(super) fn hedge(&mut self, now: Duration, fleet: &Fleet) {
        for late in self.attempts.due_for_hedge(now) {
            let Some(attempt) = self.attempts.get(late).cloned() else { continue };
            if let Some(worker) = self.workers.get_mut(attempt.worker) {
                worker.health.late();
            }
            let Some(job) = self.jobs.get(&attempt.job) else { continue };
            let asked = self.asked(attempt.job, job);
            let open: Vec<usize> = attempt
                .items
                .iter()
                .copied()
                .filter(|item| !job.items[*item].is_settled && asked.is_just_enough(&self.config, job, *item))
                .collect();
            let choice = self.chooser(fleet).choose(job, &open, &asked);
            let mut shares = BTreeMap::new();
            // The late one may never answer: its rows are asked for again.
            let n_late = usize::from(attempt.reply != Reply::Digests);
            let candidates = self.replies(job, choice.candidates, |item| asked.has_rows(job, item, n_late));
            for ((worker, reply), share) in group_by_worker(candidates) {
                if self.budget.spend(job.layer.message_bytes(&share.items, reply)) {
                    let copies = share.items.clone();
                    shares.insert((worker, reply), Share { copies, ..share });
                } else {
                    self.counts.hedges_denied += 1;
                }
            }
            let n_pairs = job.layer.n_pairs(&choice.for_hub);
            let hub_is_in_time =
                self.hub.usual(n_pairs).is_none_or(|expected| now + expected < attempt.deadline);
            let may_hub = self.config.hub_compute && job.hub.is_none() && hub_is_in_time;
            debug!(attempt = late.0, connection = attempt.worker.0, "late: hedged at another worker");
            if may_hub {
                self.ask_hub(now, attempt.job, choice.for_hub, Kind::Hedge);
            }
            self.ask_workers(now, attempt.job, shares, Kind::Hedge);
        }
    }

    /// The workers that are asked for each item of a job. Probes do not count as in time, since nothing waits for them.
    fn asked(&self, id: JobId, job: &Job) -> AskedWorkers {
        let n = job.items.len();
        let mut asked =
            AskedWorkers { by: vec![Vec::new(); n], n_in_time: vec![0; n], n_with_rows: vec![0; n] };
        for (_, attempt) in self.attempts.iter().filter(|(_, attempt)| attempt.job == id) {
            let is_in_time = !attempt.is_overdue && attempt.kind != Kind::Probe;
            for item in &attempt.items {
                asked.by[*item].push(attempt.worker);
                asked.n_in_time[*item] += usize::from(is_in_time);
                asked.n_with_rows[*item] += usize::from(is_in_time && attempt.reply != Reply::Digests);
            }
        }
        asked
    }

    /// Whether a worker that has been idle for long may be probed now.
    fn may_sweep(&self, now: Duration) -> bool {
        self.config.hedge.is_adaptive() && self.workers.may_sweep(now)
    }

    /// Workers to probe, each with an item that it holds and another worker is asked for: late or unhealthy ones that
    /// are alive, and occasionally one that has been idle for long, a few times in a row.
    fn probes(
        &self,
        now: Duration,
        fleet: &Fleet,
        job: &Job,
        choice: &Choice,
    ) -> BTreeMap<ConnectionId, Share> {
        let mut probes = BTreeMap::new();
        let chooser = self.chooser(fleet);
        let (may_sweep, is_adaptive) = (self.may_sweep(now), self.config.hedge.is_adaptive());
        let mut is_swept = false;
        let asked = choice.candidates.iter().filter(|(_, workers)| !workers.is_empty());
        let asked = asked.map(|(item, workers)| (*item, workers.as_slice()));
        for (item, workers) in asked.chain(choice.for_hub.iter().map(|item| (*item, &[][..]))) {
            let Some(index) = fleet.catalog().index(job.block(item)) else { continue };
            for holder in fleet.holders(index).iter().filter(|holder| !workers.contains(holder)) {
                let Some(worker) = self.workers.get(*holder).filter(|w| w.probe.is_none()) else { continue };
                if probes.contains_key(holder) || !fleet.is_present(*holder) {
                    continue;
                }
                let is_next =
                    may_sweep && !is_swept && worker.is_due_for_probe(now) && chooser.is_usable(*holder);
                let is_awake = is_adaptive && worker.is_due_while_awake(now) && chooser.is_usable(*holder);
                if worker.health.is_to_be_tried(now) || is_next || is_awake {
                    is_swept |= is_next;
                    probes.insert(*holder, Share { items: vec![item], copies: vec![item] });
                }
            }
        }
        probes
    }

    /// The usual time of the hub or the swarm for this many pairs, if it was measured.
    fn usual(&self, n_pairs: usize) -> Option<Duration> {
        let hub = self.config.hub_compute.then(|| self.hub.usual(n_pairs)).flatten();
        [hub, self.workers.usual(n_pairs)].into_iter().flatten().min()
    }

    fn ask_workers(
        &mut self,
        now: Duration,
        id: JobId,
        shares: BTreeMap<(ConnectionId, Reply), Share>,
        kind: Kind,
    ) {
        let flops_per_pair = self.config.flops_per_pair();
        let Some(layer) = self.layer_of(id).cloned() else { return };
        // Before any of these: two that are asked at once do not repeat each other.
        let Some(job) = self.jobs.get(&id) else { return };
        let was_asked: Vec<bool> = job.items.iter().map(|item| item.was_asked).collect();
        let messages = shares.into_iter().flat_map(|(to, share)| {
            let by_message = layer.by_message(&share.items).into_iter();
            by_message.map(move |items| {
                let copies = share.copies.iter().copied().filter(|item| items.contains(item)).collect();
                (to, Share { items, copies })
            })
        });
        for ((to, reply), Share { items, copies }) in messages {
            let Some(n_pairs) = self.jobs.get(&id).map(|job| job.layer.n_pairs(&items)) else { return };
            let usual = self.usual(n_pairs);
            let Some(job) = self.jobs.get_mut(&id) else { return };
            let Some(worker) = self.workers.get(to) else { continue };
            let flops = n_pairs as f64 * flops_per_pair;
            let timeout = worker.timeout(self.config.timeout, n_pairs, flops, usual);
            let dispatch = Dispatch { reply, ..job.layer.dispatch(&items) };
            let is_retry =
                kind == Kind::Ask && copies.is_empty() && items.iter().any(|item| was_asked[*item]);
            for item in &items {
                job.items[*item].was_asked = true;
            }
            let may_hedge = kind == Kind::Ask && self.config.hedge.is_adaptive();
            let delay = if may_hedge { worker.hedge_delay(n_pairs) } else { None };
            let attempt = self.attempts.insert(Attempt {
                job: id,
                worker: to,
                items,
                copies,
                kind,
                reply,
                is_retry,
                sent: now,
                hedge_at: delay.filter(|delay| *delay < timeout).map(|delay| now + delay),
                deadline: now + timeout,
                is_overdue: false,
            });
            self.late_answers.reuse(attempt);
            self.orders.push_back(Order::Send { to, attempt, dispatch });
        }
    }

    /// An attempt was sent as `dispatch`.
    pub(crate) fn sent(&mut self, now: Duration, id: AttemptId, dispatch: &Dispatch) {
        let Some(attempt) = self.attempts.get(id) else { return };
        let Some(job) = self.jobs.get(&attempt.job) else { return };
        let Some(worker) = self.workers.get_mut(attempt.worker) else { return };
        worker.asked(now, attempt.kind);
        let worker = worker.id();
        if attempt.kind == Kind::Probe {
            self.workers.probe_sent(attempt.worker, id, attempt.deadline);
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.asked(id, attempt, worker, dispatch);
        }
        let has_copies = !attempt.copies.is_empty();
        self.counts.dispatches += 1;
        self.counts.retries += u64::from(attempt.is_retry);
        if has_copies {
            self.counts.duplicate_bytes += job.layer.message_bytes(&attempt.copies, attempt.reply);
        }
        match attempt.kind {
            Kind::Probe => self.counts.probes += 1,
            Kind::Ask | Kind::Hedge => self.counts.hedges += u64::from(has_copies),
        }
        if attempt.kind == Kind::Ask {
            self.budget.earn(job.layer.message_bytes(&attempt.items, attempt.reply));
        }
    }

    fn ask_hub(&mut self, now: Duration, id: JobId, items: Vec<usize>, kind: Kind) {
        let Some(job) = self.jobs.get_mut(&id).filter(|_| !items.is_empty()) else { return };
        let is_hedge = kind == Kind::Hedge;
        let compute = self.hub.begin();
        self.hub.counts.dispatches += 1;
        self.hub.counts.rows += job.layer.n_pairs(&items) as u64;
        self.counts.hub_computed += 1;
        self.counts.hedges += u64::from(is_hedge);
        let dispatch = job.layer.dispatch(&items);
        for item in &items {
            job.items[*item].was_asked = true;
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.hub_asked(now, id, compute, items.len(), job.layer.n_pairs(&items));
        }
        job.hub = Some(HubWork { id: compute, items, is_hedge, sent: now });
        self.orders.push_back(Order::Compute(compute, dispatch));
    }
}
