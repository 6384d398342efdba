//! The link between a worker and the hub: delay, jitter, rate, a bounded queue, and stalls.
//!
//! A link behaves like TCP as seen by an application: within one connection and direction, bytes arrive in order and
//! none is lost; packet loss appears as delay, as a stall, or as the end of the connection.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;

use crate::{latency::Latency, random::Random};

/// The most bytes that may wait in one direction of a connection; a sender with more is cut off.
pub const MAX_QUEUED_BYTES: u64 = 64 << 20;

/// A message's travel time besides the time for its bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum Delay {
    /// Always the same.
    Fixed(Duration),
    /// Uniformly distributed.
    Uniform {
        /// The shortest.
        least: Duration,
        /// The longest.
        most: Duration,
    },
    /// A distribution over milliseconds.
    Random(Latency),
}

impl Delay {
    /// Draws a delay. A fixed delay draws nothing.
    pub fn draw(&self, random: &mut Random) -> Duration {
        match self {
            Self::Fixed(delay) => *delay,
            Self::Uniform { least, most } => {
                let spread = most.saturating_sub(*least).as_nanos() as usize;
                *least + Duration::from_nanos(random.below(spread + 1) as u64)
            }
            Self::Random(latency) => from_millis(latency.sample(random)),
        }
    }
}

/// Milliseconds as a duration, to the nanosecond.
pub fn from_millis(millis: f64) -> Duration {
    // Whole nanoseconds below 2^53 are exact in f64; rounding is IEEE's, the same everywhere.
    Duration::from_nanos(libm::rint(millis * 1e6) as u64)
}

/// One direction of a worker's link.
#[derive(Clone, Debug)]
pub struct Lane {
    /// The delay of every message.
    pub delay: Delay,
    /// `None`: unlimited.
    pub bytes_per_s: Option<u64>,
    /// Until then nothing arrives; all of it arrives afterwards.
    pub(super) stalled_until: Duration,
}

impl Lane {
    /// A lane that is not stalled.
    pub fn new(delay: Delay, bytes_per_s: Option<u64>) -> Self {
        Self { delay, bytes_per_s, stalled_until: Duration::ZERO }
    }
}

/// Both directions.
#[derive(Clone, Debug)]
pub struct Link {
    /// Worker to hub.
    pub up: Lane,
    /// Hub to worker.
    pub down: Lane,
}

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toward {
    /// Worker to hub.
    Hub,
    /// Hub to worker.
    Worker,
}

/// What a WebSocket carries.
#[derive(Clone, Debug)]
pub(super) enum Packet {
    Binary(Bytes),
    Text,
    Close,
}

impl Packet {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Binary(bytes) => bytes.len(),
            Self::Text | Self::Close => 0,
        }
    }
}

/// One direction of one connection: messages under way, in order.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    packets: VecDeque<(Duration, Packet)>,
    /// The time at which the last byte given to it has left.
    free_at: Duration,
    last_arrival: Duration,
}

/// The queue of a direction is longer than any driver allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

impl Pipe {
    /// Sends a packet; returns its arrival time, if nothing stalls. `shared` is the hub's end, which all connections
    /// pass: its rate, and the time at which it is free.
    pub(super) fn send(
        &mut self,
        now: Duration,
        packet: Packet,
        lane: &Lane,
        shared: (Option<u64>, &mut Duration),
        random: &mut Random,
    ) -> Result<Duration, Full> {
        let bytes = packet.bytes();
        let waiting = self.free_at.saturating_sub(now);
        if lane.bytes_per_s.is_some_and(|rate| bytes_in(waiting, rate) > MAX_QUEUED_BYTES) {
            return Err(Full);
        }
        self.free_at = self.free_at.max(now) + time_of(bytes, lane.bytes_per_s);
        let (hub_rate, hub_free_at) = shared;
        *hub_free_at = (*hub_free_at).max(now) + time_of(bytes, hub_rate);
        let sent = self.free_at.max(*hub_free_at);
        self.last_arrival = self.last_arrival.max(sent + lane.delay.draw(random));
        self.packets.push_back((self.last_arrival, packet));
        Ok(self.last_arrival)
    }

    /// Drops what is under way, and puts the connection's end next.
    pub(super) fn cut(&mut self, at: Duration) {
        self.packets.clear();
        self.last_arrival = self.last_arrival.max(at);
        self.packets.push_back((at, Packet::Close));
    }

    /// Takes what has arrived.
    pub(super) fn take(&mut self, now: Duration) -> Option<Packet> {
        self.packets.pop_front_if(|(arrival, _)| *arrival <= now).map(|(_, packet)| packet)
    }
}

/// The time that so many bytes take.
pub(super) fn time_of(bytes: usize, bytes_per_s: Option<u64>) -> Duration {
    let nanos = |rate: u64| (bytes as u128 * 1_000_000_000).div_ceil(u128::from(rate.max(1)));
    bytes_per_s.map_or(Duration::ZERO, |rate| Duration::from_nanos(nanos(rate) as u64))
}

fn bytes_in(time: Duration, bytes_per_s: u64) -> u64 {
    (time.as_nanos() * u128::from(bytes_per_s) / 1_000_000_000) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn send(pipe: &mut Pipe, now: Duration, bytes: usize, lane: &Lane) -> Result<Duration, Full> {
        let packet = Packet::Binary(vec![0; bytes].into());
        let mut hub_free_at = Duration::ZERO;
        pipe.send(now, packet, lane, (None, &mut hub_free_at), &mut Random::new(1, 1))
    }

    #[test]
    fn messages_share_the_rate_and_keep_their_order() {
        let mut pipe = Pipe::default();
        let lane = Lane::new(Delay::Fixed(5 * MS), Some(1_000_000));
        assert_eq!(send(&mut pipe, Duration::ZERO, 2_000, &lane), Ok(7 * MS));
        assert_eq!(send(&mut pipe, Duration::ZERO, 1_000, &lane), Ok(8 * MS));
        let sooner = Lane::new(Delay::Fixed(MS), None);
        assert_eq!(send(&mut pipe, MS, 0, &sooner), Ok(8 * MS), "never before what was sent earlier");
        assert!(pipe.take(6 * MS).is_none());
        assert_eq!(pipe.take(7 * MS).map(|packet| packet.bytes()), Some(2_000));
    }

    #[test]
    fn a_queue_that_grows_without_end_is_cut_off() {
        let mut pipe = Pipe::default();
        let lane = Lane::new(Delay::Fixed(MS), Some(1_000));
        let results: Vec<_> = (0..70).map(|_| send(&mut pipe, MS, 1 << 20, &lane).is_ok()).collect();
        assert_eq!(results.iter().filter(|sent| **sent).count(), 65);
    }

    #[test]
    fn a_cut_loses_what_is_under_way() {
        let mut pipe = Pipe::default();
        send(&mut pipe, Duration::ZERO, 10, &Lane::new(Delay::Fixed(2 * MS), None)).unwrap();
        pipe.cut(3 * MS);
        assert!(pipe.take(2 * MS).is_none());
        assert!(matches!(pipe.take(3 * MS), Some(Packet::Close)));
    }
}
