//! Fits a worker's link and device: the time of its messages besides their work.
//!
//! A worker's link is its fastest ping. The rest of a message's time is the device's, as an empirical distribution. An
//! abandoned attempt took at least as long as it was waited for; the Kaplan-Meier estimate treats such observations as
//! censored. Attempts that queued behind an abandoned one are left out if there are enough others, since the simulated
//! worker queues them itself.
//!
//! In addition, the costs are kept layer by layer. Workers of one machine are late together, so a simulated layer takes
//! all its workers' costs from one measured layer: with independent draws, the slowest of several would be later than
//! ever measured.

use std::{collections::BTreeMap, ops::RangeInclusive, sync::Arc};

use moex_protocol::WorkerId;

use super::{
    messages::Message,
    work::{self, MIXES, PURE_MIXES, Work},
};
use crate::{
    error::ModelError,
    latency::Latency,
    limits::MAX_SAMPLE_COUNT,
    replay::trace::{Step, Trace, Worker},
    world::ObservedCost,
};

/// The fewest observations without queueing; with fewer, those that queued are used too.
const ENOUGH: usize = 30;
/// The most quantiles of a distribution.
const MAX_QUANTILES: usize = 4_096;
/// The most layers in the table of workers' joint costs.
const MAX_MOMENTS: usize = 4_096;

/// One worker's link and device.
#[derive(Clone, Debug)]
pub struct WorkerFit {
    /// Its fastest ping.
    pub round_trip_ms: f64,
    /// The cost of a message on its device, however small the message is, including system and socket.
    pub per_message: Latency,
    /// The same cost layer by layer; all workers have as many entries.
    pub moments: Arc<[ObservedCost]>,
    /// The cost of each expert on its device, when it computes alone.
    pub per_expert_ms: f64,
    /// The cost of each (row, expert).
    pub per_pair_ms: f64,
    /// The number of messages in this fit.
    pub n_observed: usize,
}

/// Fits all workers that ever answered within these steps, and their contention.
pub(super) fn fit(
    trace: &Trace,
    steps: &[Step],
    messages: &BTreeMap<WorkerId, Vec<Message>>,
) -> (BTreeMap<WorkerId, WorkerFit>, f64) {
    let during = steps.first().map_or(0, |step| step.begun)..=steps.last().map_or(0, |step| step.ended);
    let links = messages.iter().filter_map(|(id, messages)| {
        Some((*id, Link::of(messages, round_trip(trace.workers.get(id)?, &during))?))
    });
    let links: Vec<(WorkerId, Link<'_>)> = links.collect();
    let answered: Vec<_> = links.iter().map(|(_, link)| (link.answered(), link.round_trip_ms)).collect();
    let contention = work::contention(&answered);
    let moments = Moments::of(&links);
    let workers =
        links.iter().filter_map(|(id, link)| Some((*id, link.device(contention, &MIXES, &moments)?)));
    (workers.collect(), contention)
}

impl WorkerFit {
    /// Fits the hub's own computing, with no link and no concurrent worker; `None` if it was not observed.
    pub(super) fn of_hub(messages: &[Message]) -> Option<Self> {
        Link::of(messages, 0.0)?.device(0.0, &PURE_MIXES, &Moments::default())
    }
}

/// The fastest ping within that time, milliseconds; 0 without any, so that the device gets all of the time.
fn round_trip(worker: &Worker, during: &RangeInclusive<u64>) -> f64 {
    let fastest =
        worker.round_trips.iter().filter(|(at, _)| during.contains(at)).map(|(_, micros)| *micros).min();
    fastest.unwrap_or(0) as f64 / 1e3
}

/// A link and its messages that tell most about the device.
struct Link<'a> {
    round_trip_ms: f64,
    messages: Vec<&'a Message>,
    /// Whether any answer was to a single row.
    has_single: bool,
}

impl<'a> Link<'a> {
    /// `None` if there was never an answer.
    fn of(all: &'a [Message], fastest_ping_ms: f64) -> Option<Self> {
        let alone: Vec<&Message> = all.iter().filter(|seen| !seen.queued).collect();
        let n_alone = alone.iter().filter(|seen| seen.is_answered).count();
        let messages = if n_alone >= ENOUGH { alone } else { all.iter().collect() };
        let answered = || messages.iter().filter(|seen| seen.is_answered);
        let has_single = answered().any(|seen| seen.is_single);
        // The fastest answer bounds the wire's time: a ping may have waited for the processor.
        let fastest = answered().map(|seen| seen.took_ms).min_by(f64::total_cmp)?;
        Some(Self { round_trip_ms: fastest_ping_ms.min(fastest), messages, has_single })
    }

    fn answered(&self) -> Vec<&'a Message> {
        self.messages.iter().copied().filter(|seen| seen.is_answered).collect()
    }

    /// The messages whose other time stands for all: those of single rows, if there are any.
    fn usual(&self) -> impl Iterator<Item = &'a Message> {
        self.messages.iter().copied().filter(|seen| seen.is_single || !self.has_single)
    }

    fn device(&self, contention: f64, mixes: &[f64], moments: &Moments) -> Option<WorkerFit> {
        let answered = self.answered();
        let work = Work::of(&answered, self.round_trip_ms, contention, mixes);
        let left = |seen: &Message| seen.took_ms - self.round_trip_ms - work.of_message(seen, contention);
        // Nothing takes less than no time. What this adds to some is subtracted from all, so that the mean stays.
        let (n, sum, above) =
            self.usual().filter(|seen| seen.is_answered).fold((0, 0.0, 0.0), |(n, sum, above), seen| {
                (n + 1, sum + left(seen), above + left(seen).max(0.0))
            });
        let scale = if above > 0.0 { (sum / above).max(0.0) } else { 1.0 };
        let rest = |seen: &Message| scale * left(seen).max(0.0);
        let per_message = survival(self.usual().map(|seen| (rest(seen), seen.is_answered)).collect()).ok()?;
        let seen = self.usual().map(|message| {
            let ms = rest(message);
            (message.layer, if message.is_answered { ObservedCost::At(ms) } else { ObservedCost::Longer(ms) })
        });
        Some(WorkerFit {
            round_trip_ms: self.round_trip_ms,
            per_message,
            moments: moments.table(seen),
            per_expert_ms: work.per_expert_ms,
            per_pair_ms: work.per_pair_ms,
            n_observed: n,
        })
    }
}

