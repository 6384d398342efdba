//! What links, devices and the hub take, from the first steps of a trace.
//!
//! A worker's link is its fastest ping. What an answer takes beyond that is its device's: a slope for each expert, and
//! the rest for each message, as a distribution: what was measured, not a law. An attempt that was given up took at
//! least so long as it was waited for; the estimate is Kaplan and Meier's, which counts such observations as what they
//! are. Attempts that queued behind one that was given up are left out where there are enough others, since the
//! simulated worker queues them itself.

use std::{collections::BTreeMap, ops::RangeInclusive};

use moex_hub::swarm::trace::{AttemptRecord, LayerRecord, Outcome};
use moex_protocol::WorkerId;

use super::trace::{Step, Trace, Worker};
use crate::{
    error::ModelError,
    latency::{Latency, MAX_SAMPLE_COUNT},
};

/// Observations that did not queue, below which those that did are taken too.
const ENOUGH: usize = 30;
/// Quantiles that stand for a distribution.
const MAX_QUANTILES: usize = 4_096;
/// Pairs an expert at most for a message to count as one of single rows.
const SINGLE_ROWS: u32 = 4;

/// All that is fitted; times are milliseconds.
#[derive(Clone, Debug)]
pub struct Fit {
    /// By id, those that were asked for anything.
    pub workers: BTreeMap<WorkerId, WorkerFit>,
    /// The hub.
    pub hub: HubFit,
}

/// One worker's link and device.
#[derive(Clone, Debug)]
pub struct WorkerFit {
    /// Its fastest ping.
    pub round_trip_ms: f64,
    /// What its device takes for a message however small it is, system and socket included.
    pub per_message: Latency,
    /// And for each expert.
    pub per_expert_ms: f64,
    /// Or, where that is more, for each (row, expert).
    pub per_pair_ms: f64,
    /// Messages that this is from.
    pub n_observed: usize,
}

/// What the hub's own part takes, by rows.
#[derive(Clone, Debug)]
pub struct HubFit {
    /// From a step's begin to its first layer: embedding, attention, router.
    pub begin: Rows,
    /// From one layer's sum to the asking of the next: attention, router, waking up.
    pub attention: Rows,
    /// From the asking to the swarm: the way between two threads.
    pub hand_over: Rows,
    /// From the last answer to the sum: combining.
    pub combine: Rows,
    /// From the last layer's sum to the step's end: head, sampler.
    pub end: Rows,
    /// What it computes of experts itself.
    pub device: Option<WorkerFit>,
}

/// A time that is `base_ms` for one row and `each_ms` more for each further one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rows {
    /// For one row.
    pub base_ms: f64,
    /// For each further one.
    pub each_ms: f64,
}

impl Rows {
    /// The time for so many rows, never negative.
    pub fn at(self, rows: u32) -> f64 {
        (self.base_ms + self.each_ms * f64::from(rows.max(1) - 1)).max(0.0)
    }

    /// Least squares over (rows, ms): its sum over the observations is theirs.
    fn fit(observed: &[(u32, f64)]) -> Self {
        let points: Vec<(f64, f64)> =
            observed.iter().map(|(rows, ms)| (f64::from(*rows) - 1.0, *ms)).collect();
        let (base_ms, each_ms) = line(&points);
        Self { base_ms, each_ms }
    }
}

impl Fit {
    /// Fits the first `n_steps` steps.
    pub fn of(trace: &Trace, n_steps: usize) -> Self {
        let steps = &trace.steps[..n_steps.min(trace.steps.len())];
        let during = steps.first().map_or(0, |step| step.begun)..=steps.last().map_or(0, |step| step.ended);
        let mut observed = observe(trace, steps);
        let workers = trace.workers.iter().filter_map(|(id, worker)| {
            let round_trip_ms = round_trip(worker, &during);
            Some((*id, WorkerFit::of(observed.remove(id)?, round_trip_ms)?))
        });
        Self { workers: workers.collect(), hub: HubFit::of(steps) }
    }
}

