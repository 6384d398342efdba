//! What an engine measures its steps and requests by.

use std::time::Duration;

/// The time since any fixed moment.
pub type Clock = Box<dyn Fn() -> Duration + Send + Sync>;
