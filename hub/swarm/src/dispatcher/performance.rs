//! Measurements of one worker: its speed and its reliability.

use std::{sync::Arc, time::Duration};

use moex_protocol::{AttemptId, Join, Visibility, WorkerId};

use super::attempts::Kind;
use super::health::Health;
use super::latency::{Latencies, Latency};
use super::tier::{self, Tier};

/// Samples needed before a worker's own percentiles determine its timeouts.
const ENOUGH_SAMPLES: usize = 32;
/// A worker's timeout is this multiple of its own p99, if that exceeds the configured one.
const P99_FACTOR: u32 = 3;
/// A message's arithmetic may take this multiple of the time by the worker's measured speed.
const COMPUTE_FACTOR: f64 = 4.0;
/// The speed of a slow CPU core. A worker that reports a higher speed gets less time; one that reports a lower speed
/// does not get more.
const ASSUMED_TERAFLOPS: f64 = 0.005;
/// The maximum timeout, as a multiple of the swarm's or the hub's time for the same size.
const SWARM_FACTOR: u32 = 8;
/// Interval of probes to a worker that gets no work: requests that another worker gets too.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// Probes in a row to such a worker: its device may have gone to sleep, and the first answer then measures the waking.
const PROBES_IN_A_ROW: u32 = 4;
/// Time from a request within which its device is awake and the next probe measures that.
const AWAKE: Duration = Duration::from_millis(500);
/// The maximum timeout of any worker, unless the configured one is longer.
const MAX_TIMEOUT: Duration = Duration::from_secs(10);

/// One worker as seen by the dispatcher.
#[derive(Debug)]
pub(crate) struct Performance {
    id: WorkerId,
    /// Its address, without the port.
    host: Arc<str>,
    /// Whether it may be asked for digests.
    pub gives_digests: bool,
    /// Messages that it can queue or compute without preempting one; at least 1.
    input_slots: usize,
    /// Time of one GPU sync, measured at its join.
    sync_latency: Duration,
    /// Its reported speed.
    teraflops: f64,
    pub health: Health,
    pub counts: WorkerCounts,
    /// Its tier.
    tier: Tier,
    /// Why it is not in the first tier.
    tier_reason: Option<String>,
    /// The probe in flight, and when it is overdue. It is not cancelled when its job finishes.
    pub probe: Option<(AttemptId, Duration)>,
    latencies: Latencies,
    /// The last answers of any size.
    answers: Latency,
    /// The last pings.
    round_trips: Latency,
    /// When it was last asked, or joined.
    asked_at: Duration,
    /// Probes still to come of [`PROBES_IN_A_ROW`].
    n_probes_left: u32,
}

/// Counts since it joined.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WorkerCounts {
    pub dispatches: u64,
    pub answers: u64,
    pub rows: u64,
    pub timeouts: u64,
    pub errors: u64,
}

impl Performance {
    /// A newly joined worker. It becomes unhealthy after `max_failures` in a row.
    pub(crate) fn new(now: Duration, id: WorkerId, host: &str, join: &Join, max_failures: u32) -> Self {
        let sync_latency = Duration::from_micros(join.sync_latency_micros);
        let (tier, tier_reason) = tier::classify(sync_latency, &Latencies::default(), None);
        Self {
            id,
            host: host.into(),
            gives_digests: false,
            input_slots: usize::from(join.input_slots.max(1)),
            sync_latency,
            teraflops: f64::from(join.teraflops),
            health: Health::new(max_failures),
            counts: WorkerCounts::default(),
            tier,
            tier_reason,
            probe: None,
            latencies: Latencies::default(),
            answers: Latency::default(),
            round_trips: Latency::default(),
            asked_at: now,
            n_probes_left: 0,
        }
    }

    pub(crate) fn id(&self) -> WorkerId {
        self.id
    }

    pub(crate) fn host(&self) -> &Arc<str> {
        &self.host
    }

    pub(crate) fn input_slots(&self) -> usize {
        self.input_slots
    }

    pub(crate) fn tier(&self) -> Tier {
        self.tier
    }