impl HubFit {
    fn of(steps: &[Step]) -> Self {
        let ms = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e3;
        let layers = || steps.iter().flat_map(|step| &step.layers);
        let by_layer = |time: fn(&LayerRecord) -> (u64, u64)| {
            let observed = layers().map(|layer| (layer.rows, ms(time(layer).0, time(layer).1)));
            Rows::fit(&observed.collect::<Vec<_>>())
        };
        let by_step = |time: fn(&Step) -> Option<(u64, u64)>| {
            let observed =
                steps.iter().filter_map(|step| time(step).map(|(from, to)| (step.rows, ms(from, to))));
            Rows::fit(&observed.collect::<Vec<_>>())
        };
        let between = steps.iter().flat_map(|step| {
            step.layers.windows(2).map(|pair| (step.rows, ms(pair[0].replied, pair[1].asked)))
        });
        let work = layers().flat_map(|layer| {
            layer.hub.iter().filter_map(|work| {
                let took_ms = ms(work.sent, work.ended?);
                Some(Observed {
                    experts: work.experts,
                    pairs: work.pairs,
                    took_ms,
                    is_answered: true,
                    queued: false,
                })
            })
        });
        Self {
            begin: by_step(|step| Some((step.begun, step.layers.first()?.asked))),
            attention: Rows::fit(&between.collect::<Vec<_>>()),
            hand_over: by_layer(|layer| (layer.asked, layer.started)),
            combine: by_layer(|layer| (layer.done, layer.replied)),
            end: by_step(|step| Some((step.layers.last()?.replied, step.ended))),
            device: WorkerFit::of(work.collect(), 0.0),
        }
    }
}

/// What an attempt says of its worker.
#[derive(Clone, Copy, Debug)]
struct Observed {
    experts: u32,
    pairs: u32,
    /// Until its answer, or at least so long.
    took_ms: f64,
    is_answered: bool,
    /// Whether the worker may have been at something else first.
    queued: bool,
}

fn observe(trace: &Trace, steps: &[Step]) -> BTreeMap<WorkerId, Vec<Observed>> {
    let mut observed: BTreeMap<WorkerId, Vec<Observed>> = BTreeMap::new();
    // Until when each worker is known to be at something; none: nobody knows.
    let mut busy: BTreeMap<WorkerId, Option<u64>> = BTreeMap::new();
    let mut attempts: Vec<&AttemptRecord> =
        steps.iter().flat_map(|step| &step.layers).flat_map(|layer| &layer.attempts).collect();
    attempts.sort_by_key(|attempt| (attempt.sent, attempt.id));
    for attempt in attempts {
        let late = trace.late.get(&attempt.id).copied();
        let answered = match attempt.outcome {
            Outcome::Answered => Some(attempt.ended),
            Outcome::GivenUp | Outcome::TimedOut => late.filter(|at| *at >= attempt.sent),
            Outcome::Failed => continue,
        };
        let queued =
            busy.get(&attempt.worker).is_some_and(|until| until.is_none_or(|until| until > attempt.sent));
        busy.insert(attempt.worker, answered);
        observed.entry(attempt.worker).or_default().push(Observed {
            experts: attempt.experts,
            pairs: attempt.pairs,
            took_ms: answered.unwrap_or(attempt.ended).saturating_sub(attempt.sent) as f64 / 1e3,
            is_answered: answered.is_some(),
            queued,
        });
    }
    observed
}

/// The fastest ping within that time, milliseconds; 0 without any, and then all is the device's.
fn round_trip(worker: &Worker, during: &RangeInclusive<u64>) -> f64 {
    let fastest =
        worker.round_trips.iter().filter(|(at, _)| during.contains(at)).map(|(_, micros)| *micros).min();
    fastest.unwrap_or(0) as f64 / 1e3
}

