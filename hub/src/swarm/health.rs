//! Whether a worker is worth asking: strikes, and the way back.
//!
//! ```text
//!            strike x n in a row                 answered heartbeat
//! Healthy ------------------------> Unhealthy ----------------------> Healthy
//!    ^  any answer clears the strikes
//! ```
//! Beside it stands whether the worker is *late*: it owes an answer past the time it usually takes, and was not heard of
//! since. A layer asks a late worker last, or each layer after a stall would wait for it anew.

/// One worker's strikes.
#[derive(Clone, Debug)]
pub(super) struct Health {
    /// Strikes in a row that make a worker unhealthy.
    limit: u32,
    strikes: u32,
    is_late: bool,
}

impl Health {
    /// Healthy, out after `limit` strikes in a row (at least one).
    pub(super) fn new(limit: u32) -> Self {
        Self { limit: limit.max(1), strikes: 0, is_late: false }
    }

    /// It has not answered when it usually has.
    pub(super) fn late(&mut self) {
        self.is_late = true;
    }

    /// Whether it was late, and not heard of since.
    pub(super) fn is_late(&self) -> bool {
        self.is_late
    }

    /// It sent something that it owed: an answer, in time or not, or a heartbeat's echo.
    pub(super) fn heard(&mut self) {
        self.is_late = false;
    }

    /// A timeout, or an answer that could not be used. True when this one made the worker unhealthy.
    pub(super) fn strike(&mut self) -> bool {
        self.strikes = self.strikes.saturating_add(1);
        self.strikes == self.limit
    }

    /// A valid answer. An unhealthy worker stays out: a late answer to an old question is no sign of life today.
    pub(super) fn answered(&mut self) {
        self.heard();
        if self.is_healthy() {
            self.strikes = 0;
        }
    }

    /// A heartbeat that answered the hub's. True when it brought the worker back.
    pub(super) fn heartbeat(&mut self) -> bool {
        self.heard();
        let was_out = !self.is_healthy();
        if was_out {
            self.strikes = 0;
        }
        was_out
    }

    /// Whether the worker may be asked.
    pub(super) fn is_healthy(&self) -> bool {
        self.strikes < self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_in_a_row_and_a_heartbeat_back() {
        let mut health = Health::new(3);
        assert!(!health.strike() && !health.strike());
        health.answered();
        assert!(!health.strike() && !health.strike() && health.strike());
        assert!(!health.is_healthy());
        health.answered();
        assert!(!health.is_healthy());
        assert!(health.heartbeat() && health.is_healthy());
        assert!(!health.heartbeat());
    }

    #[test]
    fn late_until_it_is_heard_of() {
        let mut health = Health::new(3);
        health.late();
        assert!(health.is_late() && health.is_healthy());
        health.heartbeat();
        assert!(!health.is_late());
        health.late();
        health.answered();
        assert!(!health.is_late());
    }

    #[test]
    fn a_heartbeat_does_not_clear_the_strikes_of_a_healthy_worker() {
        let mut health = Health::new(3);
        health.strike();
        health.strike();
        health.heartbeat();
        assert!(health.strike());
    }
}
