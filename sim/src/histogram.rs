//! A histogram of millions of times in fixed memory: exact count, mean and extremes, quantiles to within a hundredth.

use std::time::Duration;

/// Buckets for each doubling: a bucket is less than 0.8 % wide.
const PER_DOUBLING: usize = 128;
const DOUBLINGS: usize = 64 - PER_DOUBLING.ilog2() as usize;

/// Counts of times.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum_nanos: u128,
    most: Duration,
}

impl Default for Histogram {
    fn default() -> Self {
        let counts = vec![0; PER_DOUBLING * (DOUBLINGS + 1)];
        Self { counts, count: 0, sum_nanos: 0, most: Duration::ZERO }
    }
}

impl Histogram {
    /// Adds one time.
    pub fn record(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(nanos)] += 1;
        self.count += 1;
        self.sum_nanos += u128::from(nanos);
        self.most = self.most.max(time);
    }

    /// The number of times.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their mean, milliseconds, exact; 0 without any.
    pub fn mean_ms(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum_nanos as f64 / self.count as f64 / 1e6 }
    }

    /// The quantile `q` in 0..=1 by nearest rank, milliseconds; 0 without any.
    pub fn quantile_ms(&self, q: f64) -> f64 {
        let rank = libm::ceil(q * self.count as f64).max(1.0) as u64;
        self.cumulated().find(|(_, below)| *below >= rank).map_or(0.0, |(ms, _)| ms)
    }

    /// The cumulated distribution as (milliseconds, share), a point for each bucket that is not empty.
    pub fn cdf(&self) -> Vec<(f64, f64)> {
        self.cumulated().map(|(ms, below)| (ms, below as f64 / self.count as f64)).collect()
    }

    fn cumulated(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let mut below = 0;
        let most_ms = self.most.as_nanos() as f64 / 1e6;
        self.counts.iter().enumerate().filter(|(_, count)| **count > 0).map(move |(at, count)| {
            below += count;
            (middle_ms(at).min(most_ms), below)
        })
    }
}

/// Times below [`PER_DOUBLING`] nanoseconds have a bucket each; larger ones share buckets by their leading bits.
fn bucket(nanos: u64) -> usize {
    let doubling = nanos.checked_ilog2().unwrap_or(0).saturating_sub(PER_DOUBLING.ilog2()) as usize;
    let leading = (nanos >> doubling) as usize;
    if leading < PER_DOUBLING { leading } else { doubling * PER_DOUBLING + leading }
}

fn middle_ms(bucket: usize) -> f64 {
    if bucket < 2 * PER_DOUBLING {
        return bucket as f64 / 1e6;
    }
    let doubling = bucket / PER_DOUBLING - 1;
    let leading = (bucket % PER_DOUBLING + PER_DOUBLING) as u64;
    ((leading << doubling) as f64 + ((1u64 << doubling) - 1) as f64 / 2.0) / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_hundredth_and_the_mean_is_exact() {
        let mut histogram = Histogram::default();
        for micros in 1..=10_000 {
            histogram.record(Duration::from_micros(micros));
        }
        assert!((histogram.mean_ms() - 5.000_5).abs() < 1e-9);
        for (q, ms) in [(0.5, 5.0), (0.99, 9.9), (1.0, 10.0)] {
            assert!((histogram.quantile_ms(q) / ms - 1.0).abs() < 0.01, "{q}: {}", histogram.quantile_ms(q));
        }
        assert_eq!(histogram.cdf().last().map(|(_, share)| *share), Some(1.0));
    }

    #[test]
    fn every_time_has_a_bucket_and_a_later_time_none_before_it() {
        let times = (0..64).flat_map(|bit| [1u64 << bit, (1 << bit) | ((1 << bit) >> 1), (1 << bit) - 1]);
        let mut times: Vec<u64> = times.chain([u64::MAX]).collect();
        times.sort_unstable();
        let buckets: Vec<usize> = times.iter().map(|nanos| bucket(*nanos)).collect();
        assert!(buckets.is_sorted() && buckets[buckets.len() - 1] < PER_DOUBLING * (DOUBLINGS + 1));
        for (nanos, bucket) in times.iter().zip(buckets) {
            assert!((middle_ms(bucket) * 1e6 - *nanos as f64).abs() <= *nanos as f64 / 100.0);
        }
    }
}
