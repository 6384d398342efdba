//! Fits the times of links, devices and the hub to the first steps of a trace.
//!
//! ```text
//! messages  attempts with their content, concurrent messages, and their time
//! work      the part that grows with experts and rows, and the contention between workers
//! worker    the rest: a link from its fastest ping, and a measured distribution of a message's other time
//! hub       its own times, as lines in the number of rows
//! ```
//! The fit does not use tokens or later steps.

mod messages;
mod work;
mod worker;

use std::collections::BTreeMap;

use moex_protocol::WorkerId;
use moex_swarm::trace::LayerRecord;

use self::messages::Message;
use super::trace::{Step, Trace};

pub use self::worker::WorkerFit;

/// The fitted times, milliseconds.
#[derive(Clone, Debug)]
pub struct Fit {
    /// The workers that were sent anything, by id.
    pub workers: BTreeMap<WorkerId, WorkerFit>,
    /// By how much of its own time each further computing worker slows one down: 0 if they share nothing, 1 if they
    /// share one processor.
    pub contention: f64,
    /// The hub.
    pub hub: HubFit,
}

/// The time of the hub's own part, by rows.
#[derive(Clone, Debug)]
pub struct HubFit {
    /// From the start of a step to its first layer: embedding, attention, router.
    pub begin: Rows,
    /// From one layer's sum to the request of the next: attention, router, waking up.
    pub attention: Rows,
    /// From the request to the swarm: the way between two threads.
    pub hand_over: Rows,
    /// From the last answer to the sum: combining.
    pub combine: Rows,
    /// From the last layer's sum to the step's end: head, sampler.
    pub end: Rows,
    /// The experts that it computes itself.
    pub device: Option<WorkerFit>,
}

/// A time of `base_ms` for one row, plus `each_ms` for each further row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rows {
    /// The time for one row.
    pub base_ms: f64,
    /// The time for each further row.
    pub each_ms: f64,
}

impl Rows {
    /// The time for `rows`, never negative.
    pub fn at(self, rows: u32) -> f64 {
        (self.base_ms + self.each_ms * f64::from(rows.max(1) - 1)).max(0.0)
    }

    /// Least squares over (rows, ms). The sum of the fitted times is that of the observed ones.
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
        let messages = messages::of(trace, steps);
        let (workers, contention) = worker::fit(trace, steps, &messages);
        Self { workers, contention, hub: HubFit::of(steps) }
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
        let work = layers().enumerate().flat_map(|(at, layer)| {
            layer.hub.iter().filter_map(move |work| {
                let took_ms = ms(work.sent, work.ended?);
                Some(Message { layer: at, took_ms, ..Message::of(layer.rows, work.experts, work.pairs) })
            })
        });
        Self {
            begin: by_step(|step| Some((step.begun, step.layers.first()?.asked))),
            attention: Rows::fit(&between.collect::<Vec<_>>()),
            hand_over: by_layer(|layer| (layer.asked, layer.started)),
            combine: by_layer(|layer| (layer.done, layer.replied)),
            end: by_step(|step| Some((step.layers.last()?.replied, step.ended))),
            device: WorkerFit::of_hub(&work.collect::<Vec<_>>()),
        }
    }
}

/// Least squares: (value at x = 0, slope); the slope is 0 where all x are equal.
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
    fn times_by_rows_are_a_line() {
        let fit = Rows::fit(&[(1, 2.0), (1, 2.0), (11, 7.0)]);
        assert!((fit.at(1) - 2.0).abs() < 1e-9 && (fit.at(21) - 12.0).abs() < 1e-9);
        assert_eq!(Rows::fit(&[(1, 4.0), (1, 6.0)]), Rows { base_ms: 5.0, each_ms: 0.0 });
        assert_eq!(Rows::fit(&[]).at(9), 0.0);
    }
}
