//! The connection to one hub: when to connect, when to retry, and when to give up. It opens no socket.
//!
//! ```text
//!            connect_due              opened                    lost, worth another try
//! Down ----------------> Opening ---------------> Open --------------------------------------> Down
//!   ^                       |  lost                 |  close
//!   +-----------------------+                       +-----> Over
//! ```

use std::time::Duration;

use moex_protocol::WorkerKey;

use crate::backoff::Backoff;

/// The first and the longest wait before reconnecting.
const RECONNECT_DELAY: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(5)];
/// A connection that lasted this long counts as a success.
const STABLE: Duration = Duration::from_secs(1);
/// For so long after such a connection the worker tries at least this often: a hub that restarts is back within seconds.
const SOON: Duration = Duration::from_secs(20);
/// See [`SOON`].
const SOON_DELAY: Duration = Duration::from_millis(400);
/// How long a worker waits for a hub to renew a certificate without its address: several times the usual duration.
pub const RENEWAL_PATIENCE: Duration = Duration::from_secs(30);

/// Why there is no connection, or no connection any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionError {
    /// The hub does not answer, or the connection ended. The worker tries again.
    Disconnected(String),
    /// The hub's certificate is signed by its own authority and does not name this address. A hub renews its certificate
    /// within seconds of getting an address, so the connection is tried again for [`RENEWAL_PATIENCE`].
    AddressNotInCertificate(String),
    /// The certificate of the answering server is not trusted. The worker does not try again.
    Untrusted(String),
}

/// Why the worker no longer serves a hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The worker was told to leave.
    Left,
    /// The hub refused the worker for good, or the worker cannot serve its model: one sentence.
    Stopped(String),
    /// The device failed, or cannot compute the hub's model: one sentence. Another device may.
    DeviceFailed(String),
    /// The hub has not answered within the worker's patience. The reason of the last failure.
    Unreachable(String),
}

/// The consequence of a lost connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The worker will try again. `is_news` if this is worth a line in a log.
    Retry { is_news: bool },
    /// The worker will not try again.
    End(Ending),
}

/// See the [module's description](self).
#[derive(Debug)]
pub(super) struct Link {
    state: State,
    /// The number of the latest socket.
    number: u64,
    backoff: Backoff,
    /// Waits are multiplied by this, 0.75 to 1.25: a hub's workers do not come back all at once.
    spread: f64,
    /// Until when the waits are short.
    soon_until: Duration,
    /// How long to go on without a hub that accepts; `None` means forever.
    patience: Option<Duration>,
    last_contact: Duration,
    address_missing_since: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Down { retry_at: Duration },
    Opening,
    Open { since: Duration },
    Over,
}

impl Link {
    /// A link that should connect at once. Its waits differ from those of workers with other keys.
    pub(super) fn new(now: Duration, key: WorkerKey, patience: Option<Duration>) -> Self {
        Self {
            state: State::Down { retry_at: now },
            number: 0,
            backoff: Backoff::new(RECONNECT_DELAY[0], RECONNECT_DELAY[1]),
            spread: 0.75 + (key.0 % 1024) as f64 / 2048.0,
            soon_until: Duration::ZERO,
            patience,
            last_contact: now,
            address_missing_since: None,
        }
    }

