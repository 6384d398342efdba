//! Simulates a trace's workload on fitted links and devices: the shipped swarm on virtual time gets the same rows for
//! the same experts, from a hub with fitted times between layers.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use moex_protocol::Routing;
use moex_protocol::{LayerId, WorkerId};
use moex_swarm::{JobId, JoinToken, LayerJob, SwarmConfig, Verify};

use super::{
    Figures, Fit, ReplayError,
    fit::WorkerFit,
    trace::{Step, Trace},
};
use crate::world::{
    Arithmetic, Death, Delay, Device, HubDevice, Lane, Link, Member, Model, Notice, PeerId, SharedHost,
    WorkerSpec, World, WorldConfig, from_millis,
};

/// The token that workers show to join.
const TOKEN: &str = "replayed";
/// The most time that workers may take to load their blocks before the first step, and the interval of checks.
const MAX_START: Duration = Duration::from_mins(10);
const START_STEP: Duration = Duration::from_millis(250);

/// Simulates all steps; returns the figures of those from `n_warm_up` on.
///
/// # Errors
/// If the swarm cannot compute a layer.
pub fn predict(trace: &Trace, fit: &Fit, n_warm_up: usize, seed: u64) -> Result<Figures, ReplayError> {
    let mut play = Play::new(trace, fit, seed);
    play.wait_for_workers();
    for (number, step) in trace.steps.iter().enumerate() {
        play.come_and_go(step.begun);
        if number == n_warm_up {
            play.figures = Figures::default();
            play.counted = play.totals();
        }
        play.step(number, step)?;
    }
    Ok(play.finish())
}

struct Play<'a> {
    trace: &'a Trace,
    fit: &'a Fit,
    world: World,
    peers: BTreeMap<WorkerId, PeerId>,
    n_jobs: u64,
    figures: Figures,
    /// Dispatches and hedges when counting began.
    counted: (u64, u64),
}

impl<'a> Play<'a> {
    fn new(trace: &'a Trace, fit: &'a Fit, seed: u64) -> Self {
        let hub = &trace.hub;
        let model = Arc::new(Model::of_sizes(&trace.sizes));
        let mut world = World::new(WorldConfig {
            swarm: SwarmConfig {
                replicas: hub.replicas,
                hedge: hub.hedge,
                verify: Verify::Audit,
                check_every: hub.check_every,
                seed,
                timeout: Duration::from_micros(hub.timeout),
                hub_compute: hub.hub_compute,
                wire: hub.wire,
                ..SwarmConfig::new(JoinToken::new(TOKEN), model.summary().clone())
            },
            model,
            arithmetic: Arithmetic::Zeros,
            hub: HubDevice {
                device: fit.hub.device.as_ref().map_or_else(instant, device),
                bytes_per_s: None,
            },
            seed,
            is_traced: false,
        });
        let mut peers = BTreeMap::new();
        let begin = trace.steps.first().map_or(0, |step| step.begun);
        for (id, worker) in &trace.workers {
            // A worker that never answered has no known device, and holds nothing here.
            let Some(fit) = fit.workers.get(id) else { continue };
            let lane = || Lane::new(Delay::Fixed(from_millis(fit.round_trip_ms / 2.0)), None);
            let peer = world.add_worker(WorkerSpec {
                id: *id,
                token: TOKEN.to_owned(),
                link: Link { up: lane(), down: lane() },
                device: instant(),
                memory_budget_bytes: worker.joined.memory_budget_bytes,
                input_slots: worker.joined.input_slots,
                sync_latency_micros: worker.joined.sync_latency,
                teraflops: worker.joined.teraflops.unwrap_or(f32::NAN),
                is_stocked: true,
            });
            peers.insert(*id, peer);
            if !worker.is_there(begin) {
                world.kill(peer, Death::Reset);
            }
        }
        let members = peers.iter().map(|(id, peer)| (*peer, member(&fit.workers[id])));
        world.share(SharedHost { contention: fit.contention, seed, members: members.collect() });
        Self { trace, fit, world, peers, n_jobs: 0, figures: Figures::default(), counted: (0, 0) }
    }

