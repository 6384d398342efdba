//! Chooses how many drafted tokens pay for their rows.
//!
//! A step of r rows takes about `a + b r`: `a` is mostly the round trip to the workers, `b` the cost of a row on the
//! link and at the experts. Both are fitted to recent steps. Of k drafts, each accepted with probability p if those
//! before it are, `p + p^2 + ... + p^k` are accepted on average; they pay if they come faster than tokens do without
//! them. So nothing is drafted where rows are expensive, as on a hub alone, and less when many sequences share the
//! steps.

use std::time::Duration;

/// Maximum drafts of a sequence in a step.
pub(super) const MAX_GUESSES: usize = 15;
/// Required gain of a draft relative to its cost.
const MARGIN: f64 = 1.1;
/// Weight of the last step relative to all before it.
const FORGET: f64 = 1.0 / 64.0;

/// Time of a step by its rows: a line fitted to past steps, older ones with less weight.
#[derive(Debug, Default)]
pub(super) struct StepCost {
    n_steps: u32,
    rows: f64,
    seconds: f64,
    variance: f64,
    covariance: f64,
}

impl StepCost {
    /// Records a step without chunks of prompts.
    pub(super) fn learn(&mut self, n_rows: usize, took: Duration) {
        let (rows, seconds) = (n_rows as f64, took.as_secs_f64());
        self.n_steps = self.n_steps.saturating_add(1);
        let weight = FORGET.max(1.0 / f64::from(self.n_steps));
        let (off_rows, off_seconds) = (rows - self.rows, seconds - self.seconds);
        self.rows += weight * off_rows;
        self.seconds += weight * off_seconds;
        self.variance = (1.0 - weight) * (self.variance + weight * off_rows * off_rows);
        self.covariance = (1.0 - weight) * (self.covariance + weight * off_rows * off_seconds);
    }

    /// Time of a step of `n_rows` without chunks of prompts; zero for no rows, and while none was seen.
    pub(super) fn step(&self, n_rows: usize) -> Duration {
        if n_rows == 0 {
            return Duration::ZERO;
        }
        let off_rows = n_rows as f64 - self.rows;
        Duration::from_secs_f64((self.seconds + self.per_row().unwrap_or(0.0) * off_rows).max(0.0))
    }

    /// Seconds per additional row; none before steps of different sizes were seen.
    fn per_row(&self) -> Option<f64> {
        (self.variance > 1e-3).then(|| (self.covariance / self.variance).max(0.0))
    }

    /// How many of up to `n` drafts, each accepted with probability `p`, pay in a step with `n_rows` decode rows.
    pub(super) fn worth(&self, n: usize, p: f64, n_rows: usize) -> usize {
        // The cost of a row is learned from steps without drafts and with a few.
        let Some(per_row) = self.per_row() else { return n.min(if self.n_steps % 4 < 2 { 0 } else { 4 }) };
        let step = self.step(n_rows).as_secs_f64().max(1e-9);
        // Seconds per token without drafts, one token per row.
        let token = step / n_rows.max(1) as f64;
        // The k-th draft costs a row and yields p^k tokens.
        let pays = |k: &usize| p.powi(*k as i32) * token > MARGIN * per_row;
        (1..=n.min(MAX_GUESSES)).take_while(pays).count()
    }
}

/// Acceptance rate of a sequence's drafts.
#[derive(Clone, Copy, Debug)]
pub(super) struct AcceptanceRate {
    p: f64,
}

impl Default for AcceptanceRate {
    fn default() -> Self {
        Self { p: 0.5 }
    }
}

impl AcceptanceRate {
    /// Probability that the next draft is accepted.
    pub(super) fn p(self) -> f64 {
        self.p
    }

    /// Of `n` drafts the first `n_right` were accepted; those after a rejected one count neither way.
    pub(super) fn learn(&mut self, n: usize, n_right: usize) {
        let tried = (n_right + 1).min(n);
        for guess in 0..tried {
            let was = f64::from(u8::from(guess < n_right));
            self.p += (was - self.p) / 5.0;
        }
    }

    /// A token was generated without a draft: after many, one may be tried again.
    pub(super) fn rest(&mut self) {
        self.p += (0.2 - self.p).max(0.0) / 256.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of 1 and 8 rows on a machine where a step takes `a + b r` milliseconds.
    fn cost(a: u64, b: u64) -> StepCost {
        let mut cost = StepCost::default();
        for n_rows in [1, 8, 1, 1, 8, 1] {
            cost.learn(n_rows, Duration::from_millis(a + b * n_rows as u64));
        }
        cost
    }

    #[test]
    fn guesses_are_worth_it_where_the_way_is_long_and_rows_are_cheap() {
        let mut unknown = StepCost::default();
        let tried = [(); 4].map(|()| {
            unknown.learn(1, Duration::from_millis(40));
            unknown.worth(8, 0.7, 1)
        });
        assert_eq!(tried, [0, 4, 4, 0], "to find out");
        assert_eq!(cost(40, 1).worth(8, 0.9, 1), 8);
        assert_eq!(cost(0, 10).worth(8, 0.9, 1), 0, "a row takes as long as a token");
        assert_eq!(cost(10, 10).worth(8, 0.9, 1), 5, "0.9^5 x 20 ms > 1.1 x 10 ms");
        assert_eq!(cost(40, 1).worth(8, 0.1, 1), 1);
        assert_eq!(cost(40, 1).worth(8, 0.01, 1), 0);
    }

    #[test]
    fn a_step_is_as_long_as_the_line_says() {
        assert_eq!((StepCost::default().step(4), cost(40, 5).step(0)), (Duration::ZERO, Duration::ZERO));
        let off = cost(40, 5).step(12).as_secs_f64() - 0.1;
        assert!(off.abs() < 1e-6, "40 + 12 x 5 = 100 ms, {off} s off");
    }

    #[test]
    fn many_sequences_leave_less_room_for_guesses() {
        assert_eq!(cost(40, 4).worth(8, 0.9, 1), 8);
        assert_eq!(cost(40, 4).worth(8, 0.9, 16), 3);
        assert_eq!(cost(20, 10).worth(8, 0.9, 16), 0);
    }

    #[test]
    fn luck_follows_what_was_right() {
        let mut acceptance = AcceptanceRate::default();
        for _ in 0..3 {
            acceptance.learn(4, 0);
        }
        assert!(acceptance.p() < 0.5);
        for _ in 0..10 {
            acceptance.learn(4, 4);
        }
        assert!(acceptance.p() > 0.95);
        for _ in 0..8 {
            acceptance.learn(4, 0);
        }
        let low = acceptance.p();
        (0..1000).for_each(|_| acceptance.rest());
        assert!(acceptance.p() > low.min(0.19) && acceptance.p() <= low.max(0.2));
    }
}
