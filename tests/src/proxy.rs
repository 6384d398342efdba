//! A TCP proxy on loopback that a test can slow down, stall, reset and cut at run time, like bad Wi-Fi.
//!
//! A lane decides when a chunk arrives; it has no clock, and only seeded randomness. The rest carries out its
//! decisions.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// Bytes that are read and delayed together: on a quiet link, one message of the demo model.
const CHUNK_BYTES: usize = 16 * 1024;
/// The most chunks under way in one direction; a full lane stops reading, as a full buffer would.
const MAX_CHUNKS: usize = 64;

/// The link's present state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Passes bytes on at once.
    Open,
    /// Passes on this many bytes a second towards the client.
    Slow(u64),
    /// Each direction has its own weather.
    Shaped {
        /// From the client to the hub.
        up: Weather,
        /// From the hub to the client.
        down: Weather,
    },
    /// Holds every byte back until the state changes; no socket closes.
    Stalled,
    /// Refuses new connections, after resetting those that were open.
    Cut,
}

/// How one direction delays bytes. Their order never changes, so a late one delays those behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weather {
    /// A byte's travel time.
    pub delay: Duration,
    /// The most additional time of a chunk, uniformly random.
    pub jitter: Duration,
    /// Bytes that pass in a second; `None`: unlimited.
    pub bytes_per_second: Option<u64>,
    /// Random pauses.
    pub hiccup: Option<Hiccup>,
}

/// One random chunk in `one_in` arrives `pause` late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hiccup {
    /// The odds: at least 1.
    pub one_in: u32,
    /// The additional time.
    pub pause: Duration,
}

/// The proxy; it ends when dropped.
pub struct Proxy {
    /// The address that it listens on.
    pub address: SocketAddr,
    state: Arc<watch::Sender<State>>,
    accepting: tokio::task::JoinHandle<()>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    link: Link,
    resets: u64,
}

impl Proxy {
    /// Listens on a free port and passes connections on to `target`.
    pub async fn start(target: SocketAddr, link: Link) -> Result<Self> {
        Self::start_seeded(target, link, 0).await
    }

    /// [`Self::start`] with a seed for everything random.
    pub async fn start_seeded(target: SocketAddr, link: Link, seed: u64) -> Result<Self> {
        Self::start_from(target, link, seed, Ipv4Addr::LOCALHOST).await
    }

    /// [`Self::start_seeded`], but `target` sees connections from `source`. On Linux, any address of 127.0.0.0/8
    /// belongs to this machine.
    pub async fn start_from(target: SocketAddr, link: Link, seed: u64, source: Ipv4Addr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let state = Arc::new(watch::Sender::new(State { link, resets: 0 }));
        let states = Arc::clone(&state);
        let accepting = tokio::spawn(async move {
            let mut lanes = (seed..).map(Lane::new);
            while let Ok((client, _)) = listener.accept().await {
                let (Some(up), Some(down)) = (lanes.next(), lanes.next()) else { return };
                if states.borrow().link != Link::Cut {
                    let hub = connect(source, target);
                    tokio::spawn(connection(client, hub, states.subscribe(), [up, down]));
                }
            }
        });
        Ok(Self { address, state, accepting })
    }

    /// Changes the link, for open connections too.
    pub fn set(&self, link: Link) {
        self.state.send_modify(|state| state.link = link);
    }

    /// Resets the open connections; new ones are accepted.
    pub fn reset(&self) {
        self.state.send_modify(|state| state.resets += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.set(Link::Cut);
        self.accepting.abort();
    }
}

async fn connect(source: Ipv4Addr, target: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((source, 0)))?;
    socket.connect(target).await
}

/// Carries one connection until an end closes it or the link resets it.
async fn connection(
    mut client: TcpStream,
    hub: impl Future<Output = std::io::Result<TcpStream>>,
    mut state: watch::Receiver<State>,
    [up, down]: [Lane; 2],
) {
    let Ok(mut hub) = hub.await else { return };
    // Only the lanes delay data: nothing waits to be sent with more.
    drop((client.set_nodelay(true), hub.set_nodelay(true)));
    let born = state.borrow().resets;
    let states = state.clone();
    let is_reset = {
        let (from_client, to_client) = client.split();
        let (from_hub, to_hub) = hub.split();
        tokio::select! {
            () = carry(from_client, to_hub, up, states.clone(), Link::up) => false,
            () = carry(from_hub, to_client, down, states, Link::down) => false,
            _ = state.wait_for(|state| state.link == Link::Cut || state.resets != born) => true,
        }
    };
    if is_reset {
        // This is how a cut link looks to both ends after they have tried for long enough.
        drop((client.set_zero_linger(), hub.set_zero_linger()));
    }
}

/// Carries one direction until its source ends.
async fn carry(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut lane: Lane,
    mut state: watch::Receiver<State>,
    weather: fn(Link) -> Weather,
) {
    let started = Instant::now();
    let (queue, mut under_way) = mpsc::channel::<(Instant, Vec<u8>)>(MAX_CHUNKS);
    let states = state.clone();
    let read = async move {
        let mut buffer = [0; CHUNK_BYTES];
        while let Ok(n @ 1..) = from.read(&mut buffer).await {
            let weather = weather(states.borrow().link);
            let arrival = started + lane.arrival(started.elapsed(), n, &weather);
            if queue.send((arrival, buffer[..n].to_vec())).await.is_err() {
                return;
            }
        }
    };
    let write = async move {
        while let Some((arrival, chunk)) = under_way.recv().await {
            sleep_until(arrival).await;
            let is_open = state.wait_for(|state| state.link != Link::Stalled).await.is_ok();
            if !is_open || to.write_all(&chunk).await.is_err() {
                return;
            }
        }
    };
    // Both run to their end, so that what was read before the source ended still arrives.
    tokio::join!(read, write);
}

