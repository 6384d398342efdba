//! Latency percentiles of recent answers, by message size, in bounded memory.

use std::collections::VecDeque;
use std::time::Duration;

/// Samples kept: enough for a p99, small enough for a thousand workers.
const MAX_SAMPLES: usize = 256;
/// Samples needed for a meaningful median.
const ENOUGH: usize = 8;
/// Classes of message size, each four times as large as the one before: 1 to 4 pairs, 5 to 16, and so on.
const N_CLASSES: usize = 8;
/// The last class of decode steps: at most 64 pairs. Larger messages are chunks of prompts.
const LAST_DECODE_CLASS: usize = 2;
/// Minimum delay of a second copy: below it, a timer's wake-up is most of the wait.
const HEDGE_FLOOR: Duration = Duration::from_millis(2);
/// A second copy sent before this many medians can hardly win, since it takes one median itself.
const HEDGE_MIN_MEDIANS: u32 = 2;
/// An answer later than this many medians is stuck, whatever the worker's p95.
const HEDGE_MAX_MEDIANS: u32 = 3;

/// The last [`MAX_SAMPLES`] latencies.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latency {
    /// Microseconds in order of arrival.
    recent: VecDeque<u32>,
    /// The same, ascending.
    sorted: Vec<u32>,
}

impl Latency {
    /// Records one latency; saturates at 71 minutes.
    pub(crate) fn record(&mut self, latency: Duration) {
        let micros = u32::try_from(latency.as_micros()).unwrap_or(u32::MAX);
        if self.recent.len() == MAX_SAMPLES
            && let Some(oldest) = self.recent.pop_front()
        {
            let at = self.sorted.partition_point(|sample| *sample < oldest);
            self.sorted.remove(at);
        }
        self.recent.push_back(micros);
        let at = self.sorted.partition_point(|sample| *sample < micros);
        self.sorted.insert(at, micros);
    }

    /// Number of samples.
    pub(crate) fn len(&self) -> usize {
        self.sorted.len()
    }

    /// The quantile `q` in 0..=1 by nearest rank; zero without samples.
    pub(crate) fn quantile(&self, q: f64) -> Duration {
        let rank = (q * self.sorted.len() as f64).ceil() as usize;
        let at = rank.clamp(1, self.sorted.len().max(1)) - 1;
        Duration::from_micros(u64::from(self.sorted.get(at).copied().unwrap_or(0)))
    }

    /// The mean; zero without samples.
    pub(crate) fn mean_micros(&self) -> u64 {
        let sum: u64 = self.sorted.iter().map(|micros| u64::from(*micros)).sum();
        sum / self.sorted.len().max(1) as u64
    }

    /// At most `n` samples of equal weight, ascending, that stand for all.
    pub(crate) fn spread_micros(&self, n: usize) -> Vec<u64> {
        let n = n.min(self.sorted.len());
        (0..n).map(|at| self.quantile_micros((at as f64 + 0.5) / n as f64)).collect()
    }

    /// Quantile `q` in microseconds.
    pub(crate) fn quantile_micros(&self, q: f64) -> u64 {
        self.quantile(q).as_micros() as u64
    }
}

/// Latencies of one worker or of the hub, by (row, expert) pairs of the message.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latencies([Latency; N_CLASSES]);

impl Latencies {
    pub(crate) fn record(&mut self, n_pairs: usize, latency: Duration) {
        self.0[class(n_pairs)].record(latency);
    }

    /// Latencies of messages of this size.
    pub(super) fn of(&self, n_pairs: usize) -> &Latency {
        &self.0[class(n_pairs)]
    }

    /// Whether there are enough samples.
    pub(super) fn is_measured(&self) -> bool {
        self.0.iter().any(|latency| latency.len() >= ENOUGH)
    }

    /// The median for messages of this size; otherwise of the next larger size with enough samples, which is no less;
    /// otherwise of the next smaller one, scaled. None if no size has enough.
    pub(super) fn expected(&self, n_pairs: usize) -> Option<Duration> {
        let class = class(n_pairs);
        let median = |at: usize| Some(&self.0[at]).filter(|l| l.len() >= ENOUGH).map(|l| l.quantile(0.5));
        let larger = (class..N_CLASSES).find_map(median);
        larger.or_else(|| {
            (0..class).rev().find_map(|at| median(at).map(|m| m.saturating_mul(1 << (2 * (class - at)))))
        })
    }

    /// Delay of the second copy of a message of this size: the worker's own p95, between two and three medians. None
    /// before there is a median.
    pub(super) fn hedge_delay(&self, n_pairs: usize) -> Option<Duration> {
        let median = self.expected(n_pairs)?;
        let most = median.saturating_mul(HEDGE_MAX_MEDIANS);
        let own = self.of(n_pairs);
        let p95 = if own.len() >= ENOUGH { own.quantile(0.95) } else { most };
        Some(p95.clamp(median.saturating_mul(HEDGE_MIN_MEDIANS), most).max(HEDGE_FLOOR))
    }

