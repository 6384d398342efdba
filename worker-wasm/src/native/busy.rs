//! Looking for the next message instead of sleeping until it comes: a processor that has gone to sleep takes tens of
//! microseconds to wake up, several times what a message over loopback takes.

use std::time::Duration;

use tokio::time::Instant;

/// How long after something came a thread looks for what comes next, before it sleeps.
const WINDOW: Duration = Duration::from_millis(1);

/// Whether a thread looks or sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusyPoll {
    is_on: bool,
    until: Option<Instant>,
}

impl BusyPoll {
    /// One that always sleeps, unless it is on.
    pub fn new(is_on: bool) -> Self {
        Self { is_on, until: None }
    }

    /// Whether it ever looks.
    pub fn is_on(self) -> bool {
        self.is_on
    }

    /// Something came, or was sent off that will be answered.
    pub fn stir(&mut self) {
        self.until = self.is_on.then(|| Instant::now() + WINDOW);
    }

    /// Whether to look again rather than to sleep.
    pub fn is_awake(&mut self) -> bool {
        self.until = self.until.filter(|until| Instant::now() < *until);
        self.until.is_some()
    }
}

/// Lets other threads and tasks go first, then looks at sockets again: whoever needs the processor more gets it.
pub async fn poll_again() {
    std::thread::yield_now();
    tokio::task::yield_now().await;
}
