//! How many bytes a second a link carries each way: pings of which some bring padding along, and some ask for it back.
//!
//! The shortest round trip with padding less the shortest without is what the padding took. Shortest ones, because a worker
//! that computes answers late, and a queue in between delays everything behind it.

use core::time::Duration;
use std::collections::VecDeque;

use crate::frame::padding::MAX_PADDING_BYTES;

/// Round trips of each kind that are remembered.
const WINDOW: usize = 8;
/// Round trips of each kind without which nothing is said.
const MIN_SAMPLES: usize = 3;
/// Pings until the link is known: one in two of them is padded, alternately one way and the other.
const LEARNING_PINGS: u32 = 32;
/// After that, of so many pings one is padded each way.
const PROBE_EVERY: u32 = 32;
/// What is taken for no time at all.
const MIN_TRANSFER: Duration = Duration::from_micros(50);

/// What a ping carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    /// Nothing.
    Plain,
    /// Padding to the worker.
    ToWorker,
    /// A wish for padding from the worker.
    FromWorker,
}

/// What is known of a link.
#[derive(Debug, Default)]
pub(super) struct LinkRate {
    plain: Shortest,
    to_worker: Shortest,
    from_worker: Shortest,
    n_pings: u32,
}

/// The last round trips of a kind; at most [`WINDOW`].
#[derive(Debug, Default)]
struct Shortest(VecDeque<Duration>);

impl Shortest {
    fn push(&mut self, round_trip: Duration) {
        if self.0.len() == WINDOW {
            self.0.pop_front();
        }
        self.0.push_back(round_trip);
    }

    fn get(&self) -> Option<Duration> {
        self.0.iter().min().copied().filter(|_| self.0.len() >= MIN_SAMPLES)
    }
}

impl LinkRate {
    /// What the next ping carries.
    pub(super) fn next_probe(&mut self) -> Probe {
        let n = self.n_pings;
        self.n_pings = n.wrapping_add(1);
        let every = if n < LEARNING_PINGS { 4 } else { PROBE_EVERY };
        match n % every {
            1 => Probe::ToWorker,
            phase if phase == every / 2 + 1 => Probe::FromWorker,
            _ => Probe::Plain,
        }
    }

    /// A ping was answered.
    pub(super) fn answered(&mut self, probe: Probe, round_trip: Duration) {
        let shortest = match probe {
            Probe::Plain => &mut self.plain,
            Probe::ToWorker => &mut self.to_worker,
            Probe::FromWorker => &mut self.from_worker,
        };
        shortest.push(round_trip);
    }

    /// The shortest round trip without padding, once there were some.
    pub(super) fn shortest(&self) -> Option<Duration> {
        self.plain.get()
    }

    /// Bytes a second to the worker.
    pub(super) fn down_bytes_per_second(&self) -> Option<u64> {
        self.rate(&self.to_worker)
    }

    /// Bytes a second from the worker.
    pub(super) fn up_bytes_per_second(&self) -> Option<u64> {
        self.rate(&self.from_worker)
    }

    fn rate(&self, padded: &Shortest) -> Option<u64> {
        let transfer = padded.get()?.saturating_sub(self.plain.get()?).max(MIN_TRANSFER);
        Some((MAX_PADDING_BYTES as f64 / transfer.as_secs_f64()) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pings over a link of this latency and these rates, with a delay of `noise` in all but one round trip in three.
    fn measure(n_pings: u32, rates: [u64; 2], noise: Duration) -> LinkRate {
        let latency = Duration::from_millis(5);
        let mut link = LinkRate::default();
        for n in 0..n_pings {
            let probe = link.next_probe();
            let transfer = match probe {
                Probe::Plain => Duration::ZERO,
                Probe::ToWorker => Duration::from_secs_f64(MAX_PADDING_BYTES as f64 / rates[0] as f64),
                Probe::FromWorker => Duration::from_secs_f64(MAX_PADDING_BYTES as f64 / rates[1] as f64),
            };
            let noise = if n % 3 == 0 { Duration::ZERO } else { noise };
            link.answered(probe, 2 * latency + transfer + noise);
        }
        link
    }

    #[test]
    fn each_way_is_measured_by_itself_through_a_worker_that_is_busy() {
        let link = measure(LEARNING_PINGS, [10_000_000, 500_000], Duration::from_millis(70));
        for (rate, right) in
            [(link.down_bytes_per_second(), 10_000_000.0), (link.up_bytes_per_second(), 500_000.0)]
        {
            let rate = rate.unwrap() as f64;
            assert!((rate / right - 1.0).abs() < 0.01, "{rate} is not {right}");
        }
    }

    #[test]
    fn nothing_is_said_before_it_is_known() {
        for n_pings in 0..8 {
            let link = measure(n_pings, [1_000_000; 2], Duration::ZERO);
            assert_eq!((link.down_bytes_per_second(), link.up_bytes_per_second()), (None, None), "{n_pings}");
        }
    }

    #[test]
    fn a_link_that_takes_no_time_is_fast_and_not_infinite() {
        let link = measure(LEARNING_PINGS, [u64::MAX; 2], Duration::ZERO);
        assert_eq!(link.down_bytes_per_second(), Some((MAX_PADDING_BYTES as f64 / 50e-6) as u64));
    }

    #[test]
    fn padding_is_rare_once_the_link_is_known() {
        let mut link = LinkRate::default();
        (0..LEARNING_PINGS).for_each(|_| _ = link.next_probe());
        let n_padded = (0..320).filter(|_| link.next_probe() != Probe::Plain).count();
        assert_eq!(n_padded, 20);
    }
}
