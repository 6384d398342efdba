//! Generates from a seed a tiny model, the swarm's settings, a fleet, work, and a plan of faults.

use std::{sync::Arc, time::Duration};

use moex_kernels::{ExpertShape, WeightFormat};
use moex_protocol::Routing;
use moex_protocol::{CompressionMode, Dtype, LayerId, ModelSummary, WorkerId};
use moex_swarm::{Hedge, JoinToken, LayerJob, Probation, SwarmConfig, Verify};

use crate::{
    random::Random,
    world::{
        Attack, Death, Delay, Device, HostileSpec, HubDevice, Lane, Link, Model, Sizes, Toward, WorkerSpec,
    },
};

/// The token that workers must show.
const TOKEN: &str = "chaos";
/// The longest a process is frozen or a link stalled.
const MAX_OUTAGE: Duration = Duration::from_secs(12);

/// The scenario of a seed.
pub(super) struct Scenario {
    pub(super) random: Random,
    pub(super) model: Arc<Model>,
    pub(super) swarm: SwarmConfig,
    pub(super) hub: HubDevice,
    /// How long faults are injected.
    pub(super) length: Duration,
    pub(super) acts: Vec<(Duration, Fault)>,
    /// Jobs that follow one another, as a conversation's layers do.
    pub(super) n_chained: usize,
    /// Whether only hostile peers do harm and the hub computes: then every layer finishes soon.
    pub(super) is_prompt: bool,
    /// Whether many new keys come to workers that each hold the model and have proven themselves.
    pub(super) has_sybils: bool,
    workers: u128,
}

/// A fault. The peer that it hits is drawn when it happens.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    StartJob,
    Join,
    JoinHostile,
    Kill(Death),
    /// A process that was killed or left comes back, with its id and its store.
    Restart(usize),
    Freeze(Duration),
    Hide(Duration),
    Show(usize),
    Stall(Toward, Duration),
    Partition(Duration),
    Reset,
    Slow(u32),
    SlowHub(u32),
    Leave,
    FailLoads(u32),
    ShutDown,
}

