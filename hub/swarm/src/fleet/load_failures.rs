//! Tracks a worker's failed block loads: when they are retried, and which blocks the worker loses. Other workers'
//! blocks do not move.
//!
//! ```text
//! a load fails --> tried again after 1 s, 2 s --> the third time: the worker loses this block
//! many in a row, of any blocks ----------------> the worker loses all that it does not hold, for a while that doubles
//! ```

use std::collections::HashMap;
use std::time::Duration;

use super::catalog::BlockIndex;

/// Failed loads after which a worker loses a block.
const MAX_FAILURES: u32 = 3;
/// Wait before a failed load is retried; it doubles.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Failed loads in a row after which the worker gets no more blocks for a while.
const MAX_FAILURES_IN_A_ROW: u32 = 32;
/// How long a worker gets no more blocks, the first time; it doubles.
const FIRST_BAR: Duration = Duration::from_secs(30);
/// The longest such time.
const MAX_BAR: Duration = Duration::from_mins(30);

/// See the [module's description](self).
#[derive(Debug, Default)]
pub(super) struct LoadFailures {
    /// Bounded by the catalog.
    blocks: HashMap<BlockIndex, Failure>,
    in_a_row: u32,
    /// Until when the worker gets no more blocks.
    barred_until: Option<Duration>,
    n_bars: u32,
}

#[derive(Debug, Default)]
struct Failure {
    n: u32,
    retry_at: Duration,
}

impl LoadFailures {
    /// Records a failed load. True if the worker loses blocks by it.
    pub(super) fn failed(&mut self, block: BlockIndex, now: Duration) -> bool {
        let failure = self.blocks.entry(block).or_default();
        failure.retry_at = now + RETRY_DELAY.saturating_mul(1 << failure.n.min(MAX_FAILURES));
        failure.n = failure.n.saturating_add(1);
        let is_lost = failure.n == MAX_FAILURES;
        self.in_a_row = self.in_a_row.saturating_add(1);
        if self.in_a_row < MAX_FAILURES_IN_A_ROW || self.is_barred() {
            return is_lost;
        }
        self.barred_until = Some(now + FIRST_BAR.saturating_mul(1 << self.n_bars.min(16)).min(MAX_BAR));
        self.n_bars = self.n_bars.saturating_add(1);
        true
    }

    /// Records a successful load.
    pub(super) fn loaded(&mut self, block: BlockIndex) {
        self.blocks.remove(&block);
        self.in_a_row = 0;
        self.n_bars = 0;
    }

    /// Whether the worker has lost this block for good.
    pub(super) fn has_lost(&self, block: BlockIndex) -> bool {
        self.blocks.get(&block).is_some_and(|failure| failure.n >= MAX_FAILURES)
    }

    /// Whether the worker gets no blocks beyond those it holds.
    pub(super) fn is_barred(&self) -> bool {
        self.barred_until.is_some()
    }

    /// Whether there are no failures on record.
    pub(super) fn is_clean(&self) -> bool {
        self.blocks.is_empty() && !self.is_barred()
    }

    /// Whether the worker may be asked to load this block now.
    pub(super) fn may_ask(&self, block: BlockIndex, now: Duration) -> bool {
        !self.is_barred() && self.blocks.get(&block).is_none_or(|f| f.n < MAX_FAILURES && f.retry_at <= now)
    }

    /// Whether a failed block may be retried now.
    pub(super) fn has_due(&self, now: Duration) -> bool {
        self.blocks.keys().any(|block| self.may_ask(*block, now))
    }

    /// Ends the bar if its time is over, and returns whether it did: the next failure bars the worker again.
    pub(super) fn end_bar(&mut self, now: Duration) -> bool {
        let is_over = self.barred_until.is_some_and(|until| until <= now);
        if is_over {
            self.barred_until = None;
            self.in_a_row = MAX_FAILURES_IN_A_ROW - 1;
            self.blocks.clear();
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: BlockIndex = BlockIndex(7);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_load_that_failed_is_tried_again_later_and_three_cost_the_block() {
        let mut failures = LoadFailures::default();
        assert!(!failures.failed(BLOCK, seconds(10)));
        assert!(!failures.may_ask(BLOCK, seconds(10)) && failures.may_ask(BLOCK, seconds(11)));
        assert!(failures.may_ask(BlockIndex(8), seconds(10)), "another block");
        assert!(!failures.failed(BLOCK, seconds(11)));
        assert!(!failures.may_ask(BLOCK, seconds(12)) && failures.has_due(seconds(13)));
        assert!(failures.failed(BLOCK, seconds(13)) && failures.has_lost(BLOCK));
        assert!(!failures.may_ask(BLOCK, seconds(1_000)) && !failures.has_due(seconds(1_000)));
        assert!(!failures.is_barred());
    }

    #[test]
    fn a_worker_that_loads_nothing_is_barred_and_gets_a_chance_each_time_later() {
        let mut failures = LoadFailures::default();
        let lost = (0..40).filter(|block| failures.failed(BlockIndex(*block), seconds(0))).count();
        assert_eq!((lost, failures.is_barred()), (1, true));
        assert!(!failures.end_bar(seconds(29)) && failures.end_bar(seconds(30)));
        assert!(failures.may_ask(BLOCK, seconds(30)));
        assert!(failures.failed(BLOCK, seconds(31)) && failures.is_barred(), "the first one suffices");
        assert!(!failures.end_bar(seconds(31 + 59)) && failures.end_bar(seconds(31 + 60)));
        failures.loaded(BLOCK);
        let barring = (0..40).position(|block| failures.failed(BlockIndex(block), seconds(0)));
        assert_eq!(barring, Some(31), "it is trusted again");
    }
}
