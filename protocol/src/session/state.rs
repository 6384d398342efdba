//! Where a session stands.

use core::fmt;

/// Where a session stands. Both ends name the same states; the hub's is behind by a message's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Connected; not accepted yet.
    Joining,
    /// Accepted; no block resident yet.
    Syncing,
    /// Blocks are resident and the worker is visible: the only state in which the hub may dispatch.
    Serving,
    /// Blocks are resident, but the page is hidden or frozen.
    Paused,
    /// One end is leaving: what is owed is finished, nothing new begins.
    Draining,
    /// Over.
    Closed,
}

impl State {
    /// The state's name in lower case, as status pages show it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Syncing => "syncing",
            Self::Serving => "serving",
            Self::Paused => "paused",
            Self::Draining => "draining",
            Self::Closed => "closed",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
