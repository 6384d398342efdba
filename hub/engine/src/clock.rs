//! The clock that an engine measures its steps and requests with.

use std::time::Duration;

/// Returns the time since some fixed moment.
pub type Clock = Box<dyn Fn() -> Duration + Send + Sync>;
