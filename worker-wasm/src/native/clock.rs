//! The time since the worker's start, the core's unit of time.

use std::time::Duration;

use tokio::time::Instant;

/// See the [module's description](self).
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock(Instant);

impl Clock {
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    pub(super) fn now(self) -> Duration {
        self.0.elapsed()
    }

    /// The moment at which it will be `time`.
    pub(super) fn at(self, time: Duration) -> Instant {
        self.0 + time
    }
}
