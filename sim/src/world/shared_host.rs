//! Workers that share a host: processes of one machine, or of machines that share resources.
//!
//! This has two effects on a worker with a [`Member`]. While others compute, its own computation takes longer
//! ([`SharedHost::contention`]). And its other costs of a message are correlated with those of the others: all take
//! their costs from the same *moment*, which is drawn for each layer. A worker with its own [`super::Device`] has
//! neither effect.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use moex_protocol::AttemptId;

use super::{Event, PeerId, World, from_millis};
use crate::{latency::Latency, random::Random};

/// Remaining work below this counts as done, milliseconds: events happen on whole nanoseconds.
const DONE_MS: f64 = 2e-6;

/// A host shared by workers.
#[derive(Clone, Debug)]
pub struct SharedHost {
    /// By how much of its own time each further computing worker slows one down: 0 if each has its own machine, 1 if
    /// all have one processor.
    pub contention: f64,
    /// Seeds the choice of moments.
    pub seed: u64,
    /// The workers on it. Their [`super::WorkerSpec::device`] is ignored.
    pub members: BTreeMap<PeerId, Member>,
}

/// The costs of one worker's messages, milliseconds.
#[derive(Clone, Debug)]
pub struct Member {
    /// The time to compute an expert.
    pub per_expert_ms: f64,
    /// The time to compute a (row, expert) pair.
    pub per_pair_ms: f64,
    /// The other costs of a message, in moments at which this worker was not observed.
    pub per_message: Latency,
    /// The other costs of a message by moment: the same moments for each member.
    pub moments: Arc<[ObservedCost]>,
}

/// A cost at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ObservedCost {
    /// Milliseconds.
    At(f64),
    /// More than this many milliseconds: the attempt was abandoned.
    Longer(f64),
    /// Not observed.
    Not,
}

/// A shared host and its running computations.
#[derive(Debug)]
pub(super) struct SharedHostState {
    spec: SharedHost,
    random: Random,
    /// The current moment, modulo their number.
    moment: usize,
    machine: Machine,
}

impl World {
    /// Puts workers on one host, which replaces any earlier one.
    pub fn share(&mut self, shared_host: SharedHost) {
        let machine = Machine { contention: shared_host.contention, ..Machine::default() };
        let random = Random::new(shared_host.seed, 1);
        self.shared_host = Some(Box::new(SharedHostState { spec: shared_host, random, moment: 0, machine }));
    }

    /// A layer begins, with another moment.
    pub(super) fn pass_moment(&mut self) {
        if let Some(host) = &mut self.shared_host {
            host.moment = host.random.below(usize::MAX);
        }
    }

    /// Starts a message's computation if its worker is on the shared host; false if it is not.
    pub(super) fn compute_on_shared_host(
        &mut self,
        task: Computation,
        n_experts: usize,
        n_pairs: usize,
    ) -> bool {
        let (now, Some(host)) = (self.now, &mut self.shared_host) else { return false };
        let Some(member) = host.spec.members.get(&task.peer) else { return false };
        let work_ms = member.per_expert_ms * n_experts as f64 + member.per_pair_ms * n_pairs as f64;
        let rest = from_millis(member.rest_ms(host.moment, &mut host.random));
        host.machine.advance(now);
        host.machine.tasks.push(Task { task, left_ms: work_ms, rest });
        self.arm_shared_host();
        true
    }

    /// A computation on the shared host may have finished.
    pub(super) fn shared_host_due(&mut self, epoch: u64) {
        let (now, Some(host)) = (self.now, &mut self.shared_host) else { return };
        if host.machine.epoch != epoch {
            return;
        }
        host.machine.advance(now);
        for Task { task: Computation { peer, life, attempt }, rest, .. } in host.machine.take_done() {
            self.events.push(now + rest, Event::Computed { peer, life, attempt });
        }
        self.arm_shared_host();
    }

    fn arm_shared_host(&mut self) {
        let Some(host) = &mut self.shared_host else { return };
        // Dead workers stop computing.
        let is_alive = |task: &Computation| {
            let peer = &self.peers[task.peer.0];
            peer.is_running && peer.life == task.life
        };
        host.machine.tasks.retain(|task| is_alive(&task.task));
        host.machine.epoch += 1;
        if let Some(at) = host.machine.next_at() {
            self.events.push(at, Event::SharedHostDue(host.machine.epoch));
        }
    }
}

