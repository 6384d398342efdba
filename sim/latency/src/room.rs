//! A hub's room as measured: how long a layer waits for its workers, the tokens/s that follow, and what changes of the room
//! would give.
//!
//! ```text
//! answer      = round trip + work + chance; work is proportional to the pairs in the message
//! messages    a worker with a part s of all pairs is asked in 1 - (1 - s)^n of the layers, n pairs each
//! layer       = slowest of the workers asked, each hedged by the fastest other one: the expert phase
//! step        = the hub's own time + layers x layer - what of it is hidden behind the hub's own work
//! tokens/s    = tokens of a step / step
//! ```
//!
//! Workers are independent here. Those of one machine wait for each other, so that their layers are faster than predicted
//! from each alone.

use crate::{
    error::ModelError,
    latency::Latency,
    phase::{Calls, ExpertPhase},
};

/// The round trip of a wired link, milliseconds: a switch and two sleeping cores.
pub const WIRED_MS: f64 = 0.5;
/// The smallest part of the layers in which a worker counts.
const LEAST_ASKED: f64 = 0.01;

/// One worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Worker {
    /// Times from message to answer, milliseconds, equally likely; at least one.
    pub answers_ms: Vec<f64>,
    /// The part of them that the link takes: a ping's round trip, milliseconds.
    pub round_trip_ms: f64,
    /// Messages a layer, without second copies, 0 to 1.
    pub asked: f64,
    /// Its part of the workers' (row, expert) pairs, 0 to 1.
    pub share: f64,
}

/// What a step of the engine takes on average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Tokens of a step.
    pub tokens: f64,
    /// Layers with experts in a step, over all its groups.
    pub layers: f64,
    /// All of it, milliseconds.
    pub took_ms: f64,
    /// The part in which the engine waited for experts, milliseconds.
    pub waited_ms: f64,
    /// Mean time of a layer in the swarm, as measured, milliseconds.
    pub layer_ms: f64,
}

/// A hub with workers that compute its experts.
#[derive(Clone, Debug, PartialEq)]
pub struct Room {
    /// Those that are asked; at least one.
    pub workers: Vec<Worker>,
    /// (row, expert) pairs of a layer.
    pub pairs: f64,
    /// The part of messages that get a second copy, 0 to 1.
    pub hedged: f64,
    /// The engine's step.
    pub step: Step,
}

/// A change of a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// One more worker like the median one, with an equal part of the pairs.
    OneMore,
    /// The worker with the longest answers leaves; the others take its pairs.
    WithoutSlowest(usize),
    /// Every round trip is [`WIRED_MS`] at most.
    Wired,
    /// The hub takes half its own time.
    FasterHub,
}

impl Room {
    /// A layer's expected wait, milliseconds.
    ///
    /// # Errors
    /// If there is no worker, or a time is no time.
    pub fn layer_ms(&self) -> Result<f64, ModelError> {
        let latencies = self.workers.iter().map(Worker::answers).collect::<Result<Vec<_>, _>>()?;
        let mut calls = Vec::with_capacity(latencies.len());
        for (at, worker) in self.workers.iter().enumerate() {
            let others = latencies.iter().enumerate().filter(|(other, _)| *other != at);
            let hedge = others.map(|(_, latency)| latency).min_by(|a, b| a.mean().total_cmp(&b.mean()));
            let mut copies = vec![worker.asked_or_not()?];
            if let Some(hedge) = hedge.filter(|_| self.hedged > 0.0) {
                // The slowest of its answers are those with a second copy.
                let delay = latencies[at].sample_quantile(1.0 - self.hedged.min(1.0)).unwrap_or(0.0);
                let delay = if self.hedged >= 0.5 { 0.0 } else { delay };
                copies.push(hedge.delayed(delay)?);
            }
            calls.push(Calls { count: 1, copies });
        }
        Ok(ExpertPhase::new(calls)?.mean()?.value)
    }

    /// The tokens/s if a layer waits `layer_ms`.
    pub fn tokens_per_s(&self, layer_ms: f64) -> f64 {
        let Step { tokens, layers, took_ms, waited_ms, layer_ms: measured_ms } = self.step;
        let hidden_ms = layers * measured_ms - waited_ms;
        1e3 * tokens / (took_ms - waited_ms + (layers * layer_ms - hidden_ms).max(0.0))
    }

    /// The tokens/s of the room as it is, as measured.
    pub fn measured_tokens_per_s(&self) -> f64 {
        1e3 * self.step.tokens / self.step.took_ms
    }

    /// What each possible change would add to the predicted tokens/s, as a part of them, the best first.
    ///
    /// # Errors
    /// As [`Self::layer_ms`].
    pub fn what_ifs(&self) -> Result<Vec<(Change, f64)>, ModelError> {
        let now = self.tokens_per_s(self.layer_ms()?);
        let mut gains = Vec::new();
        for change in self.changes() {
            let changed = self.with(change);
            gains.push((change, changed.tokens_per_s(changed.layer_ms()?) / now - 1.0));
        }
        gains.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        Ok(gains)
    }