    /// The latest socket's number.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// When to connect.
    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        match self.state {
            State::Down { retry_at } => Some(retry_at),
            _ => None,
        }
    }

    /// Whether to open a socket now; if so, the link counts as opening.
    pub(super) fn connect_due(&mut self, now: Duration) -> bool {
        let is_due = self.poll_timeout().is_some_and(|at| at <= now);
        if is_due {
            self.number += 1;
            self.state = State::Opening;
        }
        is_due
    }

    /// The socket is open. `false` if none was opening.
    pub(super) fn opened(&mut self, now: Duration) -> bool {
        let was_opening = self.state == State::Opening;
        if was_opening {
            self.state = State::Open { since: now };
            self.address_missing_since = None;
        }
        was_opening
    }

    /// Whether messages can be sent.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    /// Whether there is a socket, open or opening.
    pub(super) fn has_socket(&self) -> bool {
        matches!(self.state, State::Open { .. } | State::Opening)
    }

    /// Whether it will not be opened again.
    pub(super) fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// The socket is closed, or could not be opened. `was_accepted` if the hub had accepted the worker over it.
    pub(super) fn lost(&mut self, now: Duration, was_accepted: bool, lost: &ConnectionError) -> Next {
        if let State::Open { since } = self.state {
            if was_accepted {
                self.last_contact = now;
            }
            if now.saturating_sub(since) > STABLE {
                self.backoff.reset();
                if was_accepted {
                    self.soon_until = now + SOON;
                }
            }
        }
        self.state = State::Down { retry_at: now };
        let (reason, is_news) = match lost {
            ConnectionError::Untrusted(reason) => return Next::End(Ending::Stopped(reason.clone())),
            ConnectionError::AddressNotInCertificate(reason) => {
                let is_first = self.address_missing_since.is_none();
                let since = *self.address_missing_since.get_or_insert(now);
                if now.saturating_sub(since) > RENEWAL_PATIENCE {
                    return Next::End(Ending::Stopped(reason.clone()));
                }
                (reason, is_first)
            }
            ConnectionError::Disconnected(reason) => (reason, true),
        };
        let waited = now.saturating_sub(self.last_contact);
        if self.patience.is_some_and(|patience| waited > patience) {
            return Next::End(Ending::Unreachable(reason.clone()));
        }
        let delay = self.backoff.delay();
        let delay = if now < self.soon_until { delay.min(SOON_DELAY) } else { delay };
        self.state = State::Down { retry_at: now + delay.mul_f64(self.spread) };
        Next::Retry { is_news }
    }

    /// The link is never opened again.
    pub(super) fn end(&mut self) {
        self.state = State::Over;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    /// A key whose worker waits as the constants say.
    const EVEN: WorkerKey = WorkerKey(512);

    fn disconnected() -> ConnectionError {
        ConnectionError::Disconnected("no answer".into())
    }

    fn address_missing() -> ConnectionError {
        ConnectionError::AddressNotInCertificate("not this address".into())
    }

    /// Fails every attempt with `lost` until there is no other. Returns the number of failures, how many of them were
    /// news, how the link ended, and after how long.
    fn fail(link: &mut Link, lost: &ConnectionError) -> (u32, u32, Ending, Duration) {
        let (mut tries, mut news, mut now) = (0, 0, Duration::ZERO);
        loop {
            now = now.max(link.poll_timeout().expect("it waits for the next attempt"));
            assert!(link.connect_due(now));
            tries += 1;
            match link.lost(now, false, lost) {
                Next::Retry { is_news } => news += u32::from(is_news),
                Next::End(ending) => return (tries, news, ending, now),
            }
        }
    }

    #[test]
    fn a_certificate_without_the_address_is_waited_for_within_bounds_and_said_once() {
        for patience in [None, Some(1000 * SECOND)] {
            let mut link = Link::new(Duration::ZERO, EVEN, patience);
            let (tries, news, ending, after) = fail(&mut link, &address_missing());
            assert_eq!(ending, Ending::Stopped("not this address".into()));
            assert!(after > RENEWAL_PATIENCE && after < RENEWAL_PATIENCE + 6 * SECOND, "{after:?}");
            assert!((5..20).contains(&tries), "{tries}");
            assert_eq!(news, 1);
        }
    }

    #[test]
    fn an_untrusted_hub_is_never_tried_again() {
        let mut link = Link::new(Duration::ZERO, EVEN, None);
        let (tries, _, ending, after) =
            fail(&mut link, &ConnectionError::Untrusted("another fingerprint".into()));
        assert_eq!(
            (tries, ending, after),
            (1, Ending::Stopped("another fingerprint".into()), Duration::ZERO)
        );
    }

    #[test]
    fn patience_with_a_hub_that_does_not_answer_ends() {
        let mut link = Link::new(Duration::ZERO, EVEN, Some(20 * SECOND));
        let (_, _, ending, after) = fail(&mut link, &disconnected());
        assert_eq!(ending, Ending::Unreachable("no answer".into()));
        assert!(after > 20 * SECOND && after < 26 * SECOND, "{after:?}");
    }

    #[test]
    fn without_a_bound_a_hub_is_tried_for_ever_and_soon_after_a_connection_that_lasted() {
        let mut link = Link::new(Duration::ZERO, EVEN, None);
        let mut now = Duration::ZERO;
        for _ in 0..1000 {
            now = now.max(link.poll_timeout().unwrap());
            assert!(link.connect_due(now) && !link.connect_due(now));
            assert_eq!(link.lost(now, false, &disconnected()), Next::Retry { is_news: true });
        }
        assert_eq!(link.poll_timeout(), Some(now + RECONNECT_DELAY[1]));
        now += RECONNECT_DELAY[1];
        assert!(link.connect_due(now) && link.opened(now) && link.is_open());
        now += STABLE + SECOND;
        link.lost(now, true, &disconnected());
        assert_eq!(link.poll_timeout(), Some(now + RECONNECT_DELAY[0]));
    }

    /// Connects and is accepted, and loses the connection after `lasted`. When.
    fn lose(link: &mut Link, lasted: Duration) -> Duration {
        let mut now = link.poll_timeout().unwrap();
        assert!(link.connect_due(now) && link.opened(now));
        now += lasted;
        link.lost(now, true, &disconnected());
        now
    }

    #[test]
    fn a_hub_that_restarts_within_seconds_has_its_workers_back_half_a_second_later() {
        for key in [0, 512, 1023, u128::MAX] {
            let mut link = Link::new(Duration::ZERO, WorkerKey(key), None);
            let gone = lose(&mut link, 2 * SECOND);
            let mut now = gone;
            while now < gone + SOON {
                let next = link.poll_timeout().unwrap();
                assert!(next - now <= SECOND / 2, "{:?} after {:?}", next - now, now - gone);
                now = next;
                assert!(link.connect_due(now));
                link.lost(now, false, &disconnected());
            }
            let late = link.poll_timeout().unwrap() - now;
            assert!(late > 3 * SECOND, "a hub that stays away is asked seldom: {late:?}");
        }
    }

    #[test]
    fn workers_that_lose_a_hub_together_do_not_come_back_together() {
        let waits = |key| {
            let mut link = Link::new(Duration::ZERO, WorkerKey(key), None);
            let gone = lose(&mut link, 2 * SECOND);
            link.poll_timeout().unwrap() - gone
        };
        let mut waits: Vec<_> = (0..1024).map(waits).collect();
        waits.sort();
        assert!(waits.windows(100).all(|some| some[99] - some[0] > Duration::from_millis(9)), "{waits:?}");
    }

    #[test]
    fn a_hub_that_lets_go_at_once_is_asked_ever_less_often() {
        let mut link = Link::new(Duration::ZERO, EVEN, None);
        let mut waits = Vec::new();
        for _ in 0..8 {
            let gone = lose(&mut link, SECOND / 10);
            waits.push(link.poll_timeout().unwrap() - gone);
        }
        assert!(waits.is_sorted() && waits[7] == RECONNECT_DELAY[1], "{waits:?}");
    }

    #[test]
    fn a_name_that_is_missing_again_after_a_connection_is_waited_for_anew() {
        let mut link = Link::new(Duration::ZERO, EVEN, None);
        assert!(link.connect_due(Duration::ZERO));
        assert_eq!(link.lost(Duration::ZERO, false, &address_missing()), Next::Retry { is_news: true });
        let mut now = link.poll_timeout().unwrap();
        assert!(link.connect_due(now) && link.opened(now));
        now += 1000 * SECOND;
        assert_eq!(link.lost(now, true, &disconnected()), Next::Retry { is_news: true });
        now = link.poll_timeout().unwrap();
        assert!(link.connect_due(now));
        assert_eq!(link.lost(now, false, &address_missing()), Next::Retry { is_news: true });
    }
}