impl Member {
    fn rest_ms(&self, moment: usize, random: &mut Random) -> f64 {
        let seen = moment.checked_rem(self.moments.len()).map_or(ObservedCost::Not, |at| self.moments[at]);
        match seen {
            ObservedCost::At(ms) => ms,
            ObservedCost::Longer(ms) => self.per_message.sample_beyond(ms, random),
            ObservedCost::Not => self.per_message.sample(random),
        }
    }
}

/// A computation and its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Computation {
    pub(super) peer: PeerId,
    pub(super) life: u32,
    pub(super) attempt: AttemptId,
}

#[derive(Debug)]
struct Task {
    task: Computation,
    /// The remaining work, as the time that it would take alone.
    left_ms: f64,
    /// The costs that follow the work and do not depend on other workers.
    rest: Duration,
}

/// Concurrent computations, all equally fast.
#[derive(Debug, Default)]
struct Machine {
    contention: f64,
    tasks: Vec<Task>,
    /// The time for which the remaining work is valid.
    at: Duration,
    /// Counts changes: an event from before the last change is void.
    epoch: u64,
}

impl Machine {
    /// How much longer each computation takes at present than alone.
    fn slowdown(&self) -> f64 {
        1.0 + self.contention * self.tasks.len().saturating_sub(1) as f64
    }

    fn advance(&mut self, now: Duration) {
        let done_ms = now.saturating_sub(self.at).as_nanos() as f64 / 1e6 / self.slowdown();
        self.tasks.iter_mut().for_each(|task| task.left_ms -= done_ms);
        self.at = now;
    }

    /// When the first computation finishes if none is added.
    fn next_at(&self) -> Option<Duration> {
        let least = self.tasks.iter().map(|task| task.left_ms).min_by(f64::total_cmp)?;
        Some(self.at + from_millis(least.max(0.0) * self.slowdown()))
    }

    fn take_done(&mut self) -> Vec<Task> {
        self.tasks.extract_if(.., |task| task.left_ms <= DONE_MS).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// When each of these computations finishes, if all begin at once.
    fn finish(contention: f64, works_ms: &[f64]) -> Vec<Duration> {
        let task = |at: usize| Computation { peer: PeerId(at), life: 1, attempt: AttemptId(1) };
        let tasks = works_ms.iter().enumerate();
        let tasks = tasks.map(|(at, ms)| Task { task: task(at), left_ms: *ms, rest: Duration::ZERO });
        let mut machine = Machine { contention, tasks: tasks.collect(), ..Machine::default() };
        let mut ends = vec![Duration::ZERO; works_ms.len()];
        while let Some(at) = machine.next_at() {
            machine.advance(at);
            let done = machine.take_done();
            assert!(!done.is_empty(), "at {at:?}");
            done.iter().for_each(|done| ends[done.task.peer.0] = at);
        }
        ends
    }

    #[test]
    fn who_shares_a_processor_waits_for_as_much_of_the_others_work() {
        assert_eq!(finish(1.0, &[1.0, 1.0, 2.0, 4.0]), [4 * MS, 4 * MS, 6 * MS, 8 * MS]);
        assert_eq!(finish(0.0, &[1.0, 4.0, 0.0]), [MS, 4 * MS, Duration::ZERO]);
        assert_eq!(finish(0.5, &[2.0, 4.0]), [3 * MS, 5 * MS]);
    }

    #[test]
    fn costs_are_those_of_the_moment() {
        let per_message = Latency::empirical(vec![1.0, 2.0, 3.0, 4.0]).unwrap();
        let moments =
            [ObservedCost::At(7.0), ObservedCost::Longer(2.5), ObservedCost::Longer(9.0), ObservedCost::Not]
                .into();
        let member = Member { per_expert_ms: 0.0, per_pair_ms: 0.0, per_message, moments };
        let random = &mut Random::new(1, 1);
        for round in 0..100 {
            let mut at = |moment: usize| member.rest_ms(4 * round + moment, random);
            assert_eq!((at(0), at(2)), (7.0, 9.0));
            assert!([3.0, 4.0].contains(&at(1)));
            assert!(at(3) <= 4.0);
        }
    }
}