impl Scenario {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed, 1);
        let sizes = sizes(&mut random);
        let model = Arc::new(Model::with_weights(&sizes, &mut random));
        let swarm = swarm(&mut random, model.summary());
        let hub_pair = Duration::from_micros(upto(&mut random, 3_000));
        let hub = HubDevice {
            device: Device {
                per_message: Delay::Uniform { least: Duration::ZERO, most: Duration::from_millis(5) },
                per_expert: Duration::from_micros(20),
                per_pair: hub_pair,
                slowdown_percent: 100,
            },
            // A gigabit: the largest message delays everybody's heartbeats, but by less than they may be late.
            bytes_per_s: (random.below(4) == 0).then_some(125_000_000),
        };
        let length = Duration::from_millis(3_000 + upto(&mut random, 12_000));
        let mut scenario = Self {
            random,
            model,
            swarm,
            hub,
            length,
            acts: Vec::new(),
            n_chained: 0,
            is_prompt: false,
            has_sybils: false,
            workers: 0,
        };
        scenario.plan();
        scenario
    }

    /// Plans a fleet that joins within the first moments, then work and faults spread over the time.
    fn plan(&mut self) {
        for _ in 0..self.random.below(6) {
            let at = Duration::from_micros(upto(&mut self.random, 300_000));
            self.acts.push((at, Fault::Join));
        }
        if self.random.below(3) == 0 {
            for _ in 0..=self.random.below(2) {
                self.at_random_time(Fault::JoinHostile);
            }
        }
        self.has_sybils = self.random.below(8) == 0;
        if self.has_sybils {
            for _ in 0..self.swarm.replicas {
                self.acts.push((Duration::ZERO, Fault::Join));
            }
            for _ in 0..3 + self.random.below(8) {
                let at = self.length / 2 + Duration::from_micros(upto(&mut self.random, 1_000_000));
                self.acts.push((at, Fault::JoinHostile));
            }
        }
        // Enough jobs that workers become known in scenarios where every layer finishes.
        self.n_chained = self.random.below(if self.swarm.hub_compute { 60 } else { 8 });
        for _ in 0..1 + self.random.below(8) {
            self.at_random_time(Fault::StartJob);
        }
        // A third of the seeds are calm: in these, nothing may fail that could have succeeded.
        let is_calm = self.random.below(3) == 0;
        self.is_prompt = is_calm && self.swarm.hub_compute;
        if !is_calm {
            for _ in 0..1 + self.random.below(10) {
                let act = self.harm();
                self.at_random_time(act);
            }
        }
        if self.random.below(20) == 0 {
            let at = self.length - Duration::from_millis(upto(&mut self.random, 500));
            self.acts.push((at, Fault::ShutDown));
        }
    }

    fn at_random_time(&mut self, act: Fault) {
        let at = Duration::from_micros(upto(&mut self.random, self.length.as_micros() as u64));
        self.acts.push((at, act));
    }

    fn harm(&mut self) -> Fault {
        let random = &mut self.random;
        let time = Duration::from_micros(upto(random, MAX_OUTAGE.as_micros() as u64));
        let death = if random.below(2) == 0 { Death::Reset } else { Death::Silent };
        let toward = if random.below(2) == 0 { Toward::Hub } else { Toward::Worker };
        match random.below(13) {
            0 | 1 => Fault::Kill(death),
            2 => Fault::Freeze(time),
            3 => Fault::Hide(time),
            4 | 5 => Fault::Stall(toward, time),
            6 => Fault::Partition(time),
            7 => Fault::Reset,
            8 => Fault::Slow(200 + random.below(5_000) as u32),
            9 => Fault::SlowHub(100 + random.below(1_000) as u32),
            10 => Fault::Leave,
            11 => Fault::FailLoads(random.below(101) as u32),
            _ => Fault::Join,
        }
    }

    /// A layer of work with random rows and routing.
    pub(super) fn job(&mut self) -> LayerJob {
        let summary = self.model.summary();
        let (hidden, n_experts) = (summary.hidden as usize, summary.n_experts as usize);
        let k = summary.n_experts_per_token as usize;
        let max_rows = summary.max_rows as usize / k;
        let random = &mut self.random;
        let n_rows = 1 + random.below(max_rows);
        let layer = LayerId(random.below(summary.n_layers as usize) as u16);
        let rows = (0..n_rows * hidden).map(|_| random.uniform() as f32 * 4.0 - 2.0).collect();
        let mut experts = Vec::with_capacity(n_rows * k);
        for _ in 0..n_rows {
            let mut open: Vec<u16> = (0..n_experts as u16).collect();
            experts.extend((0..k).map(|_| open.swap_remove(random.below(open.len()))));
        }
        let gates = (0..n_rows * k).map(|_| random.uniform() as f32).collect();
        LayerJob { layer, rows, routing: Routing { k, experts, gates } }
    }

    /// A worker, and whether its link is so bad that its sessions may end because of it.
    pub(super) fn worker(&mut self) -> (WorkerSpec, bool) {
        self.workers += 1;
        let block_bytes = self.model.summary().block_bytes;
        let n_blocks = self.model.catalog().len();
        let random = &mut self.random;
        let is_bad = random.below(8) == 0;
        let spec = WorkerSpec {
            id: WorkerId(self.workers),
            token: TOKEN.to_owned(),
            link: link(random, is_bad),
            device: Device {
                per_message: Delay::Uniform {
                    least: Duration::ZERO,
                    most: Duration::from_micros(1 + upto(random, 20_000)),
                },
                per_expert: Duration::from_micros(upto(random, 1_000)),
                per_pair: Duration::from_micros(upto(random, 1_000)),
                slowdown_percent: 100,
            },
            memory_budget_bytes: block_bytes * (1 + random.below(n_blocks + 2)) as u64,
            input_slots: 1 + random.below(4) as u8,
            sync_latency_micros: upto(random, 100_000),
            teraflops: if random.below(4) == 0 { f32::NAN } else { 0.1 },
            is_stocked: false,
        };
        if self.has_sybils {
            return (self.quick_and_large(spec), false);
        }
        (spec, is_bad)
    }

    /// A worker that holds the whole model and is faster than the hub, so that it soon proves itself.
    fn quick_and_large(&self, spec: WorkerSpec) -> WorkerSpec {
        let delay = Delay::Uniform { least: Duration::from_micros(50), most: Duration::from_micros(500) };
        let link = Link { up: Lane::new(delay.clone(), None), down: Lane::new(delay.clone(), None) };
        let per_pair = Duration::from_micros(10);
        let device = Device { per_message: delay, per_expert: per_pair, per_pair, slowdown_percent: 100 };
        let memory_budget_bytes = self.model.summary().block_bytes * self.model.catalog().len() as u64;
        WorkerSpec { link, device, memory_budget_bytes, sync_latency_micros: 50, ..spec }
    }

    pub(super) fn hostile(&mut self) -> HostileSpec {
        self.workers += 1;
        let block_bytes = self.model.summary().block_bytes;
        // Only the hub can tell a plausible lie from the truth, if it checks or computes every answer before the answer
        // is used.
        let is_checked = self.swarm.check_every == 1 || self.swarm.verify != Verify::Audit;
        let may_lie = self.swarm.hub_compute && is_checked;
        let random = &mut self.random;
        let n_misdeeds = 1 + random.below(5);
        let deeds = &Attack::ALL[usize::from(!may_lie)..];
        HostileSpec {
            id: WorkerId(self.workers),
            token: if random.below(8) == 0 { "guess".to_owned() } else { TOKEN.to_owned() },
            link: link(random, false),
            delay: Delay::Uniform {
                least: Duration::ZERO,
                most: Duration::from_micros(1 + upto(random, 30_000)),
            },
            memory_budget_bytes: if random.below(2) == 0 { u64::MAX } else { 2 * block_bytes },
            teraflops: [f32::MAX, 1e-9, f32::NAN, 0.1][random.below(4)],
            fails_loads: random.below(5) == 0,
            attacks: (0..n_misdeeds).map(|_| deeds[random.below(deeds.len())]).collect(),
        }
    }
}