impl WorkerFit {
    /// None if it never answered.
    fn of(all: Vec<Observed>, round_trip_ms: f64) -> Option<Self> {
        let alone: Vec<Observed> = all.iter().copied().filter(|seen| !seen.queued).collect();
        let n_alone = alone.iter().filter(|seen| seen.is_answered).count();
        let seen = if n_alone >= ENOUGH { alone } else { all };
        let is_single = |seen: &Observed| seen.pairs <= SINGLE_ROWS * seen.experts;
        let (single, many): (Vec<Observed>, Vec<Observed>) = seen.iter().copied().partition(is_single);
        let basis = if single.iter().any(|seen| seen.is_answered) { &single } else { &many };
        let points: Vec<(f64, f64)> = basis
            .iter()
            .filter(|seen| seen.is_answered)
            .map(|seen| (f64::from(seen.experts), seen.took_ms))
            .collect();
        let per_expert_ms = if points.is_empty() { return None } else { line(&points).1.max(0.0) };
        // The fastest answer bounds what the wire can take: a ping may have waited for the processor.
        let fastest = points.iter().map(|(_, ms)| *ms).fold(f64::INFINITY, f64::min);
        let round_trip_ms = round_trip_ms.min(fastest);
        let rest = |seen: &Observed| {
            (seen.took_ms - round_trip_ms - per_expert_ms * f64::from(seen.experts)).max(0.0)
        };
        let per_message = survival(basis.iter().map(|seen| (rest(seen), seen.is_answered)).collect()).ok()?;
        let base_ms = round_trip_ms + per_message.mean();
        let mut each: Vec<f64> = many
            .iter()
            .filter(|seen| seen.is_answered)
            .map(|seen| (seen.took_ms - base_ms).max(0.0) / f64::from(seen.pairs.max(1)))
            .collect();
        each.sort_by(f64::total_cmp);
        let per_pair_ms = each.get(each.len() / 2).copied().unwrap_or(0.0);
        Some(Self { round_trip_ms, per_message, per_expert_ms, per_pair_ms, n_observed: points.len() })
    }
}

/// The distribution of times of which some are only known to be longer, by Kaplan and Meier's estimate; what outlasts
/// the last answer is put at the longest time seen.
fn survival(mut observed: Vec<(f64, bool)>) -> Result<Latency, ModelError> {
    // Of equal times the answered come first: the others are known to be longer.
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

/// Least squares: (value at x = 0, slope); no slope where all x are one.
fn line(points: &[(f64, f64)]) -> (f64, f64) {
    let n = points.len().max(1) as f64;
    let (sum_x, sum_y) = points.iter().fold((0.0, 0.0), |(x, y), point| (x + point.0, y + point.1));
    let (mean_x, mean_y) = (sum_x / n, sum_y / n);
    let (mut squares, mut products) = (0.0, 0.0);
    for (x, y) in points {
        squares += (x - mean_x) * (x - mean_x);
        products += (x - mean_x) * (y - mean_y);
    }
    let slope = if squares > 0.0 { products / squares } else { 0.0 };
    (mean_y - slope * mean_x, slope)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_up_counts_as_longer() {
        // Answers at 1 and 3; one that was waited for until 2. Half of what is left after 2 is beyond... all at 3.
        let latency = survival(vec![(1.0, true), (2.0, false), (3.0, true)]).unwrap();
        assert!((latency.cdf(1.0) - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!((latency.cdf(2.9), latency.cdf(3.0)), (latency.cdf(1.0), 1.0));
        let all = survival((1..=100).map(|ms| (f64::from(ms), true)).collect()).unwrap();
        assert!((all.mean() - 50.5).abs() < 1e-9, "{}", all.mean());
        let never = survival(vec![(1.0, true), (5.0, false)]).unwrap();
        assert_eq!(never.mean(), 3.0, "what outlasts all is put at the longest time seen");
    }

    #[test]
    fn times_by_rows_are_a_line() {
        let fit = Rows::fit(&[(1, 2.0), (1, 2.0), (11, 7.0)]);
        assert!((fit.at(1) - 2.0).abs() < 1e-9 && (fit.at(21) - 12.0).abs() < 1e-9);
        assert_eq!(Rows::fit(&[(1, 4.0), (1, 6.0)]), Rows { base_ms: 5.0, each_ms: 0.0 });
        assert_eq!(Rows::fit(&[]).at(9), 0.0);
    }

    #[test]
    fn a_device_is_found_again() {
        let seen = |experts: u32| Observed {
            experts,
            pairs: experts,
            took_ms: 10.0 + 0.5 * f64::from(experts),
            is_answered: true,
            queued: false,
        };
        let fit = WorkerFit::of((1..=8).cycle().take(80).map(seen).collect(), 4.0).unwrap();
        assert!((fit.per_expert_ms - 0.5).abs() < 1e-9);
        assert!((fit.per_message.mean() - 6.0).abs() < 1e-9);
        assert_eq!(fit.round_trip_ms, 4.0);
        let never = Observed { is_answered: false, ..seen(1) };
        assert!(WorkerFit::of(vec![never], 4.0).is_none());
    }
}
