//! Runs a scenario: the hub's decode loop, layer by layer, over a [`World`] whose experts answer zeros of the right shape.
//!
//! The hub takes its own time for attention, messages, sums and the head; everything between a layer's start and its
//! answer is what the shipped swarm and workers do on the scenario's links and devices.

mod histogram;
mod outcome;
mod routing;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use moex_hub::model::Routing;
use moex_hub::swarm::{JobId, JoinToken, LayerJob, SwarmConfig};
use moex_protocol::{LayerId, WorkerId};

pub use self::{
    histogram::Histogram,
    outcome::{Outcome, Parts, charts, sweep_table, table},
};

use self::routing::{Memory, Router};
use crate::{
    monte_carlo::Random,
    scenario::Checked,
    world::{Arithmetic, HubDevice, Model, Notice, PeerId, WorkerSpec, World, WorldConfig, from_millis},
};

/// What workers show to join.
const TOKEN: &str = "simulated";
/// How long workers may take to load their blocks before the first request, and how often that is looked at.
const MAX_START: Duration = Duration::from_mins(10);
const START_STEP: Duration = Duration::from_millis(250);

/// Why a scenario has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// A layer could not be computed: the swarm says why.
    #[error("token {token}, layer {layer}: {why}")]
    Layer {
        /// Tokens that were done before.
        token: u64,
        /// The layer.
        layer: u16,
        /// In the swarm's words.
        why: String,
    },
}

/// Runs a scenario to its end and calls `progress` with the tokens done and asked for, now and then.
///
/// # Errors
/// When a layer could not be computed: nobody held a block, and the hub was not to compute.
pub fn run(checked: &Checked, progress: impl FnMut(u64, u64)) -> Result<Outcome, RunError> {
    let mut run = Run::new(checked);
    run.wait_for_workers();
    run.serve(progress)?;
    Ok(run.finish())
}

/// One request.
struct Stream {
    arrived: Duration,
    prompt_left: usize,
    tokens_left: usize,
    last_token: Option<Duration>,
    memory: Memory,
}

struct Run<'a> {
    checked: &'a Checked,
    world: World,
    random: Random,
    router: Router,
    /// When requests come, after the start.
    arrivals: VecDeque<Duration>,
    streams: Vec<Stream>,
    /// Where each worker's churn stands in the groups.
    churn: BTreeMap<PeerId, (Duration, Duration)>,
    n_jobs: u64,
    n_tokens: u64,
    begun: Duration,
    outcome: Outcome,
}

impl<'a> Run<'a> {
    fn new(checked: &'a Checked) -> Self {
        let scenario = &checked.scenario;
        let model = Arc::new(Model::of_sizes(&checked.sizes));
        let mbit = |mbit: f64| (mbit * 125_000.0) as u64;
        let mut world = World::new(WorldConfig {
            swarm: SwarmConfig {
                replicas: scenario.swarm.replicas,
                hedge: checked.hedge,
                check_every: scenario.swarm.check_every,
                seed: scenario.seed,
                timeout: from_millis(scenario.swarm.timeout_ms),
                hub_compute: scenario.swarm.hub_compute,
                wire: checked.wire,
                ..SwarmConfig::new(JoinToken::new(TOKEN), model.summary().clone())
            },
            model,
            arithmetic: Arithmetic::Zeros,
            hub: HubDevice {
                device: checked.hub_device.clone(),
                bytes_per_s: scenario.hub.link_mbit.map(mbit),
            },
            seed: scenario.seed,
            is_traced: false,
        });
        let mut churn = BTreeMap::new();
        let groups = checked.groups.iter().flat_map(|group| std::iter::repeat_n(group, group.count));
        for (number, group) in groups.enumerate() {
            let id = world.add_worker(WorkerSpec {
                id: WorkerId(number as u128 + 1),
                token: TOKEN.to_owned(),
                link: group.link.clone(),
                device: group.device.clone(),
                memory_budget_bytes: group.memory_bytes,
                input_slots: group.slots,
                sync_latency_micros: group.sync_micros,
                teraflops: group.teraflops,
                is_stocked: true,
            });
            churn.extend(group.churn.map(|times| (id, times)));
        }
        let mut random = Random::new(scenario.seed, 1);
        let router = Router::new(&scenario.routing, &checked.sizes, &mut random);
        let mut at = Duration::ZERO;
        let arrivals = (0..scenario.load.streams)
            .map(|_| {
                if let Some(rate) = scenario.load.arrivals_per_s {
                    at += exponential(1e3 / rate, &mut random);
                }
                at
            })
            .collect();
        Self {
            checked,
            world,
            random,
            router,
            arrivals,
            streams: Vec::new(),
            churn,
            n_jobs: 0,
            n_tokens: 0,
            begun: Duration::ZERO,
            outcome: Outcome::default(),
        }
    }

