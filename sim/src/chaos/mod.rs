//! Randomised fault injection, repeatable: each seed generates a random swarm with random work and random faults, and
//! the invariants are checked after every step.
//!
//! The invariants (see `ARCHITECTURE.md`): every job ends, successfully if the hub computes, at worst because no worker
//! holds a block; a sum equals the hub's own, bit for bit; peers without faults lose no session; tables hold only what
//! is in flight; time advances; and after the faults, every block is held that fits into memory.

mod checks;
mod many;
mod scenario;

#[cfg(test)]
mod planted;

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use moex_protocol::Visibility;
use moex_swarm::{JobId, Totals};

pub use self::many::{Summary, run_many};

use self::{
    checks::Checks,
    scenario::{Fault, Scenario},
};
use crate::{
    random::Random,
    world::{Arithmetic, Death, Notice, PeerId, Toward, Traffic, World, WorldConfig},
};

/// How long the swarm may settle once the faults are over: long enough to notice silence, to restore a broken
/// connection, and for every timeout to pass.
const SETTLING: Duration = Duration::from_secs(60);
/// How long the swarm stays without work before the final checks: some heartbeats and their travel time.
const QUIET: Duration = Duration::from_secs(15);
/// The longest time of a job under any faults: a worker is waited for up to 10 s, one worker after another.
const JOB_DEADLINE: Duration = Duration::from_mins(3);

/// The result of a seed that passed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Virtual time.
    pub time: Duration,
    /// Events and bytes.
    pub traffic: Traffic,
    /// The swarm's own counts.
    pub totals: Totals,
    /// Jobs that ended because nobody held a block; all others returned their sum.
    pub uncovered: u64,
    /// The events, if they were to be recorded.
    pub trace: String,
}

/// An invariant that did not hold.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The seed.
    pub seed: u64,
    /// Virtual time.
    pub at: Duration,
    /// A description.
    pub what: String,
    /// The events until then, if they were to be recorded.
    pub trace: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed {} fails at {:.6} s: {}\nreplay it: cargo xtask simulate --seed {} --trace",
            self.seed,
            self.at.as_secs_f64(),
            self.what,
            self.seed
        )
    }
}

/// Runs one seed to its end. A panic of the simulated code is a violation like any other.
///
/// # Errors
/// The first invariant that did not hold.
pub fn run(seed: u64, is_traced: bool) -> Result<Outcome, Box<Violation>> {
    let mut chaos = Chaos::of(Scenario::new(seed), seed, is_traced);
    let ended = catch_unwind(AssertUnwindSafe(|| chaos.run())).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(format!("panic: {text}"))
    });
    let (at, trace) = (chaos.world.now(), chaos.world.trace().to_owned());
    match ended {
        Ok(()) => Ok(Outcome {
            time: at,
            traffic: chaos.world.traffic(),
            totals: chaos.world.swarm().status().totals,
            uncovered: chaos.checks.n_uncovered,
            trace,
        }),
        Err(what) => Err(Box::new(Violation { seed, at, what, trace })),
    }
}

/// One seed while it runs.
struct Chaos {
    scenario: Scenario,
    world: World,
    checks: Checks,
    /// Chooses the peers that faults hit.
    random: Random,
    /// Indexed by the token that they were scheduled with.
    acts: Vec<Fault>,
    honest: Vec<PeerId>,
    hostile: Vec<PeerId>,
    n_jobs: u64,
    n_chained: usize,
    /// The job that must finish before the next one of the chain.
    chain: Option<JobId>,
}

impl Chaos {
    fn of(scenario: Scenario, seed: u64, is_traced: bool) -> Self {
        let mut world = World::new(WorldConfig {
            swarm: scenario.swarm.clone(),
            model: scenario.model.clone(),
            arithmetic: Arithmetic::Exact,
            hub: scenario.hub.clone(),
            seed,
            is_traced,
        });
        world.note(|| format!("{} {:?}", scenario.model.catalog().len(), scenario.swarm));
        let (mut acts, mut times) = (Vec::new(), scenario.acts.clone());
        times.sort_by_key(|(at, _)| *at);
        for (at, act) in times {
            world.schedule(at, acts.len() as u64);
            acts.push(act);
        }
        Self {
            checks: Checks::new(&scenario),
            scenario,
            world,
            random: Random::new(seed, 2),
            acts,
            honest: Vec::new(),
            hostile: Vec::new(),
            n_jobs: 0,
            n_chained: 0,
            chain: None,
        }
    }

    fn run(&mut self) -> Result<(), String> {
        self.start_chained();
        let length = self.scenario.length;
        self.drive(length)?;
        self.heal();
        let settled = self.world.now() + SETTLING;
        self.drive(settled)?;
        while self.checks.n_open() > 0 {
            let next = self.world.now() + Duration::from_secs(1);
            self.drive(next)?;
        }
        // Waits until everybody's last heartbeat reports it, too.
        let quiet = self.world.now() + QUIET;
        self.drive(quiet)?;
        self.checks.settled(&self.world, &self.honest)?;
        self.last_jobs()
    }

    /// After the faults, work finishes soon, on the workers that remain.
    fn last_jobs(&mut self) -> Result<(), String> {
        if self.checks.is_shut_down {
            return Ok(());
        }
        self.checks.expects_all |= !self.checks.has_bad_link && self.checks.is_covered(&self.world);
        for _ in 0..2 {
            let job = self.start_job();
            self.checks.expects_soon(job);
        }
        let end = self.world.now() + JOB_DEADLINE;
        while self.checks.n_open() > 0 && self.world.now() < end {
            let next = self.world.now() + Duration::from_millis(100);
            self.drive(next)?;
        }
        Ok(())
    }