    fn wait_for_workers(&mut self) {
        while self.world.now() < MAX_START {
            self.advance(self.world.now() + START_STEP);
            let status = self.world.swarm().status();
            let holds_all =
                |worker: &moex_swarm::WorkerStatus| worker.blocks_resident >= worker.blocks_assigned;
            let n_running = self.peers.values().filter(|peer| self.world.is_running(**peer)).count();
            if status.workers.len() == n_running && status.workers.iter().all(holds_all) {
                return;
            }
        }
    }

    /// Workers that joined or left in reality before this step do so now.
    fn come_and_go(&mut self, at: u64) {
        for (id, peer) in &self.peers {
            let is_there = self.trace.workers[id].is_there(at);
            match (is_there, self.world.is_running(*peer)) {
                (true, false) => self.world.start(*peer),
                (false, true) => self.world.kill(*peer, Death::Reset),
                _ => {}
            }
        }
    }

    fn step(&mut self, number: usize, step: &Step) -> Result<(), ReplayError> {
        let hub = &self.fit.hub;
        let begun = self.world.now();
        for (at, layer) in step.layers.iter().enumerate() {
            let attention = if at == 0 { hub.begin } else { hub.attention };
            self.spend(attention.at(step.rows) + hub.hand_over.at(layer.rows));
            let rows = vec![0.0; layer.rows as usize * self.trace.sizes.shape.hidden];
            let k = usize::from(self.trace.sizes.k);
            let gates = vec![1.0 / k as f32; layer.experts.len()];
            let routing = Routing { k, experts: layer.experts.clone(), gates };
            self.n_jobs += 1;
            let started = self.world.now();
            let job = LayerJob { layer: LayerId(layer.layer), rows, routing };
            self.world.start_layer(JobId(self.n_jobs), job);
            self.wait_for_layer().map_err(|why| ReplayError::Layer {
                step: number,
                layer: layer.layer,
                why,
            })?;
            self.figures.layers.record(self.world.now() - started);
            self.spend(hub.combine.at(layer.rows));
        }
        self.spend(hub.end.at(step.rows));
        self.figures.tokens += u64::from(step.tokens);
        self.figures.steps += 1;
        self.figures.time += self.world.now() - begun;
        Ok(())
    }

    fn wait_for_layer(&mut self) -> Result<(), String> {
        loop {
            while let Some(notice) = self.world.poll_notice() {
                if let Notice::Finished(_, result) = notice {
                    return result.map(|_| ()).map_err(|error| error.to_string());
                }
            }
            if !self.world.step() {
                return Err("nothing happens any more".to_owned());
            }
        }
    }

    fn spend(&mut self, ms: f64) {
        self.advance(self.world.now() + from_millis(ms));
    }

    fn advance(&mut self, until: Duration) {
        loop {
            self.world.drive(until);
            if self.world.poll_notice().is_none() {
                return;
            }
        }
    }

    fn totals(&self) -> (u64, u64) {
        let totals = self.world.swarm().status().totals;
        (totals.dispatches, totals.hedges)
    }

    fn finish(mut self) -> Figures {
        let (now, before) = (self.totals(), self.counted);
        self.figures.dispatches = now.0 - before.0;
        self.figures.hedges = now.1 - before.1;
        self.figures
    }
}

impl super::trace::Worker {
    /// Whether it was joined at this time.
    fn is_there(&self, at: u64) -> bool {
        let last = |times: &[u64]| times.iter().rev().find(|time| **time <= at).copied();
        last(&self.came).is_some_and(|came| last(&self.left).is_none_or(|left| left <= came))
    }
}

/// The hub's own device, which shares nothing.
fn device(fit: &WorkerFit) -> Device {
    Device {
        per_message: Delay::Random(fit.per_message.clone()),
        per_expert: from_millis(fit.per_expert_ms),
        per_pair: from_millis(fit.per_pair_ms),
        slowdown_percent: 100,
    }
}

fn member(fit: &WorkerFit) -> Member {
    Member {
        per_expert_ms: fit.per_expert_ms,
        per_pair_ms: fit.per_pair_ms,
        per_message: fit.per_message.clone(),
        moments: Arc::clone(&fit.moments),
    }
}

/// A device that takes no time. It stands for a hub that was never seen to compute, and for workers that share a host.
fn instant() -> Device {
    Device {
        per_message: Delay::Fixed(Duration::ZERO),
        per_expert: Duration::ZERO,
        per_pair: Duration::ZERO,
        slowdown_percent: 100,
    }
}
