//! Latency percentiles of the last answers, in bounded memory.

use std::time::Duration;

/// Samples kept: enough for a p99, small enough for a thousand workers.
const MAX_SAMPLES: usize = 256;

/// The last [`MAX_SAMPLES`] latencies.
#[derive(Clone, Debug, Default)]
pub(super) struct Latency {
    micros: Vec<u32>,
    next: usize,
}

impl Latency {
    /// Records one latency; saturates at 71 minutes.
    pub(super) fn record(&mut self, latency: Duration) {
        let micros = u32::try_from(latency.as_micros()).unwrap_or(u32::MAX);
        if self.micros.len() < MAX_SAMPLES {
            self.micros.push(micros);
        } else {
            self.micros[self.next] = micros;
        }
        self.next = (self.next + 1) % MAX_SAMPLES;
    }

    /// How many samples there are.
    pub(super) fn len(&self) -> usize {
        self.micros.len()
    }

    /// The quantile `q` in 0..=1 by nearest rank; zero without samples.
    pub(super) fn quantile(&self, q: f64) -> Duration {
        let mut sorted = self.micros.clone();
        sorted.sort_unstable();
        let rank = (q * sorted.len() as f64).ceil() as usize;
        let at = rank.clamp(1, sorted.len().max(1)) - 1;
        Duration::from_micros(u64::from(sorted.get(at).copied().unwrap_or(0)))
    }

    /// Quantile `q` in microseconds.
    pub(super) fn quantile_micros(&self, q: f64) -> u64 {
        self.quantile(q).as_micros() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_last_samples() {
        let mut latency = Latency::default();
        assert_eq!(latency.quantile_micros(0.5), 0);
        for micros in 1..=100 {
            latency.record(Duration::from_micros(micros));
        }
        assert_eq!((latency.quantile_micros(0.5), latency.quantile_micros(0.99)), (50, 99));
        assert_eq!((latency.quantile_micros(0.0), latency.quantile_micros(1.0)), (1, 100));
        for _ in 0..MAX_SAMPLES {
            latency.record(Duration::from_secs(1));
        }
        assert_eq!((latency.quantile_micros(0.0), latency.len()), (1_000_000, MAX_SAMPLES));
    }
}