    /// Until everyone holds what it should, from its own store. What is measured begins after.
    fn wait_for_workers(&mut self) {
        while self.world.now() < MAX_START {
            self.advance(self.world.now() + START_STEP);
            let status = self.world.swarm().status();
            let holds_all =
                status.workers.iter().all(|worker| worker.blocks_resident >= worker.blocks_assigned);
            if status.workers.len() == self.n_workers() && holds_all {
                break;
            }
        }
        self.begun = self.world.now();
        self.outcome.before = (self.world.swarm().status().totals, self.world.traffic());
        let leavers: Vec<(PeerId, Duration)> =
            self.churn.iter().map(|(id, (mean, _))| (*id, *mean)).collect();
        for (id, mean) in leavers {
            self.schedule_departure(id, mean);
        }
    }

    fn n_workers(&self) -> usize {
        self.checked.groups.iter().map(|group| group.count).sum()
    }

    fn serve(&mut self, mut progress: impl FnMut(u64, u64)) -> Result<(), RunError> {
        let load = &self.checked.scenario.load;
        let n_asked = (load.streams * load.tokens) as u64;
        loop {
            self.admit();
            if self.streams.is_empty() {
                let Some(next) = self.arrivals.front() else { return Ok(()) };
                self.advance(self.begun + *next);
                continue;
            }
            self.step()?;
            progress(self.n_tokens, n_asked);
        }
    }

    /// Takes up requests that have come, as long as each has a row in a step.
    fn admit(&mut self) {
        let load = &self.checked.scenario.load;
        while self.streams.len() < load.step_rows
            && let Some(at) = self.arrivals.pop_front_if(|at| self.begun + *at <= self.world.now())
        {
            self.streams.push(Stream {
                arrived: self.begun + at,
                prompt_left: load.prompt,
                tokens_left: load.tokens,
                last_token: None,
                memory: Vec::new(),
            });
        }
    }

    /// One step: a row of every stream that decodes, and a chunk of the first prompt that is not through.
    fn step(&mut self) -> Result<(), RunError> {
        let decoding = |stream: &Stream| stream.prompt_left == 0;
        let n_decoding = self.streams.iter().filter(|stream| decoding(stream)).count();
        let chunk = match self.streams.iter_mut().find(|stream| !decoding(stream)) {
            Some(stream) => stream.prompt_left.min(self.checked.scenario.load.step_rows - n_decoding),
            None => 0,
        };
        let prompt = if chunk > 0 { self.streams.iter().position(|stream| !decoding(stream)) } else { None };
        let members: Vec<usize> = (0..self.streams.len())
            .filter(|at| decoding(&self.streams[*at]))
            .chain(prompt.into_iter().flat_map(|at| std::iter::repeat_n(at, chunk)))
            .collect();
        for layer in 0..self.checked.sizes.n_layers {
            self.layer(layer, &members)?;
        }
        self.spend(self.checked.head(), |parts| &mut parts.head);
        let now = self.world.now();
        for at in 0..self.streams.len() {
            let stream = &mut self.streams[at];
            if prompt == Some(at) {
                stream.prompt_left -= chunk;
            }
            // The last row of a prompt gives the first token.
            if stream.prompt_left == 0 {
                match stream.last_token.replace(now) {
                    Some(last) => self.outcome.tokens.record(now - last),
                    None => self.outcome.first_tokens.record(now - stream.arrived),
                }
                stream.tokens_left -= 1;
                self.n_tokens += 1;
            }
        }
        self.streams.retain(|stream| stream.tokens_left > 0);
        Ok(())
    }