impl Link {
    fn up(self) -> Weather {
        match self {
            Self::Shaped { up, .. } => up,
            _ => Weather::default(),
        }
    }

    fn down(self) -> Weather {
        match self {
            Self::Slow(bytes_per_second) => {
                Weather { bytes_per_second: Some(bytes_per_second), ..Weather::default() }
            }
            Self::Shaped { down, .. } => down,
            _ => Weather::default(),
        }
    }
}

/// One direction of one connection: computes when data that enters comes out.
#[derive(Debug)]
struct Lane {
    random: Xoshiro256PlusPlus,
    /// When the last byte has left.
    free: Duration,
    /// When the last byte arrives.
    last: Duration,
}

impl Lane {
    fn new(seed: u64) -> Self {
        let random = Xoshiro256PlusPlus::seed_from_u64(seed);
        Self { random, free: Duration::ZERO, last: Duration::ZERO }
    }

    /// The arrival of `n` bytes sent at `now`; never before that of bytes sent earlier.
    fn arrival(&mut self, now: Duration, n: usize, weather: &Weather) -> Duration {
        let rate = weather.bytes_per_second.map(|rate| rate.max(1));
        let sending = rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(n as f64 / rate as f64));
        self.free = self.free.max(now) + sending;
        let jitter = weather.jitter.mul_f64(self.random.random_range(0.0..1.0));
        let pause = match weather.hiccup {
            Some(hiccup) if self.random.random_range(0..hiccup.one_in.max(1)) == 0 => hiccup.pause,
            _ => Duration::ZERO,
        };
        self.last = self.last.max(self.free + weather.delay + jitter + pause);
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_lane_delays_by_rate_and_distance_and_keeps_the_order() {
        let mut lane = Lane::new(1);
        let slow = Weather { delay: 10 * MS, bytes_per_second: Some(1_000), ..Weather::default() };
        assert_eq!(lane.arrival(Duration::ZERO, 100, &slow), 110 * MS);
        assert_eq!(lane.arrival(50 * MS, 100, &slow), 210 * MS, "the wire was busy until 100 ms");
        assert_eq!(lane.arrival(60 * MS, 1, &Weather::default()), 210 * MS, "nothing overtakes");
        assert_eq!(lane.arrival(300 * MS, 1, &Weather::default()), 300 * MS);
    }

    #[test]
    fn hiccups_come_at_their_odds_and_by_the_seed() {
        let weather = Weather { hiccup: Some(Hiccup { one_in: 20, pause: 200 * MS }), ..Weather::default() };
        let late = |seed| -> Vec<u32> {
            let mut lane = Lane::new(seed);
            // A second apart, so that no chunk waits for another.
            let is_late = |i: &u32| {
                lane.arrival(Duration::from_secs((*i).into()), 1, &weather) > Duration::from_secs((*i).into())
            };
            (0..10_000).filter(is_late).collect()
        };
        assert_eq!(late(7), late(7));
        assert_ne!(late(7), late(8));
        // 500 expected, with a standard deviation of 22.
        assert!((400..600).contains(&late(7).len()), "{}", late(7).len());
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn connections_come_from_the_address_they_are_told() {
        let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let source = Ipv4Addr::new(127, 0, 1, 7);
        let proxy = Proxy::start_from(target.local_addr().unwrap(), Link::Open, 0, source).await.unwrap();
        let _client = TcpStream::connect(proxy.address).await.unwrap();
        assert_eq!(target.accept().await.unwrap().1.ip(), source);
    }

    #[tokio::test]
    async fn a_stall_holds_bytes_back_and_a_reset_ends_connections() {
        let echo = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = echo.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = echo.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = socket.split();
                    tokio::io::copy(&mut from, &mut to).await
                });
            }
        });
        let proxy = Proxy::start(target, Link::Open).await.unwrap();
        let mut client = TcpStream::connect(proxy.address).await.unwrap();
        let mut byte = [0];
        client.write_all(b"a").await.unwrap();
        client.read_exact(&mut byte).await.unwrap();
        assert_eq!(byte, *b"a");

        proxy.set(Link::Stalled);
        client.write_all(b"b").await.unwrap();
        assert!(tokio::time::timeout(100 * MS, client.read_exact(&mut byte)).await.is_err());
        proxy.set(Link::Open);
        client.read_exact(&mut byte).await.unwrap();
        assert_eq!(byte, *b"b");

        proxy.reset();
        assert!(client.read(&mut byte).await.is_err(), "a reset is an error, not an end");
        let mut next = TcpStream::connect(proxy.address).await.unwrap();
        next.write_all(b"c").await.unwrap();
        next.read_exact(&mut byte).await.unwrap();
        assert_eq!(byte, *b"c");
    }
}
