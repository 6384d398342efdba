//! Fits the part of a message's time that grows with its content, each expert and each (row, expert), and the
//! contention with concurrent messages.
//!
//! Workers that share a processor are equally fast while they compute, so each waits for at most as much of another's
//! work as its own: with work w and contention s, it takes w + s x the sum over the others of min(w, theirs)
//! (`world::SharedHost` simulates that). A grid search finds the ratio of experts to pairs, and s; least squares finds
//! the time per unit of work and a message's other time.
//!
//! Prompts have few, large messages, and single rows many small ones: both kinds have the same weight, relative to
//! their own mean. A line fitted to all messages equally would miss the small ones, which are most of the time.

use super::messages::Message;

/// The share of pairs in a message's work; experts have the rest.
pub(super) const MIXES: [f64; 11] = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];
/// The shares for a device that hides one of the two behind the other.
pub(super) const PURE_MIXES: [f64; 2] = [0.0, 1.0];
/// Contentions that are tried.
const CONTENTIONS: [f64; 11] = MIXES;
/// The share of the squared errors that contention must explain to be accepted.
const WORTH: f64 = 0.02;

/// The cost of a worker's computing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Work {
    pub per_expert_ms: f64,
    pub per_pair_ms: f64,
    /// The remaining squared errors, relative to the mean of each kind of message.
    error: f64,
}

impl Work {
    /// The best fit for one worker, if each message takes at least `base_ms` that is not work.
    pub(super) fn of(messages: &[&Message], base_ms: f64, contention: f64, mixes: &[f64]) -> Self {
        let fits = mixes.iter().map(|mix| {
            let unit = Self { per_expert_ms: 1.0 - mix, per_pair_ms: *mix, error: 0.0 };
            let (ms, error) = unit.cost(messages, base_ms, contention);
            Self { per_expert_ms: ms * unit.per_expert_ms, per_pair_ms: ms * unit.per_pair_ms, error }
        });
        // The first of equally good ones.
        fits.min_by(|a, b| a.error.total_cmp(&b.error)).unwrap_or_default()
    }

    /// The time of a message's work, given the concurrent messages.
    pub(super) fn of_message(self, message: &Message, contention: f64) -> f64 {
        let alone = |(experts, pairs): (f64, f64)| self.per_expert_ms * experts + self.per_pair_ms * pairs;
        let own = alone((message.experts, message.pairs));
        own + contention * message.beside.iter().map(|other| own.min(alone(*other))).sum::<f64>()
    }

    /// The cost of a unit of this work, and the remaining error.
    fn cost(self, messages: &[&Message], base_ms: f64, contention: f64) -> (f64, f64) {
        let weigh = Weigh::of(messages);
        let points: Vec<Point> = messages
            .iter()
            .map(|message| Point {
                x: self.of_message(message, contention),
                y: message.took_ms,
                weight: weigh.at(message),
            })
            .collect();
        let (base, slope) = line(&points, base_ms);
        let error = |point: &Point| {
            let error = point.y - base - slope * point.x;
            point.weight * error * error
        };
        (slope, points.iter().map(error).sum())
    }
}

/// The contention with which the messages of each worker fit best, given its least base.
pub(super) fn contention(workers: &[(Vec<&Message>, f64)]) -> f64 {
    let error = |contention: f64| -> f64 {
        workers.iter().map(|(messages, base)| Work::of(messages, *base, contention, &MIXES).error).sum()
    };
    let alone = error(0.0);
    let tried = CONTENTIONS.map(|contention| (contention, error(contention)));
    let best = tried.into_iter().min_by(|a, b| a.1.total_cmp(&b.1));
    best.filter(|(_, error)| *error < (1.0 - WORTH) * alone).map_or(0.0, |(contention, _)| contention)
}

/// The weight of messages: single rows together weigh as much as all others, and each error is relative to its kind's
/// mean.
struct Weigh {
    single: f64,
    many: f64,
}

impl Weigh {
    fn of(messages: &[&Message]) -> Self {
        let weight = |is_single: bool| {
            let of_kind = || messages.iter().filter(|message| message.is_single == is_single);
            let (n, sum) = (of_kind().count(), of_kind().map(|message| message.took_ms).sum::<f64>());
            if sum > 0.0 { n as f64 / (sum * sum) } else { 0.0 }
        };
        Self { single: weight(true), many: weight(false) }
    }

    fn at(&self, message: &Message) -> f64 {
        if message.is_single { self.single } else { self.many }
    }
}

#[derive(Clone, Copy)]
struct Point {
    x: f64,
    y: f64,
    weight: f64,
}

