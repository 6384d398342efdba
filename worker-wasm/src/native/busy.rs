//! Busy polling: the thread checks for the next message for a while instead of sleeping. A processor that sleeps takes tens
//! of microseconds to wake up, several times what a message over loopback takes.

use std::time::Duration;

use tokio::time::Instant;

/// How long a thread polls after a message, before it sleeps.
const WINDOW: Duration = Duration::from_millis(1);
/// The same beside a graphics card, whose clock falls unless it is kept busy through a hub's head and sampling too.
const WINDOW_OF_A_CARD: Duration = Duration::from_millis(5);

/// Whether a thread polls or sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusyPoll {
    /// `None` if it always sleeps.
    window: Option<Duration>,
    until: Option<Instant>,
}

impl BusyPoll {
    /// Polls if `is_on`; otherwise the thread always sleeps.
    pub fn new(is_on: bool) -> Self {
        Self { window: is_on.then_some(WINDOW), until: None }
    }

    /// For a thread that keeps a graphics card awake while it polls.
    pub(super) fn beside_a_card(self) -> Self {
        Self { window: self.window.map(|_| WINDOW_OF_A_CARD), ..self }
    }

    /// Whether the thread ever polls.
    pub fn is_on(self) -> bool {
        self.window.is_some()
    }

    /// Restarts the polling window: a message came, or one was sent that will be answered.
    pub fn stir(&mut self) {
        self.until = self.window.map(|window| Instant::now() + window);
    }

    /// Whether to poll again rather than to sleep.
    pub fn is_awake(&mut self) -> bool {
        self.until = self.until.filter(|until| Instant::now() < *until);
        self.until.is_some()
    }
}

/// Yields to other threads and tasks, then polls the sockets again.
pub async fn poll_again() {
    std::thread::yield_now();
    tokio::task::yield_now().await;
}
