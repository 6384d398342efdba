//! Events of a worker's process: it sends, computes, loads, and has faults.

use moex_kernels::engine::Output;
use moex_protocol::Visibility;
use moex_worker::core::{Core, Loaded, Status, Task};

use super::{
    Event, Notice, PeerId, World,
    engine::Engine,
    link::{Packet, time_of},
    peer::Kind,
    shared_host::Computation,
    worker::{FROM_STORE, Worker},
};

impl World {
    /// Hides, freezes or shows a worker's page.
    pub fn show(&mut self, id: PeerId, visibility: Visibility) {
        self.note(|| format!("peer {} is {visibility:?}", id.0));
        let now = self.now;
        if let Some(core) = self.core(id) {
            core.set_visibility(now, visibility);
            self.flush(id);
        }
    }

    /// A worker announces that it leaves, finishes its work, and ends.
    pub fn leave(&mut self, id: PeerId) {
        self.note(|| format!("peer {} leaves", id.0));
        let now = self.now;
        let Kind::Worker(worker) = &mut self.peers[id.0].kind else { return };
        worker.is_leaving = true;
        if let Some(core) = &mut worker.core {
            core.leave(now);
        }
        if self.peers[id.0].is_running && self.peers[id.0].connection.is_none() {
            return self.exit(id, "it left between two connections".to_owned());
        }
        self.flush(id);
    }

    /// Makes a worker compute slower than its device from the next message on: 100 is its normal time.
    pub fn slow(&mut self, id: PeerId, percent: u32) {
        self.note(|| format!("peer {} computes at {percent} % of its time", id.0));
        if let Kind::Worker(worker) = &mut self.peers[id.0].kind {
            worker.spec.device.slowdown_percent = percent;
        }
    }

    /// Makes this percentage of a worker's loads fail from now on.
    pub fn fail_loads(&mut self, id: PeerId, percent: u32) {
        self.note(|| format!("{percent} % of the loads of peer {} fail", id.0));
        if let Kind::Worker(worker) = &mut self.peers[id.0].kind {
            worker.failing_loads_percent = percent;
        }
    }

    /// The status that a running worker would show its user.
    pub fn worker_status(&self, id: PeerId) -> Option<Status> {
        let Kind::Worker(worker) = &self.peers[id.0].kind else { return None };
        worker.core.as_ref().map(Core::status)
    }

    /// A running worker's memory for experts.
    pub fn memory_budget(&self, id: PeerId) -> Option<u64> {
        match &self.peers[id.0].kind {
            Kind::Worker(worker) => worker.core.as_ref().map(|_| worker.spec.memory_budget_bytes),
            Kind::Hostile(_) => None,
        }
    }

    /// Whether a worker's device is at work.
    pub fn is_computing(&self, id: PeerId) -> bool {
        matches!(&self.peers[id.0].kind, Kind::Worker(worker) if worker.computing.is_some())
    }

    fn core(&mut self, id: PeerId) -> Option<&mut Core> {
        match &mut self.peers[id.0].kind {
            Kind::Worker(worker) => worker.core.as_mut(),
            Kind::Hostile(_) => None,
        }
    }

    /// Sends the core's messages, starts its tasks, and ends its connection if it wants that.
    pub(super) fn flush_worker(&mut self, id: PeerId) {
        loop {
            let connection = self.peers[id.0].connection;
            let Some(core) = self.core(id) else { return };
            if let Some(message) = core.poll_transmit() {
                let Some(connection) = connection else { continue };
                if self.send_up(connection, Packet::Binary(message)).is_err() {
                    self.reset_from_peer(connection);
                    return self.disconnected(id);
                }
            } else if let Some(task) = core.poll_task() {
                self.perform(id, task);
            } else if let (Some(connection), Some(code)) = (connection, core.close_code()) {
                self.note(|| format!("peer {} closes {} with {code}", id.0, connection.0));
                self.notices.push_back(Notice::ClosedByWorker(id, connection, code));
                self.close_from_peer(connection);
                return self.disconnected(id);
            } else {
                return;
            }
        }
    }

