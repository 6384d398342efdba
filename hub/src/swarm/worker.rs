//! What the swarm knows of one worker that has joined.

use std::time::Duration;

use moex_protocol::{Join, State, Visibility, WorkerId};

use super::ConnectionId;
use super::health::Health;
use super::latency::Latency;
use super::shelf::Shelf;
use super::status::WorkerStatus;

/// Up to this many (row, expert) pairs a message is a decode step's, beyond it a prompt's; they are timed apart.
const DECODE_PAIRS: usize = 64;
/// Samples before a worker's own percentiles say anything about its timeouts.
const ENOUGH_SAMPLES: usize = 32;
/// A worker's own p99 times this is its timeout, where that is more than the configured one.
const P99_FACTOR: u32 = 3;
/// The arithmetic of a message may take this many times what the worker's measured speed makes it.
const COMPUTE_FACTOR: f64 = 4.0;
/// What a worker is taken to compute that measured nothing: a slow CPU core.
const ASSUMED_TERAFLOPS: f64 = 0.005;
/// No attempt waits longer than this, whatever a worker says of itself.
const MAX_TIMEOUT: Duration = Duration::from_secs(30);

/// One joined worker.
#[derive(Debug)]
pub(super) struct Worker {
    pub join: Join,
    pub shelf: Shelf,
    pub health: Health,
    pub visibility: Visibility,
    pub queue_depth: u32,
    pub bytes_downloaded: u64,
    pub counts: Counts,
    decode_latency: Latency,
    prefill_latency: Latency,
}

/// Counts since it joined.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub dispatches: u64,
    pub answers: u64,
    pub rows: u64,
    pub timeouts: u64,
    pub errors: u64,
}

impl Worker {
    pub(super) fn new(connection: ConnectionId, join: Join, capacity: usize, strikes: u32) -> Self {
        Self {
            join,
            shelf: Shelf::new(connection, capacity),
            health: Health::new(strikes),
            visibility: Visibility::Visible,
            queue_depth: 0,
            bytes_downloaded: 0,
            counts: Counts::default(),
            decode_latency: Latency::default(),
            prefill_latency: Latency::default(),
        }
    }

    pub(super) fn id(&self) -> WorkerId {
        self.join.worker
    }

    /// Messages it can have waiting or in work without preempting one.
    pub(super) fn slots(&self) -> usize {
        usize::from(self.join.input_slots.max(1))
    }

    pub(super) fn answered(&mut self, n_pairs: usize, latency: Duration) {
        self.health.answered();
        if n_pairs <= DECODE_PAIRS {
            self.decode_latency.record(latency);
        } else {
            self.prefill_latency.record(latency);
        }
    }

    /// How long to wait for an answer to a message of `n_pairs` that takes `flops` of arithmetic: `base`, or longer if
    /// the worker has been slower than that, or its device must be.
    pub(super) fn timeout(&self, base: Duration, n_pairs: usize, flops: f64) -> Duration {
        let latency = if n_pairs <= DECODE_PAIRS { &self.decode_latency } else { &self.prefill_latency };
        let learned = if latency.len() >= ENOUGH_SAMPLES {
            P99_FACTOR * latency.quantile(0.99)
        } else {
            Duration::ZERO
        };
        let teraflops = f64::from(self.join.teraflops);
        let speed = if teraflops > 0.0 && teraflops.is_finite() { teraflops } else { ASSUMED_TERAFLOPS };
        let seconds = (COMPUTE_FACTOR * flops / (speed * 1e12)).min(MAX_TIMEOUT.as_secs_f64());
        (base + Duration::from_secs_f64(seconds)).max(learned).min(MAX_TIMEOUT.max(base))
    }

    pub(super) fn status(&self, address: &str, state: State, block_bytes: u64) -> WorkerStatus {
        let latency =
            if self.decode_latency.len() > 0 { &self.decode_latency } else { &self.prefill_latency };
        let blocks_resident = self.shelf.n_resident();
        WorkerStatus {
            id: self.join.worker,
            kind: self.join.kind,
            adapter: self.join.adapter.clone(),
            backend: self.join.backend.clone(),
            address: address.to_owned(),
            state: self.state_name(state).to_owned(),
            visibility: self.visibility,
            blocks_assigned: self.shelf.n_wanted(),
            blocks_resident,
            bytes_resident: blocks_resident as u64 * block_bytes,
            bytes_downloaded: self.bytes_downloaded,
            weights_served_bytes: 0,
            dispatches: self.counts.dispatches,
            answers: self.counts.answers,
            rows: self.counts.rows,
            timeouts: self.counts.timeouts,
            errors: self.counts.errors,
            latency_p50_micros: latency.quantile_micros(0.5),
            latency_p99_micros: latency.quantile_micros(0.99),
            sync_latency_micros: self.join.sync_latency_micros,
            queue_depth: self.queue_depth,
        }
    }

    fn state_name(&self, state: State) -> &'static str {
        match state {
            State::Serving if !self.health.is_healthy() => "unhealthy",
            State::Joining => "joining",
            State::Syncing => "syncing",
            State::Serving => "serving",
            State::Paused => "paused",
            State::Draining => "draining",
            State::Closed => "closed",
        }
    }
}

#[cfg(test)]
mod tests {
    use moex_protocol::{SelfTest, WorkerKind};

    use super::*;

    fn worker(teraflops: f32) -> Worker {
        let join = Join {
            token: String::new(),
            worker: WorkerId(1),
            kind: WorkerKind::Native,
            build: String::new(),
            adapter: String::new(),
            backend: "cpu".to_owned(),
            features: Vec::new(),
            limits: Default::default(),
            memory_budget_bytes: 0,
            self_test: SelfTest { passed: true, worst_nmse: 0.0, detail: String::new() },
            sync_latency_micros: 0,
            gigabytes_per_second: 0.0,
            teraflops,
            input_slots: 1,
        };
        Worker::new(ConnectionId(1), join, 1, 3)
    }

    #[test]
    fn the_timeout_grows_with_the_work_and_with_what_was_seen() {
        let base = Duration::from_millis(500);
        let mut w = worker(1.0);
        assert_eq!(w.timeout(base, 8, 0.0), base);
        assert_eq!(w.timeout(base, 1_000, 1e12), base + Duration::from_secs(4));
        assert_eq!(worker(f32::NAN).timeout(base, 1_000, 1e18), MAX_TIMEOUT);
        for _ in 0..ENOUGH_SAMPLES {
            w.answered(8, Duration::from_millis(400));
        }
        assert_eq!(w.timeout(base, 8, 0.0), Duration::from_millis(1_200));
        assert_eq!(w.timeout(base, 1_000, 0.0), base, "a prompt's chunk is timed apart");
    }
}