/// Least squares: (value at x = 0, slope), the value at least `least` and the slope at least 0.
fn line(points: &[Point], least: f64) -> (f64, f64) {
    let sum = |of: fn(&Point) -> f64| points.iter().map(|point| point.weight * of(point)).sum::<f64>();
    let n = sum(|_| 1.0);
    if n <= 0.0 {
        return (least, 0.0);
    }
    let (mean_x, mean_y) = (sum(|point| point.x) / n, sum(|point| point.y) / n);
    let (xx, xy) = (sum(|point| point.x * point.x), sum(|point| point.x * point.y));
    let spread = xx - n * mean_x * mean_x;
    // All x are equal but for rounding, so the slope is unknown.
    if spread <= 1e-9 * xx {
        return (mean_y.max(least), 0.0);
    }
    let slope = (xy - n * mean_x * mean_y) / spread;
    if slope <= 0.0 {
        return (mean_y.max(least), 0.0);
    }
    let base = mean_y - slope * mean_x;
    if base >= least {
        return (base, slope);
    }
    // The best line through the least value.
    (least, ((xy - least * n * mean_x) / xx).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message that takes the time that `truth` gives.
    fn message(
        truth: Work,
        contention: f64,
        base_ms: f64,
        own: (u32, u32),
        beside: &[(u32, u32)],
    ) -> Message {
        let rows = if own.0 == own.1 { 1 } else { 25 };
        let mut message = Message::of(rows, own.0, own.1);
        message.beside =
            beside.iter().map(|(experts, pairs)| (f64::from(*experts), f64::from(*pairs))).collect();
        message.took_ms = base_ms + truth.of_message(&message, contention);
        message
    }

    #[test]
    fn a_prompt_says_nothing_wrong_of_single_rows() {
        // One worker: single rows always have eight experts, prompts far more. Any line fits both.
        let truth = Work { per_expert_ms: 0.6, per_pair_ms: 0.2, error: 0.0 };
        let sizes = [(8, 8); 90].into_iter().chain([(84, 200), (80, 200), (76, 200)]);
        let messages: Vec<Message> = sizes.map(|size| message(truth, 0.0, 3.0, size, &[])).collect();
        let messages: Vec<&Message> = messages.iter().collect();
        let work = Work::of(&messages, 2.0, 0.0, &MIXES);
        for seen in &messages {
            let (found, base) = (work.of_message(seen, 0.0), 3.0);
            assert!((base + found - seen.took_ms).abs() < 0.05 * seen.took_ms, "{found} of {}", seen.took_ms);
        }
        assert_eq!(contention(&[(messages, 2.0)]), 0.0, "nobody is beside it");
    }

    #[test]
    fn contention_is_found_and_none_is_not() {
        let truth = Work { per_expert_ms: 0.7, per_pair_ms: 0.3, error: 0.0 };
        for contended in [0.0, 0.5, 1.0] {
            let sizes = [(1, 1), (2, 2), (3, 3), (4, 4), (20, 50), (24, 64)].into_iter().cycle().take(60);
            let beside = [(2, 2), (3, 3), (21, 52)];
            let messages: Vec<Message> = sizes
                .enumerate()
                .map(|(at, size)| {
                    let others = if size.0 == size.1 { &beside[..1 + at % 2] } else { &beside[2..] };
                    message(truth, contended, 2.0, size, others)
                })
                .collect();
            let found = contention(&[(messages.iter().collect(), 1.0)]);
            assert!((found - contended).abs() < 0.11, "{found} for {contended}");
        }
    }

    #[test]
    fn a_line_keeps_to_its_bounds() {
        let points = |values: &[(f64, f64)]| {
            values.iter().map(|(x, y)| Point { x: *x, y: *y, weight: 1.0 }).collect::<Vec<_>>()
        };
        let (base, slope) = line(&points(&[(1.0, 3.0), (2.0, 5.0)]), 0.0);
        assert!((base - 1.0).abs() < 1e-9 && (slope - 2.0).abs() < 1e-9);
        let (base, slope) = line(&points(&[(1.0, 1.0), (2.0, 4.0)]), 0.0);
        assert!(base == 0.0 && (slope - 1.8).abs() < 1e-9, "{slope}");
        assert_eq!(line(&points(&[(1.0, 4.0), (2.0, 2.0)]), 0.0), (3.0, 0.0), "more work takes no less");
        assert_eq!(line(&points(&[(8.0, 4.0), (8.0, 6.0)]), 0.0), (5.0, 0.0));
        assert_eq!(line(&[], 2.0), (2.0, 0.0));
    }
}