    /// Records an answer's latency, or a lower bound if the attempt was abandoned.
    pub(crate) fn took(&mut self, n_pairs: usize, latency: Duration) {
        self.latencies.record(n_pairs, latency);
        self.answers.record(latency);
    }

    /// Records a heartbeat that answered a ping.
    pub(crate) fn pinged(&mut self, round_trip: Duration) {
        self.health.heartbeat();
        self.round_trips.record(round_trip);
    }

    /// Records a probe's latency. Measurements from when the worker was slow are discarded if it is fast again.
    pub(crate) fn probed(&mut self, n_pairs: usize, latency: Duration) {
        if self.latencies.expected(n_pairs).is_some_and(|was| latency < was / 2) {
            self.latencies = Latencies::default();
        }
        self.took(n_pairs, latency);
    }

    /// Records that it is asked now.
    pub(crate) fn asked(&mut self, now: Duration, kind: Kind) {
        self.n_probes_left = match kind {
            Kind::Probe if self.is_due_for_probe(now) => PROBES_IN_A_ROW - 1,
            Kind::Probe => self.n_probes_left.saturating_sub(1),
            // What it is asked measures it.
            Kind::Ask | Kind::Hedge => 0,
        };
        self.asked_at = now;
        self.counts.dispatches += 1;
    }

    /// Whether its last request is so long ago that its speed is unknown.
    pub(crate) fn is_due_for_probe(&self, now: Duration) -> bool {
        self.tier != Tier::Prefill && self.idle(now) >= PROBE_INTERVAL
    }

    /// Whether a probe has woken it, and the next one measures how fast it is awake.
    pub(crate) fn is_due_while_awake(&self, now: Duration) -> bool {
        self.n_probes_left > 0 && self.idle(now) < AWAKE
    }

    /// Time since its last request.
    fn idle(&self, now: Duration) -> Duration {
        now.saturating_sub(self.asked_at)
    }

    /// Expected time of a message of `n_pairs` with `flops` of arithmetic: as measured, or by the device's reported
    /// speed.
    pub(crate) fn expected(&self, n_pairs: usize, flops: f64) -> Duration {
        self.latencies
            .expected(n_pairs)
            .unwrap_or_else(|| self.sync_latency.saturating_add(self.compute_time(flops)))
    }

    /// Whether it has answered often enough for comparisons.
    pub(crate) fn is_measured(&self) -> bool {
        self.latencies.is_measured()
    }

    /// Delay before another worker gets a copy of a message of `n_pairs`, if known.
    pub(crate) fn hedge_delay(&self, n_pairs: usize) -> Option<Duration> {
        self.latencies.hedge_delay(n_pairs)
    }

    /// Its median for decode steps.
    pub(crate) fn decode_median(&self) -> Option<Duration> {
        self.latencies.decode_median().map(|(_, median)| median)
    }

    /// Its latencies for the message size that it answers most often.
    pub(crate) fn usual_latency(&self) -> &Latency {
        self.latencies.busiest()
    }

    /// The latencies of its last answers of any size.
    pub(crate) fn answers(&self) -> &Latency {
        &self.answers
    }

