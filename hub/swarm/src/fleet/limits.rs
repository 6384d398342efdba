//! Limits per address and per worker: connections, joins, messages, bytes. Honest workers stay far below. What exceeds
//! a limit is refused with an ERROR and a close, and counted.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use moex_protocol::WorkerId;

/// Connections of one address at a time, joined or not.
pub const MAX_CONNECTIONS_PER_ADDRESS: usize = 1536;
/// Connections that one address may open: burst, and rate per minute.
const CONNECTIONS: Rate = Rate { burst: 4096.0, per_second: 4096.0 / 60.0 };
/// Joins of one worker id: burst, and rate per minute.
const JOINS: Rate = Rate { burst: 120.0, per_second: 2.0 };
/// Messages of one connection: a fast worker answers a thousand layers a second.
const MESSAGES: Rate = Rate { burst: 50_000.0, per_second: 20_000.0 };
/// Bytes of one connection: 10-gigabit Ethernet.
const BYTES: Rate = Rate { burst: 1.25e9, per_second: 1.25e9 };
/// Maximum rate of recomputing the placement.
const REBALANCES: Rate = Rate { burst: 64.0, per_second: 8.0 };
/// Addresses, and separately worker ids, remembered; the oldest are forgotten first.
const MAX_REMEMBERED: usize = 4096;

/// A token bucket's size and rate.
#[derive(Clone, Copy, Debug)]
struct Rate {
    burst: f64,
    per_second: f64,
}

/// The remaining tokens of a rate.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    at: Duration,
}

impl Bucket {
    fn full(rate: Rate, now: Duration) -> Self {
        Self { left: rate.burst, at: now }
    }

    /// Takes `amount` if available.
    fn take(&mut self, rate: Rate, now: Duration, amount: f64) -> bool {
        let earned = rate.per_second * now.saturating_sub(self.at).as_secs_f64();
        self.left = (self.left + earned).min(rate.burst);
        self.at = now;
        let is_there = self.left >= amount;
        if is_there {
            self.left -= amount;
        }
        is_there
    }
}

/// What one connection may still send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    messages: Bucket,
    bytes: Bucket,
}

impl Allowance {
    pub(super) fn new(now: Duration) -> Self {
        Self { messages: Bucket::full(MESSAGES, now), bytes: Bucket::full(BYTES, now) }
    }

    /// Charges a message of this many bytes. Fails with the reason if it exceeds a limit.
    pub(super) fn message(&mut self, now: Duration, n_bytes: usize) -> Result<(), &'static str> {
        if !self.messages.take(MESSAGES, now, 1.0) {
            return Err("too many messages in too short a time");
        }
        if !self.bytes.take(BYTES, now, n_bytes as f64) {
            return Err("too many bytes in too short a time");
        }
        Ok(())
    }
}

/// Rate limit of recomputing the placement.
#[derive(Clone, Copy, Debug)]
pub(super) struct RebalanceRate(Bucket);

impl Default for RebalanceRate {
    fn default() -> Self {
        Self(Bucket::full(REBALANCES, Duration::ZERO))
    }
}

impl RebalanceRate {
    /// Whether it may be recomputed now; if so, it is charged.
    pub(super) fn take(&mut self, now: Duration) -> bool {
        self.0.take(REBALANCES, now, 1.0)
    }

    /// When it may be recomputed next, as of the last attempt.
    pub(super) fn next(&self) -> Duration {
        let lacking = 1.0 - self.0.left;
        if lacking <= 0.0 {
            return self.0.at;
        }
        // Rounded up: a deadline slightly too early would fire again and again.
        self.0.at + Duration::from_secs_f64(lacking / REBALANCES.per_second) + Duration::from_micros(1)
    }
}

/// Limits on connections and joins.
#[derive(Debug, Default)]
pub(super) struct AdmissionLimits {
    addresses: Remembered<String>,
    workers: Remembered<WorkerId>,
}

impl AdmissionLimits {
    /// Checks a connection from an address with `n_open` open ones.
    pub(super) fn connect(&mut self, now: Duration, host: &str, n_open: usize) -> Result<(), &'static str> {
        if n_open >= MAX_CONNECTIONS_PER_ADDRESS {
            return Err("too many connections from this address");
        }
        match self.addresses.bucket(host.to_owned(), CONNECTIONS, now).take(CONNECTIONS, now, 1.0) {
            true => Ok(()),
            false => Err("too many new connections from this address: try again in a minute"),
        }
    }

    /// Checks a worker's join.
    pub(super) fn join(&mut self, now: Duration, worker: WorkerId) -> Result<(), &'static str> {
        match self.workers.bucket(worker, JOINS, now).take(JOINS, now, 1.0) {
            true => Ok(()),
            false => Err("this worker joins too often: try again in a minute"),
        }
    }
}