    /// The changes that this room admits.
    fn changes(&self) -> Vec<Change> {
        let mut changes = vec![Change::OneMore, Change::FasterHub];
        if let Some(slowest) = self.by_latency().pop().filter(|_| self.workers.len() > 1) {
            changes.push(Change::WithoutSlowest(slowest));
        }
        if self.workers.iter().any(|worker| worker.round_trip_ms > WIRED_MS) {
            changes.push(Change::Wired);
        }
        changes
    }

    /// The room after a change.
    fn with(&self, change: Change) -> Self {
        let mut room = self.clone();
        match change {
            Change::OneMore => {
                let n = self.workers.len() as f64;
                let order = self.by_latency();
                if let Some(median) = order.get(order.len() / 2) {
                    let new = self.workers[*median].with_share(1.0 / (n + 1.0), self.pairs);
                    room.workers = self
                        .workers
                        .iter()
                        .map(|w| w.with_share(w.share * n / (n + 1.0), self.pairs))
                        .collect();
                    room.workers.push(new);
                }
            }
            Change::WithoutSlowest(at) => {
                let left = 1.0 - room.workers.remove(at).share;
                let equal = 1.0 / room.workers.len() as f64;
                for worker in &mut room.workers {
                    // Where it did all the work, nothing says how the others would share it.
                    let share = if left > LEAST_ASKED { worker.share / left } else { equal };
                    *worker = worker.with_share(share, self.pairs);
                }
            }
            Change::Wired => {
                for worker in &mut room.workers {
                    let saved = (worker.round_trip_ms.min(worker.fastest()) - WIRED_MS).max(0.0);
                    worker.answers_ms.iter_mut().for_each(|ms| *ms -= saved);
                    worker.round_trip_ms -= saved;
                }
            }
            Change::FasterHub => room.step.took_ms -= (self.step.took_ms - self.step.waited_ms) / 2.0,
        }
        room
    }

    /// The workers' indices, those with the shortest answers first.
    fn by_latency(&self) -> Vec<usize> {
        let mean = |at: &usize| {
            self.workers[*at].answers_ms.iter().sum::<f64>() / self.workers[*at].answers_ms.len() as f64
        };
        let mut order: Vec<usize> = (0..self.workers.len()).collect();
        order.sort_by(|a, b| mean(a).total_cmp(&mean(b)));
        order
    }
}

impl Worker {
    fn answers(&self) -> Result<Latency, ModelError> {
        Latency::empirical(self.answers_ms.clone())
    }

    /// Its answer's time in a layer that may not ask it: zero then.
    fn asked_or_not(&self) -> Result<Latency, ModelError> {
        let asked = self.asked.clamp(LEAST_ASKED, 1.0);
        let n_not = (self.answers_ms.len() as f64 * (1.0 / asked - 1.0)).round() as usize;
        Latency::empirical([vec![0.0; n_not], self.answers_ms.clone()].concat())
    }

    /// The same worker with another part of the pairs, of which a layer has `pairs`.
    fn with_share(&self, share: f64, pairs: f64) -> Self {
        let asked_with = |share: f64| 1.0 - (1.0 - share.clamp(LEAST_ASKED, 1.0)).powf(pairs.max(1.0));
        let more_often = asked_with(share) / asked_with(self.share);
        let more_work = share.max(LEAST_ASKED) / self.share.max(LEAST_ASKED) / more_often;
        let link_ms = self.round_trip_ms.min(self.fastest());
        let work_ms = self.median() - link_ms;
        // What a message takes beyond the median is no work: a stall is as long with fewer pairs.
        let answers = self.answers_ms.iter();
        let answers_ms = answers.map(|ms| ms + (more_work - 1.0) * work_ms.min(ms - link_ms)).collect();
        Self { answers_ms, share, asked: (self.asked * more_often).min(1.0), ..*self }
    }

    fn median(&self) -> f64 {
        let mut ascending = self.answers_ms.clone();
        ascending.sort_by(f64::total_cmp);
        ascending.get(ascending.len() / 2).copied().unwrap_or(0.0)
    }