    /// The fastest of its last pings: slower ones waited for a processor.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        (self.round_trips.len() > 0).then(|| self.round_trips.quantile(0.0))
    }

    /// Recomputes its tier against a hub with these latencies. True if it changed.
    pub(crate) fn classify(&mut self, hub: Option<&Latencies>) -> bool {
        let (tier, reason) = tier::classify(self.sync_latency, &self.latencies, hub);
        let changed = tier != self.tier;
        (self.tier, self.tier_reason) = (tier, reason);
        changed
    }

    /// Why it is not in the first tier.
    pub(crate) fn tier_reason(&self) -> Option<&str> {
        self.tier_reason.as_deref()
    }

    /// Why it is not in the first tier, or gets no work, given its visibility.
    pub(crate) fn reason(&self, visibility: Visibility) -> Option<String> {
        if !self.health.is_healthy() {
            return Some("it failed several times in a row and now gets occasional probes".to_owned());
        }
        match visibility {
            Visibility::Visible => self.tier_reason.clone(),
            Visibility::Hidden => Some("its tab is hidden: browsers slow such tabs down".to_owned()),
            Visibility::Frozen => Some("its tab is frozen".to_owned()),
            Visibility::Leaving => Some("it is leaving".to_owned()),
        }
    }

    /// Timeout of a message of `n_pairs` with `flops` of arithmetic: `base`, or longer if the worker has been slower,
    /// or the arithmetic needs it; limited to a multiple of `usual`, the others' time.
    pub(crate) fn timeout(
        &self,
        base: Duration,
        n_pairs: usize,
        flops: f64,
        usual: Option<Duration>,
    ) -> Duration {
        let latency = self.latencies.of(n_pairs);
        let learned = if latency.len() >= ENOUGH_SAMPLES {
            P99_FACTOR * latency.quantile(0.99)
        } else {
            Duration::ZERO
        };
        let compute = self.compute_time(COMPUTE_FACTOR * flops);
        let most = usual.map_or(MAX_TIMEOUT, |usual| usual.saturating_mul(SWARM_FACTOR).min(MAX_TIMEOUT));
        (base + compute).max(learned).min(most.max(base))
    }

    /// Time of this arithmetic at the worker's reported speed, or on a slow core if that is faster.
    fn compute_time(&self, flops: f64) -> Duration {
        // A NaN is not the larger one.
        let speed = self.teraflops.max(ASSUMED_TERAFLOPS);
        Duration::from_secs_f64((flops / (speed * 1e12)).min(MAX_TIMEOUT.as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use moex_protocol::{SelfTest, WorkerKey, WorkerKind};

    use super::*;

    fn worker(teraflops: f32) -> Performance {
        let join = Join {
            token: String::new(),
            key: WorkerKey(1),
            name: String::new(),
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
            gives_products: true,
            gives_digests: true,
        };
        Performance::new(Duration::ZERO, WorkerId(1), "here", &join, 3)
    }

    #[test]
    fn the_timeout_grows_with_the_work_and_with_what_was_seen() {
        let base = Duration::from_millis(500);
        let mut w = worker(1.0);
        assert_eq!(w.timeout(base, 8, 0.0, None), base);
        assert_eq!(w.timeout(base, 1_000, 1e12, None), base + Duration::from_secs(4));
        assert_eq!(worker(f32::NAN).timeout(base, 1_000, 1e18, None), MAX_TIMEOUT);
        for _ in 0..ENOUGH_SAMPLES {
            w.took(8, Duration::from_millis(400));
        }
        assert_eq!(w.timeout(base, 8, 0.0, None), Duration::from_millis(1_200));
        assert_eq!(w.timeout(base, 1_000, 0.0, None), base, "a prompt's chunk is timed apart");
    }

    #[test]
    fn what_a_worker_says_of_its_speed_never_stretches_its_timeout() {
        let base = Duration::from_millis(500);
        let timeout = |teraflops| worker(teraflops).timeout(base, 8, 1e9, None);
        let slow_core = timeout(f32::NAN);
        for stated in [1e-9, 0.0, -1.0, f32::MIN_POSITIVE, f32::NEG_INFINITY] {
            assert_eq!(timeout(stated), slow_core, "{stated}");
        }
        assert!(timeout(10.0) < slow_core && slow_core < 3 * base);
    }

    #[test]
    fn the_timeout_is_capped_by_what_others_take() {
        let (base, usual) = (Duration::from_millis(500), Some(Duration::from_millis(100)));
        let mut w = worker(1.0);
        assert_eq!(w.timeout(base, 1_000, 1e15, usual), 8 * Duration::from_millis(100));
        assert_eq!(w.timeout(base, 8, 1e15, Some(Duration::from_millis(1))), base);
        (0..ENOUGH_SAMPLES).for_each(|_| w.took(8, Duration::from_secs(29)));
        assert_eq!(w.timeout(base, 8, 0.0, usual), 8 * Duration::from_millis(100), "slow on purpose");
        assert_eq!(w.timeout(base, 8, 0.0, None), MAX_TIMEOUT);
        let patient = Duration::from_secs(20);
        assert_eq!(w.timeout(patient, 8, 1e18, usual), patient, "what the hub's owner says counts");
    }
}