/// Layers whose costs are drawn together: their numbers, and their indices in each worker's table.
#[derive(Default)]
struct Moments(BTreeMap<usize, usize>);

impl Moments {
    fn of(links: &[(WorkerId, Link<'_>)]) -> Self {
        let mut layers: Vec<usize> =
            links.iter().flat_map(|(_, link)| link.usual().map(|seen| seen.layer)).collect();
        layers.sort_unstable();
        layers.dedup();
        let stride = layers.len().div_ceil(MAX_MOMENTS).max(1);
        Self(layers.into_iter().step_by(stride).enumerate().map(|(at, layer)| (layer, at)).collect())
    }

    /// A worker's table; of two messages in one layer, the first counts.
    fn table(&self, seen: impl Iterator<Item = (usize, ObservedCost)>) -> Arc<[ObservedCost]> {
        let mut table = vec![ObservedCost::Not; self.0.len()];
        for (layer, seen) in seen {
            if let Some(at) = self.0.get(&layer)
                && table[*at] == ObservedCost::Not
            {
                table[*at] = seen;
            }
        }
        table.into()
    }
}

/// The distribution of times, some of which are only lower bounds, by Kaplan and Meier's estimate. Times beyond the
/// last answer are set to the longest observed one.
fn survival(mut observed: Vec<(f64, bool)>) -> Result<Latency, ModelError> {
    // Of equal times, answers come first: the others are known to be longer.
    observed.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
    let n = observed.len();
    let (mut alive, mut steps) = (1.0, Vec::with_capacity(n));
    for (at, (ms, is_answered)) in observed.iter().enumerate() {
        if *is_answered {
            alive *= 1.0 - 1.0 / (n - at) as f64;
            steps.push((1.0 - alive, *ms));
        }
    }
    let longest = observed.last().map_or(0.0, |(ms, _)| *ms);
    let n_quantiles = n.clamp(1, MAX_QUANTILES.min(MAX_SAMPLE_COUNT));
    let quantile = |q: f64| {
        let at = steps.partition_point(|(below, _)| *below < q);
        steps.get(at).map_or(longest, |(_, ms)| *ms)
    };
    Latency::empirical((0..n_quantiles).map(|at| quantile((at as f64 + 0.5) / n_quantiles as f64)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_up_counts_as_longer() {
        // Answers at 1 and 3, and one abandoned at 2. What is left after 2 is all at 3.
        let latency = survival(vec![(1.0, true), (2.0, false), (3.0, true)]).unwrap();
        assert!((latency.cdf(1.0) - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!((latency.cdf(2.9), latency.cdf(3.0)), (latency.cdf(1.0), 1.0));
        let all = survival((1..=100).map(|ms| (f64::from(ms), true)).collect()).unwrap();
        assert!((all.mean() - 50.5).abs() < 1e-9, "{}", all.mean());
        let never = survival(vec![(1.0, true), (5.0, false)]).unwrap();
        assert_eq!(never.mean(), 3.0, "what outlasts all is put at the longest time seen");
    }

    fn fit(messages: &[Message], ping_ms: f64) -> Option<WorkerFit> {
        let links = [(WorkerId(1), Link::of(messages, ping_ms)?)];
        links[0].1.device(0.0, &MIXES, &Moments::of(&links))
    }

    #[test]
    fn a_device_is_found_again() {
        let seen = |(layer, experts): (usize, u32)| {
            let took_ms = 10.0 + 0.5 * f64::from(experts);
            Message { layer, took_ms, ..Message::of(1, experts, experts) }
        };
        let messages: Vec<Message> = (1..=8).cycle().take(80).enumerate().map(seen).collect();
        let found = fit(&messages, 4.0).unwrap();
        assert!((found.per_expert_ms + found.per_pair_ms - 0.5).abs() < 1e-9);
        assert!((found.per_message.mean() - 6.0).abs() < 1e-9);
        assert_eq!((found.round_trip_ms, found.n_observed, found.moments.len()), (4.0, 80, 80));
        let never = Message { is_answered: false, ..seen((0, 1)) };
        assert!(fit(&[never], 4.0).is_none());
    }

    #[test]
    fn what_is_cut_off_below_is_taken_off_above() {
        let seen = |(layer, took_ms): (usize, f64)| Message { layer, took_ms, ..Message::of(1, 2, 2) };
        let many = |(layer, took_ms): (usize, f64)| Message { layer, took_ms, ..Message::of(9, 20, 20) };
        let messages: Vec<Message> = [2.0, 1.0, 6.0]
            .into_iter()
            .cycle()
            .take(60)
            .enumerate()
            .map(seen)
            .chain([24.0, 25.0].into_iter().enumerate().map(many))
            .collect();
        let found = fit(&messages, 0.5).unwrap();
        let work_ms = 2.0 * (found.per_expert_ms + found.per_pair_ms);
        let mean = found.round_trip_ms + work_ms + found.per_message.mean();
        assert!(work_ms > 0.5, "some took less than their work: {found:?}");
        assert!((mean - 3.0).abs() < 0.05, "{mean}");
    }
}