    fn fastest(&self) -> f64 {
        self.answers_ms.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn worker(round_trip_ms: f64, work_ms: f64, n: usize) -> Worker {
        let share = 1.0 / n as f64;
        Worker { answers_ms: vec![round_trip_ms + work_ms], round_trip_ms, asked: 1.0, share }
    }

    /// A room of equal workers whose layers take exactly as long as its model says, on a hub that takes `own_ms` a step.
    fn room(n: usize, round_trip_ms: f64, work_ms: f64, own_ms: f64) -> Room {
        let layer_ms = round_trip_ms + work_ms;
        let waited_ms = 10.0 * layer_ms;
        let step = Step { tokens: 1.0, layers: 10.0, took_ms: own_ms + waited_ms, waited_ms, layer_ms };
        Room { workers: vec![worker(round_trip_ms, work_ms, n); n], pairs: 8.0, hedged: 0.0, step }
    }

    fn gain(room: &Room, change: Change) -> f64 {
        room.what_ifs().unwrap().into_iter().find(|(what, _)| *what == change).unwrap().1
    }

    #[test]
    fn constant_answers_give_the_closed_form() {
        let room = room(3, 4.0, 1.0, 30.0);
        assert_eq!(room.layer_ms().unwrap(), 5.0);
        assert!((room.tokens_per_s(5.0) - 1e3 / 80.0).abs() < 1e-9);
        assert_eq!(room.tokens_per_s(5.0), room.measured_tokens_per_s());
        // 30 + 10 x (0.5 + 1) = 45 ms, and 15 + 50.
        assert!((gain(&room, Change::Wired) - (80.0 / 45.0 - 1.0)).abs() < 1e-9);
        assert!((gain(&room, Change::FasterHub) - (80.0 / 65.0 - 1.0)).abs() < 1e-9);
    }

    #[test]
    fn a_layer_waits_for_the_slowest_of_those_asked() {
        let two = |asked: f64| {
            let mut room = room(2, 0.0, 6.0, 1.0);
            room.workers[0].answers_ms = vec![2.0, 6.0];
            room.workers[1].answers_ms = vec![4.0];
            room.workers[1].asked = asked;
            room.layer_ms().unwrap()
        };
        assert!((two(1.0) - 5.0).abs() < 1e-12, "max(2, 4) or max(6, 4)");
        assert!((two(0.5) - 4.5).abs() < 1e-12, "in half of the layers only 2 or 6");
    }

    #[test]
    fn a_second_copy_ends_the_wait_for_a_stall() {
        let mut room = room(2, 0.0, 1.0, 1.0);
        room.workers[0].answers_ms = [vec![1.0; 9], vec![101.0]].concat();
        assert!((room.layer_ms().unwrap() - 11.0).abs() < 1e-9);
        room.hedged = 0.1;
        // Sent once all that do not stall have answered: 1 + 1 ms instead of 101.
        assert!((room.layer_ms().unwrap() - 1.1).abs() < 1e-9);
    }

    #[test]
    fn one_more_worker_helps_where_work_is_the_wait_and_not_where_the_link_is() {
        assert!(gain(&room(3, 0.1, 50.0, 5.0), Change::OneMore) > 0.05);
        assert!(gain(&room(3, 50.0, 0.1, 5.0), Change::OneMore).abs() < 0.01);
        let mut stalling = room(3, 1.0, 0.0, 5.0);
        stalling.workers.iter_mut().for_each(|worker| worker.answers_ms = vec![1.0, 1.0, 1.0, 9.0]);
        assert!(gain(&stalling, Change::OneMore) < 0.0, "one more to wait for");
    }

    #[test]
    fn the_slowest_is_the_one_without_which_it_is_faster() {
        let mut room = room(3, 2.0, 0.1, 5.0);
        room.workers[1] = worker(30.0, 0.1, 3);
        let without = Change::WithoutSlowest(1);
        assert_eq!(room.what_ifs().unwrap()[0].0, Change::Wired);
        assert!(gain(&room, without) > 1.0);
        assert!(
            self::room(1, 2.0, 0.1, 5.0)
                .what_ifs()
                .unwrap()
                .iter()
                .all(|(change, _)| { !matches!(change, Change::WithoutSlowest(_)) })
        );
    }

    #[test]
    fn what_the_hub_hides_is_no_wait() {
        let mut room = room(2, 4.0, 0.0, 30.0);
        // Of 10 x 4 ms the engine waited for 10: the rest was hidden behind its own work.
        room.step = Step { waited_ms: 10.0, took_ms: 40.0, ..room.step };
        assert!((room.tokens_per_s(4.0) - 25.0).abs() < 1e-9);
        assert!((room.tokens_per_s(0.0) - 1e3 / 30.0).abs() < 1e-9, "its own time is left");
    }

    #[test]
    fn no_worker_is_an_error() {
        assert!(Room { workers: Vec::new(), ..room(1, 1.0, 1.0, 1.0) }.layer_ms().is_err());
    }

    proptest! {
        /// A longer round trip is never faster.
        #[test]
        fn tokens_fall_with_the_round_trip(n in 1usize..6, work in 0.0f64..20.0, rtt in 0.0f64..50.0, more in 0.01f64..50.0) {
            let here = room(n, rtt, work, 20.0);
            let mut farther = here.clone();
            for worker in &mut farther.workers {
                worker.answers_ms.iter_mut().for_each(|ms| *ms += more);
            }
            let rate = |room: &Room| room.tokens_per_s(room.layer_ms().unwrap());
            prop_assert!(rate(&farther) < rate(&here));
        }
    }
}