fn sizes(random: &mut Random) -> Sizes {
    let n_experts = 2 + random.below(7) as u16;
    // Every format now and then, but mostly those that take no time to pack.
    let quick = [WeightFormat::F32, WeightFormat::F16, WeightFormat::Bf16, WeightFormat::Int4G128];
    let all = WeightFormat::ALL;
    let format =
        if random.below(8) == 0 { all[random.below(all.len())] } else { quick[random.below(quick.len())] };
    let shape = ExpertShape::uniform(1 + random.below(24), 1 + random.below(12), format);
    Sizes {
        shape,
        n_layers: 1 + random.below(2) as u16,
        n_experts,
        k: 1 + random.below(usize::from(n_experts).min(3)) as u16,
        max_rows: 1 + random.below(5) as u32,
    }
}

fn swarm(random: &mut Random, model: &ModelSummary) -> SwarmConfig {
    SwarmConfig {
        replicas: 1 + random.below(3),
        hedge: hedge(random),
        timeout: Duration::from_millis(20 + upto(random, 800)),
        max_failures: 1 + random.below(4) as u32,
        wire: [Dtype::F16, Dtype::Bf16, Dtype::Int8][random.below(3)],
        compression: if random.below(4) == 0 { CompressionMode::On } else { CompressionMode::Off },
        hub_compute: random.below(3) > 0,
        check_every: [0, 1, 3, 256][random.below(4)],
        probation: Probation { items: [1, 4, 64][random.below(3)], ..Probation::default() },
        verify: [Verify::Audit, Verify::Blocking, Verify::Exact][random.below(3)],
        seed: random.below(1 << 32) as u64,
        // Longer than a heartbeat and its echo: if the only worker is unhealthy, its next heartbeat brings it back.
        coverage_wait: Duration::from_millis(2_500 + upto(random, 8_000)),
        heartbeat_interval: Duration::from_millis(500 + upto(random, 1_500)),
        ..SwarmConfig::new(JoinToken::new(TOKEN), model.clone())
    }
}

/// A link that always delivers heartbeats in time, or one that may not.
fn link(random: &mut Random, is_bad: bool) -> Link {
    let (most, rate) = if is_bad { (3_000_000, 5_000) } else { (150_000, 500_000) };
    let mut lane = || {
        let least = Duration::from_micros(50 + upto(random, most / 4));
        let delay = Delay::Uniform { least, most: least + Duration::from_micros(upto(random, most / 2)) };
        Lane::new(delay, (random.below(2) == 0).then(|| rate + upto(random, rate * 10)))
    };
    Link { up: lane(), down: lane() }
}

fn hedge(random: &mut Random) -> Hedge {
    match random.below(5) {
        0 => Hedge::Adaptive { budget: random.uniform() * 0.5 },
        h => Hedge::Fixed(h as u8),
    }
}

fn upto(random: &mut Random, most: u64) -> u64 {
    random.below(most as usize + 1) as u64
}
