//! Counts and times requests by the engine's events.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use moex_engine::{Event, FinishReason};

/// Counters over all requests since the hub started.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Sequences waiting for their first step.
    pub(super) waiting: AtomicU64,
    /// Sequences that have had a step.
    pub(super) running: AtomicU64,
    /// Prompt tokens of finished sequences.
    pub(super) prompt_tokens: AtomicU64,
    /// Generated tokens of finished sequences.
    pub(super) generation_tokens: AtomicU64,
    /// Sequences ended by the model or a stop string.
    pub(super) stopped: AtomicU64,
    /// Sequences ended by their token limit.
    pub(super) cut: AtomicU64,
    /// Time from submission to the first piece of text.
    pub(super) first_token: Histogram,
    /// Time between two pieces of a text.
    pub(super) between_tokens: Histogram,
    /// Time per token after the first.
    pub(super) per_token: Histogram,
    /// Time from submission to the end.
    pub(super) whole: Histogram,
}

/// A Prometheus histogram of durations.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    counts: [AtomicU64; BUCKETS_SECONDS.len() + 1],
    sum_nanos: AtomicU64,
}

/// Upper bounds of the buckets.
pub(super) const BUCKETS_SECONDS: [f64; 19] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0,
    40.0, 160.0,
];

impl Histogram {
    fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = BUCKETS_SECONDS.iter().position(|end| seconds <= *end).unwrap_or(BUCKETS_SECONDS.len());
        self.counts[bucket].fetch_add(1, Relaxed);
        self.sum_nanos.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Returns cumulative counts for each bucket's upper bound and for all, and the sum of all values.
    pub(super) fn read(&self) -> (Vec<(f64, u64)>, f64) {
        let ends = BUCKETS_SECONDS.iter().copied().chain([f64::INFINITY]);
        let mut sum = 0;
        let counts = ends.zip(&self.counts).map(|(end, count)| {
            sum += count.load(Relaxed);
            (end, sum)
        });
        (counts.collect(), self.sum_nanos.load(Relaxed) as f64 / 1e9)
    }
}

/// Observes one sequence's events; counts it as waiting or running until dropped.
pub(super) struct Tap {
    counters: Arc<Counters>,
    queued: Instant,
    is_running: bool,
    last: Option<Instant>,
}

impl Tap {
    /// Starts observing a sequence that is being submitted.
    pub(super) fn new(counters: Arc<Counters>) -> Self {
        counters.waiting.fetch_add(1, Relaxed);
        Self { counters, queued: Instant::now(), is_running: false, last: None }
    }

    /// Handles the next event.
    pub(super) fn hear(&mut self, event: &Event) {
        let c = &self.counters;
        if !self.is_running {
            self.is_running = true;
            c.running.fetch_add(1, Relaxed);
            c.waiting.fetch_sub(1, Relaxed);
        }
        match event {
            Event::Text(_) => {
                let now = Instant::now();
                match self.last.replace(now) {
                    Some(last) => c.between_tokens.observe(now - last),
                    None => c.first_token.observe(now - self.queued),
                }
            }
            Event::Finished(finish) => {
                let usage = finish.usage;
                c.prompt_tokens.fetch_add(usage.prompt_tokens as u64, Relaxed);
                c.generation_tokens.fetch_add(usage.completion_tokens as u64, Relaxed);
                match finish.reason {
                    FinishReason::Stop => c.stopped.fetch_add(1, Relaxed),
                    FinishReason::Length => c.cut.fetch_add(1, Relaxed),
                };
                if let Some(n @ 1..) =
                    u32::try_from(usage.completion_tokens).ok().and_then(|n| n.checked_sub(1))
                {
                    c.per_token.observe(finish.timings.generation / n);
                }
                c.whole.observe(self.queued.elapsed());
            }
            Event::Prompt { .. } | Event::PromptLogprobs(_) | Event::Logprobs(_) | Event::Failed(_) => {}
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        let gauge = if self.is_running { &self.counters.running } else { &self.counters.waiting };
        gauge.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_waits_then_runs_and_is_gone_when_dropped() {
        let counters = Arc::new(Counters::default());
        let seen = || (counters.waiting.load(Relaxed), counters.running.load(Relaxed));
        let mut tap = Tap::new(counters.clone());
        assert_eq!(seen(), (1, 0));
        tap.hear(&Event::Prompt { done: 1, total: 2 });
        assert_eq!(seen(), (0, 1));
        tap.hear(&Event::Text("a".to_owned()));
        tap.hear(&Event::Text("b".to_owned()));
        drop(tap);
        drop(Tap::new(counters.clone()));
        assert_eq!(seen(), (0, 0));
        let all = |histogram: &Histogram| histogram.read().0.last().map(|(_, count)| *count);
        assert_eq!((all(&counters.first_token), all(&counters.between_tokens)), (Some(1), Some(1)));
    }

    #[test]
    fn buckets_count_all_that_are_at_most_their_end() {
        let histogram = Histogram::default();
        for millis in [1, 3, 200, 1_000_000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let (counts, sum) = histogram.read();
        let at = |end: f64| counts.iter().find(|(e, _)| *e == end).map(|(_, count)| *count);
        assert_eq!(
            (at(0.001), at(0.005), at(0.2), at(160.0), at(f64::INFINITY)),
            (Some(1), Some(2), Some(3), Some(3), Some(4))
        );
        assert!((sum - 1000.204).abs() < 1e-9);
    }
}