    fn layer(&mut self, layer: u16, members: &[usize]) -> Result<(), RunError> {
        let n_rows = members.len();
        self.spend(self.checked.attention(n_rows), |parts| &mut parts.attention);
        self.spend(self.checked.serialise(), |parts| &mut parts.serialise);
        let rows = vec![0.0; n_rows * self.checked.sizes.shape.hidden];
        let k = usize::from(self.checked.sizes.k);
        let mut experts = Vec::with_capacity(n_rows * k);
        for member in members {
            let memory = &mut self.streams[*member].memory;
            experts.extend_from_slice(self.router.route(layer.into(), memory, &mut self.random));
        }
        let routing = Routing { k, experts, gates: vec![1.0 / k as f32; n_rows * k] };
        self.n_jobs += 1;
        let begun = self.world.now();
        self.world.start_layer(JobId(self.n_jobs), LayerJob { layer: LayerId(layer), rows, routing });
        let result = self.wait_for_layer();
        let took = self.world.now() - begun;
        self.outcome.layers.record(took);
        self.outcome.parts.experts += took;
        if let Err(why) = result {
            return Err(RunError::Layer { token: self.n_tokens, layer, why });
        }
        self.spend(self.checked.combine(), |parts| &mut parts.combine);
        Ok(())
    }

    fn wait_for_layer(&mut self) -> Result<(), String> {
        loop {
            while let Some(notice) = self.world.poll_notice() {
                if let Notice::Finished(_, result) = notice {
                    return result.map(|_| ()).map_err(|error| error.to_string());
                }
                self.take(&notice);
            }
            if !self.world.step() {
                return Err("nothing happens any more".to_owned());
            }
        }
    }

    /// The hub is busy for so long; the world goes on.
    fn spend(&mut self, time: Duration, part: impl Fn(&mut Parts) -> &mut Duration) {
        *part(&mut self.outcome.parts) += time;
        self.advance(self.world.now() + time);
    }

    fn advance(&mut self, until: Duration) {
        loop {
            self.world.drive(until);
            let Some(notice) = self.world.poll_notice() else { return };
            self.take(&notice);
        }
    }

    /// A worker leaves, or one that left comes back.
    fn take(&mut self, notice: &Notice) {
        let Notice::Scheduled(token) = notice else { return };
        let id = PeerId((token / 2) as usize);
        let Some((mean, away)) = self.churn.get(&id).copied() else { return };
        if token % 2 == 0 {
            self.world.leave(id);
            self.world.schedule(self.world.now() + away, token + 1);
        } else {
            self.world.start(id);
            self.schedule_departure(id, mean);
        }
    }

    fn schedule_departure(&mut self, id: PeerId, mean: Duration) {
        let wait = exponential(mean.as_secs_f64() * 1e3, &mut self.random);
        self.world.schedule(self.world.now() + wait, 2 * id.0 as u64);
    }

    fn finish(self) -> Outcome {
        let mut outcome = self.outcome;
        outcome.n_tokens = self.n_tokens;
        outcome.time = self.world.now() - self.begun;
        outcome.start = self.begun;
        outcome.after = (self.world.swarm().status().totals, self.world.traffic());
        outcome
    }
}

/// The time between two events that come by chance, this far apart on average.
fn exponential(mean_ms: f64, random: &mut Random) -> Duration {
    from_millis(-libm::log(1.0 - random.uniform()) * mean_ms)
}
