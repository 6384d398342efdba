//! Runs a scenario: the hub's decode loop, layer by layer, over a [`World`] whose experts answer zeros of the right shape.
//!
//! The hub takes its own time for attention, messages, sums and the head. Between a layer's start and its answer, the
//! shipped swarm and workers run on the scenario's links and devices.

mod outcome;
mod parts;
mod pictures;
mod routing;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use moex_protocol::Routing;
use moex_protocol::{LayerId, WorkerId};
use moex_swarm::{JobId, JoinToken, LayerJob, SwarmConfig};

pub use self::{
    outcome::{Outcome, sweep_table, table},
    parts::{Part, Parts, Span},
    pictures::{lanes, latencies, stack, sweep_curves},
};

use self::routing::{Memory, Router};
use crate::{
    random::Random,
    scenario::Checked,
    world::{
        Arithmetic, HubDevice, Model, Notice, PeerId, TimedLayer, WorkerSpec, World, WorldConfig, from_millis,
    },
};

/// The token that workers show to join.
const TOKEN: &str = "simulated";
/// The most time that workers may take to load their blocks before the first request, and the interval of checks.
const MAX_START: Duration = Duration::from_mins(10);
const START_STEP: Duration = Duration::from_millis(250);

/// Why a scenario failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The scenario takes its routing from a trace, and the trace was not read.
    #[error("the routing is recorded in {0}, which was not read")]
    NotRecorded(String),
    /// A layer could not be computed.
    #[error("token {token}, layer {layer}: {why}")]
    Layer {
        /// Tokens finished before it.
        token: u64,
        /// The layer.
        layer: u16,
        /// The swarm's error message.
        why: String,
    },
}

/// Runs a scenario to its end. It calls `progress` with the tokens done and requested, now and then.
///
/// # Errors
/// If a layer could not be computed: nobody held a block, and the hub was not allowed to compute.
pub fn run(checked: &Checked, progress: impl FnMut(u64, u64)) -> Result<Outcome, RunError> {
    if let (Some(trace), None) = (checked.recorded_from(), &checked.recorded) {
        return Err(RunError::NotRecorded(trace.to_owned()));
    }
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
    /// Times of requests, after the start.
    arrivals: VecDeque<Duration>,
    streams: Vec<Stream>,
    /// For each worker, the churn of its group.
    churn: BTreeMap<PeerId, (Duration, Duration)>,
    n_jobs: u64,
    n_tokens: u64,
    /// The number of the token whose spans are recorded, and whether it is being computed.
    shown: u64,
    is_shown: bool,
    begun: Duration,
    outcome: Outcome,
}

impl<'a> Run<'a> {
    fn new(checked: &'a Checked) -> Self {
        let scenario = &checked.scenario;
        let model = Arc::new(Model::of_sizes(&checked.sizes));
        let mut world = World::new(WorldConfig {
            swarm: SwarmConfig {
                replicas: scenario.swarm.replicas,
                hedge: checked.hedge,
                verify: checked.verify,
                check_every: scenario.swarm.check_every,
                seed: scenario.seed,
                timeout: from_millis(scenario.swarm.timeout_ms),
                hub_compute: scenario.swarm.hub_compute,
                wire: checked.wire,
                is_traced: true,
                ..SwarmConfig::new(JoinToken::new(TOKEN), model.summary().clone())
            },
            model,
            arithmetic: Arithmetic::Zeros,
            hub: HubDevice { device: checked.hub_device.clone(), bytes_per_s: checked.hub_bytes_per_s },
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
        let router = Router::new(checked, &mut random);
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
            shown: (scenario.load.streams * scenario.load.tokens / 2) as u64,
            is_shown: false,
            begun: Duration::ZERO,
            outcome: Outcome::default(),
        }
    }

    /// Waits until every worker holds its share, loaded from its own store. Measurements start after that.
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

    /// Admits requests that have arrived, as long as each gets a row in a step.
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

    /// Runs one step: a row of every decoding stream, and a chunk of the first unfinished prompt.
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
        self.is_shown =
            self.outcome.token.is_empty() && self.n_tokens >= self.shown && n_decoding == members.len();
        for layer in 0..self.checked.sizes.n_layers {
            self.layer(layer, &members)?;
        }
        self.spend(self.checked.head(), Part::Head);
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
        self.spend(self.checked.attention(n_rows), Part::Attention);
        self.spend(self.checked.serialise(), Part::Serialise);
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
        while let Some(timed) = self.world.poll_layer() {
            self.outcome.take_layer(took, &timed);
            if self.is_shown {
                self.show(&timed);
            }
        }
        if let Err(why) = result {
            return Err(RunError::Layer { token: self.n_tokens, layer, why });
        }
        self.spend(self.checked.combine(), Part::Combine);
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

    /// The hub is busy for `time`; the world goes on.
    fn spend(&mut self, time: Duration, part: Part) {
        self.outcome.parts.add(part, time);
        let from = self.world.now();
        if self.is_shown && !time.is_zero() {
            self.outcome.token.push(Span { lane: 0, part, from, to: from + time });
        }
        self.advance(from + time);
    }

    /// Records the spans of a layer's messages.
    fn show(&mut self, layer: &TimedLayer) {
        let micros = Duration::from_micros;
        for (attempt, leg) in layer.record.attempts.iter().zip(&layer.legs) {
            // Workers are named by their number, from 1.
            let (lane, Some(leg)) = (attempt.worker.0 as usize, leg) else { continue };
            self.outcome.token.extend(parts::spans(attempt, leg, lane));
        }
        self.outcome.token.extend(layer.record.hub.iter().filter_map(|work| {
            Some(Span { lane: 0, part: Part::Compute, from: micros(work.sent), to: micros(work.ended?) })
        }));
    }

    fn advance(&mut self, until: Duration) {
        loop {
            self.world.drive(until);
            let Some(notice) = self.world.poll_notice() else { return };
            self.take(&notice);
        }
    }

    /// A worker leaves, or one that had left comes back.
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

/// Draws the time between two random events with this mean distance.
fn exponential(mean_ms: f64, random: &mut Random) -> Duration {
    from_millis(-libm::log(1.0 - random.uniform()) * mean_ms)
}