/// The host of an address, since the same machine uses different ports.
pub(super) fn host(address: &str) -> String {
    let ip = address.parse::<SocketAddr>().map(|address| address.ip()).or_else(|_| address.parse::<IpAddr>());
    ip.map_or_else(|_| address.to_owned(), |ip| ip.to_canonical().to_string())
}

/// A bucket for each of the most recent keys.
#[derive(Debug)]
struct Remembered<K> {
    buckets: HashMap<K, Bucket>,
    order: VecDeque<K>,
}

impl<K> Default for Remembered<K> {
    fn default() -> Self {
        Self { buckets: HashMap::new(), order: VecDeque::new() }
    }
}

impl<K: Clone + Eq + std::hash::Hash> Remembered<K> {
    fn bucket(&mut self, key: K, rate: Rate, now: Duration) -> &mut Bucket {
        if !self.buckets.contains_key(&key) {
            if self.order.len() == MAX_REMEMBERED
                && let Some(oldest) = self.order.pop_front()
            {
                self.buckets.remove(&oldest);
            }
            self.order.push_back(key.clone());
        }
        self.buckets.entry(key).or_insert_with(|| Bucket::full(rate, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1);

    #[test]
    fn a_bucket_refills_to_its_size() {
        let rate = Rate { burst: 2.0, per_second: 1.0 };
        let mut bucket = Bucket::full(rate, NOW);
        assert!(bucket.take(rate, NOW, 1.0) && bucket.take(rate, NOW, 1.0) && !bucket.take(rate, NOW, 1.0));
        let later = NOW + Duration::from_secs(1);
        assert!(bucket.take(rate, later, 1.0) && !bucket.take(rate, later, 1.0));
        let much_later = NOW + Duration::from_secs(100);
        assert!(bucket.take(rate, much_later, 2.0) && !bucket.take(rate, much_later, 0.1));
    }

    #[test]
    fn a_flood_of_messages_or_bytes_is_refused_and_forgiven() {
        let mut allowance = Allowance::new(NOW);
        assert!((0..50_000).all(|_| allowance.message(NOW, 10).is_ok()));
        assert!(allowance.message(NOW, 10).unwrap_err().contains("messages"));
        assert!(allowance.message(NOW + Duration::from_secs(1), 10).is_ok());
        let mut allowance = Allowance::new(NOW);
        assert!(allowance.message(NOW, 1_250_000_000).is_ok());
        assert!(allowance.message(NOW, 1).unwrap_err().contains("bytes"));
    }

    #[test]
    fn a_worker_that_joins_over_and_over_is_refused_alone() {
        let mut limits = AdmissionLimits::default();
        let n_joined = (0..1_000).filter(|_| limits.join(NOW, WorkerId(1)).is_ok()).count();
        assert_eq!(n_joined, 120);
        assert!(limits.join(NOW, WorkerId(2)).is_ok());
        assert!(limits.join(NOW + Duration::from_secs(1), WorkerId(1)).is_ok());
    }

    #[test]
    fn an_address_is_bounded_in_connections_and_what_is_remembered_too() {
        let mut limits = AdmissionLimits::default();
        assert!(limits.connect(NOW, "here", MAX_CONNECTIONS_PER_ADDRESS).is_err());
        assert!((0..4096).all(|_| limits.connect(NOW, "here", 0).is_ok()));
        assert!(limits.connect(NOW, "here", 0).is_err() && limits.connect(NOW, "there", 0).is_ok());
        for n in 0..2 * MAX_REMEMBERED {
            let _ = limits.connect(NOW, &n.to_string(), 0);
        }
        assert_eq!(
            (limits.addresses.buckets.len(), limits.addresses.order.len()),
            (MAX_REMEMBERED, MAX_REMEMBERED)
        );
    }

    #[test]
    fn a_host_is_an_address_without_its_port() {
        assert_eq!(host("10.0.0.7:4711"), "10.0.0.7");
        assert_eq!(host("[::ffff:10.0.0.7]:1"), "10.0.0.7");
        assert_eq!(host("[::1]:80"), "::1");
        assert_eq!(host("here"), "here");
    }
}