    fn perform(&mut self, id: PeerId, task: Task) {
        let (now, arithmetic) = (self.now, self.arithmetic);
        let peer = &mut self.peers[id.0];
        let (life, link) = (peer.life, &peer.link);
        let Kind::Worker(worker) = &mut peer.kind else { return };
        match task {
            Task::Plan { plan } => {
                worker.plans += 1;
                let made = Engine::new(arithmetic, plan).map(|engine| worker.engine = Some(engine));
                if let Some(core) = &mut worker.core {
                    core.planned(now, made);
                }
            }
            Task::Load { slot, source, .. } => {
                let fails = self.random.below(100) < worker.failing_loads_percent as usize;
                let bytes = source.end - source.start;
                let is_stored = worker.spec.is_stocked || worker.stored.contains(&source.block);
                let took = if is_stored {
                    FROM_STORE
                } else {
                    time_of(bytes as usize, link.down.bytes_per_s)
                        + link.up.delay.draw(&mut self.random)
                        + link.down.delay.draw(&mut self.random)
                };
                // Loads go through one link, one after another; requesting four at once hides only round trips.
                worker.load_free_at = worker.load_free_at.max(now) + took;
                let event = Event::Loaded {
                    peer: id,
                    life,
                    plan: worker.plans,
                    slot,
                    block: source.block,
                    downloaded: if is_stored { 0 } else { bytes },
                    result: if fails { Err("the fetch failed".to_owned()) } else { Ok(()) },
                };
                self.events.push(worker.load_free_at, event);
            }
            Task::Compute { attempt, batch, wanted } => {
                let (n_experts, n_pairs) = (batch.calls.len(), batch.n_pairs());
                worker.computing = Some((attempt, batch, wanted.products));
                if self.compute_on_shared_host(Computation { peer: id, life, attempt }, n_experts, n_pairs) {
                    return;
                }
                let Kind::Worker(worker) = &self.peers[id.0].kind else { return };
                let (sync, compute) = worker.spec.device.compute_time(n_experts, n_pairs, &mut self.random);
                let took = sync + compute;
                self.time_work(attempt, sync, compute);
                self.traffic.compute += took;
                self.events.push(now + took, Event::Computed { peer: id, life, attempt });
                self.note(|| format!("peer {} computes {n_pairs} pairs of {attempt} in {took:?}", id.0));
            }
            Task::Stop(reason) => self.exit(id, reason),
        }
    }

    /// A load or a computation has ended.
    pub(super) fn device_done(&mut self, event: Event) {
        let (Event::Loaded { peer: id, life, .. } | Event::Computed { peer: id, life, .. }) = event else {
            return;
        };
        let (now, peer) = (self.now, &mut self.peers[id.0]);
        if peer.life != life || !peer.is_running {
            return;
        }
        if peer.frozen_until > now {
            self.events.push(peer.frozen_until, event);
            return;
        }
        let Kind::Worker(worker) = &mut peer.kind else { return };
        let Worker { core: Some(core), engine: Some(engine), plans, stored, computing, .. } = worker.as_mut()
        else {
            return;
        };
        match event {
            Event::Loaded { plan, slot, block, downloaded, result, .. } if plan == *plans => {
                let bytes = self.model.summary().block_bytes;
                let loaded = result.and_then(|()| {
                    let content =
                        self.model.block(block).ok_or_else(|| "there is no such block".to_owned())?;
                    engine.load(slot, self.model.format(), content)?;
                    stored.insert(block);
                    self.traffic.bytes_loaded += downloaded;
                    Ok(Loaded { bytes, downloaded })
                });
                core.loaded(now, block, loaded);
            }
            Event::Computed { attempt, .. } => {
                let due = computing.take_if(|(computed, ..)| *computed == attempt);
                if let Some((_, batch, wants_products)) = due {
                    core.computed(now, attempt, engine.compute(&batch, wants_products).map(Output::from));
                }
            }
            _ => return,
        }
        self.flush(id);
    }
}