    /// Steps until `until`, checking after each step.
    fn drive(&mut self, until: Duration) -> Result<(), String> {
        while self.world.next_at().is_some_and(|at| at <= until) {
            self.world.step();
            while let Some(notice) = self.world.poll_notice() {
                self.take(notice)?;
            }
            self.checks.step(&self.world)?;
        }
        self.world.drive(until);
        Ok(())
    }

    fn take(&mut self, notice: Notice) -> Result<(), String> {
        match notice {
            Notice::Scheduled(token) => self.act(token as usize),
            Notice::Finished(id, result) => {
                self.checks.finished(id, &result, self.world.now())?;
                if self.chain == Some(id) {
                    self.start_chained();
                }
            }
            Notice::ClosedByHub(peer, _, code) => self.checks.closed(peer, "the hub", code)?,
            Notice::ClosedByWorker(peer, _, code) => self.checks.closed(peer, "the worker", code)?,
            Notice::Stopped(peer, reason) => self.checks.stopped(peer, &reason)?,
        }
        Ok(())
    }

    fn act(&mut self, token: usize) {
        if self.checks.is_shut_down {
            return;
        }
        match self.acts[token].clone() {
            Fault::StartJob => drop(self.start_job()),
            Fault::Join => self.join(),
            Fault::JoinHostile => {
                let spec = self.scenario.hostile();
                let id = self.world.add_hostile(spec);
                self.hostile.push(id);
                self.checks.excuse(id);
                self.checks.has_hostile = true;
            }
            Fault::Restart(peer) => self.world.start(PeerId(peer)),
            Fault::Show(peer) => self.world.show(PeerId(peer), Visibility::Visible),
            Fault::SlowHub(percent) => self.world.slow_hub(percent),
            Fault::Partition(time) => {
                for id in self.honest.clone() {
                    if self.random.below(2) == 0 {
                        self.checks.excuse(id);
                        self.world.stall(id, Toward::Hub, time);
                        self.world.stall(id, Toward::Worker, time);
                    }
                }
            }
            Fault::ShutDown => {
                self.checks.is_shut_down = true;
                self.world.shut_down();
            }
            act => self.harm_one(&act),
        }
    }

    /// Injects a fault into one honest worker that is there.
    fn harm_one(&mut self, act: &Fault) {
        let alive: Vec<PeerId> =
            self.honest.iter().copied().filter(|id| self.world.is_running(*id)).collect();
        if alive.is_empty() {
            return;
        }
        let id = alive[self.random.below(alive.len())];
        if !matches!(act, Fault::Hide(_) | Fault::Slow(_) | Fault::FailLoads(_)) {
            self.checks.excuse(id);
        }
        match *act {
            Fault::Kill(death) => {
                self.world.kill(id, death);
                self.maybe_again(Fault::Restart(id.0));
            }
            Fault::Freeze(time) => {
                // Some pages still send it, others just vanish.
                if self.random.below(2) == 0 {
                    self.world.show(id, Visibility::Frozen);
                    self.schedule(time, Fault::Show(id.0));
                }
                self.world.freeze(id, time);
            }
            Fault::Hide(time) => {
                self.world.show(id, Visibility::Hidden);
                self.schedule(time, Fault::Show(id.0));
            }
            Fault::Stall(toward, time) => self.world.stall(id, toward, time),
            Fault::Reset => self.world.reset(id),
            Fault::Slow(percent) => self.world.slow(id, percent),
            Fault::Leave => {
                self.world.leave(id);
                self.maybe_again(Fault::Restart(id.0));
            }
            Fault::FailLoads(percent) => {
                self.checks.had_failing_loads = true;
                self.world.fail_loads(id, percent);
            }
            _ => {}
        }
    }

    fn maybe_again(&mut self, act: Fault) {
        if self.random.below(3) > 0 {
            let wait = Duration::from_micros(self.random.below(5_000_000) as u64);
            self.schedule(wait, act);
        }
    }

    fn schedule(&mut self, wait: Duration, act: Fault) {
        self.world.schedule(self.world.now() + wait, self.acts.len() as u64);
        self.acts.push(act);
    }

    fn join(&mut self) {
        let (spec, is_bad) = self.scenario.worker();
        self.checks.joins(&spec);
        let id = self.world.add_worker(spec);
        self.honest.push(id);
        if is_bad {
            self.checks.excuse(id);
            self.checks.has_bad_link = true;
        }
    }

    fn start_job(&mut self) -> JobId {
        let job = self.scenario.job();
        self.n_jobs += 1;
        let id = JobId(self.n_jobs);
        self.checks.started(id, &job, self.world.now());
        self.world.start_layer(id, job);
        id
    }

    fn start_chained(&mut self) {
        self.chain = None;
        if self.n_chained < self.scenario.n_chained && !self.checks.is_shut_down {
            self.n_chained += 1;
            self.chain = Some(self.start_job());
        }
    }

    /// Ends the faults: hostile peers leave, workers are visible again and run at full speed.
    fn heal(&mut self) {
        self.world.note(|| "the faults are over".to_owned());
        for id in self.hostile.clone() {
            self.world.kill(id, Death::Reset);
        }
        self.world.slow_hub(100);
        for id in self.honest.clone() {
            self.world.slow(id, 100);
            self.world.fail_loads(id, 0);
        }
    }
}