    /// Of the class of decode steps with the most samples, if it has enough: its largest number of pairs and its
    /// median.
    pub(super) fn decode_median(&self) -> Option<(usize, Duration)> {
        self.median_of(0..LAST_DECODE_CLASS + 1)
    }

    /// The same for chunks of prompts.
    pub(super) fn prefill_median(&self) -> Option<(usize, Duration)> {
        self.median_of(LAST_DECODE_CLASS + 1..N_CLASSES)
    }

    /// The class with the most samples; of equals, the smallest.
    pub(super) fn busiest(&self) -> &Latency {
        self.0.iter().rev().max_by_key(|latency| latency.len()).unwrap_or(&self.0[0])
    }

    fn median_of(&self, classes: std::ops::Range<usize>) -> Option<(usize, Duration)> {
        let at = classes.rev().max_by_key(|at| self.0[*at].len())?;
        let latency = &self.0[at];
        (latency.len() >= ENOUGH).then(|| (4 << (2 * at), latency.quantile(0.5)))
    }
}

/// 1 to 4 pairs are class 0, 5 to 16 class 1, 17 to 64 class 2.
fn class(n_pairs: usize) -> usize {
    let log2 = n_pairs.max(1).next_power_of_two().trailing_zeros() as usize;
    (log2.div_ceil(2).max(1) - 1).min(N_CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn measured(n_pairs: usize, samples: impl IntoIterator<Item = u64>) -> Latencies {
        let mut latencies = Latencies::default();
        samples.into_iter().for_each(|sample| latencies.record(n_pairs, millis(sample)));
        latencies
    }

    #[test]
    fn quantiles_are_those_of_the_last_samples() {
        let mut latency = Latency::default();
        assert_eq!(latency.quantile_micros(0.5), 0);
        for micros in 1..=100 {
            latency.record(Duration::from_micros(micros));
        }
        assert_eq!((latency.quantile_micros(0.5), latency.quantile_micros(0.99)), (50, 99));
        assert_eq!((latency.quantile_micros(0.0), latency.quantile_micros(1.0)), (1, 100));
        assert_eq!((latency.mean_micros(), latency.spread_micros(2)), (50, vec![25, 75]));
        assert_eq!((Latency::default().mean_micros(), Latency::default().spread_micros(2)), (0, vec![]));
        for _ in 0..MAX_SAMPLES {
            latency.record(Duration::from_secs(1));
        }
        assert_eq!((latency.quantile_micros(0.0), latency.len()), (1_000_000, MAX_SAMPLES));
    }

    proptest! {
        #[test]
        fn the_sorted_samples_are_the_recent_ones(samples in proptest::collection::vec(0u32..50, 0..600)) {
            let mut latency = Latency::default();
            for sample in &samples {
                latency.record(Duration::from_micros(u64::from(*sample)));
            }
            let mut last = samples[samples.len().saturating_sub(MAX_SAMPLES)..].to_vec();
            last.sort_unstable();
            prop_assert_eq!(latency.sorted, last);
        }
    }

    #[test]
    fn classes_grow_by_four() {
        let at = [0, 1, 4, 5, 16, 17, 64, 65, 256, 257, 1 << 30].map(class);
        assert_eq!(at, [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 7]);
    }

    #[test]
    fn a_size_never_seen_is_expected_by_its_neighbours() {
        assert_eq!(Latencies::default().expected(8), None);
        assert_eq!(measured(8, [10; 7]).expected(8), None, "too few");
        let latencies = measured(8, [10; 8]);
        assert_eq!(latencies.expected(8), Some(millis(10)));
        assert_eq!(latencies.expected(2), Some(millis(10)));
        assert_eq!(latencies.expected(100), Some(millis(160)));
    }

    #[test]
    fn the_second_copy_leaves_at_the_p95_within_two_and_three_medians() {
        let delay = |samples: Vec<u64>| measured(8, samples).hedge_delay(8);
        assert_eq!(delay(vec![]), None);
        assert_eq!(delay(vec![10; 100]), Some(millis(20)), "steady");
        let mut spread = vec![10; 94];
        spread.extend([25; 6]);
        assert_eq!(delay(spread), Some(millis(25)));
        let mut stalling = vec![10; 90];
        stalling.extend([200; 10]);
        assert_eq!(delay(stalling), Some(millis(30)), "one in ten stalls, and each is hedged");
        assert_eq!(delay(vec![0; 100]), Some(HEDGE_FLOOR));
    }
}
