//! Chooses how many rows of prompts a step may hold while other sequences wait for their next token.
//!
//! A step takes about `base + cost n`: `base` is a step of its decode rows alone, `n` its rows of prompts, and `cost`
//! what such a row adds on this hub, its links and its workers' devices. Both are measured. While sequences generate, `n`
//! is as large as keeps the step within [`LONGEST_STEP`], or within twice `base` where workers are so far away that a
//! token takes longer anyway: a reader's tokens come ten times a second, or half as often as usual. While nobody
//! generates, chunks are as long as they can be.
//!
//! The first of many rows costs more than the last: each reads other experts' weights. `cost` is the average of recent
//! chunks, so a chunk that was shortened and still takes too long is shortened again.

use std::time::Duration;

/// The longest step that sequences wait for because of others' prompts, unless twice a step without prompts is longer.
const LONGEST_STEP: Duration = Duration::from_millis(100);
/// See [`LONGEST_STEP`].
const BASES: u32 = 2;
/// The shortest chunk: below it a prompt would hardly go on.
const MIN_ROWS: usize = 8;
/// Rows of the first chunk beside generating sequences, if nothing is measured.
const FIRST_ROWS: usize = 32;
/// What is left of the weight of earlier steps after one more.
const KEEP: f64 = 0.75;

/// Measured cost of a prompt's rows.
#[derive(Debug, Default)]
pub(super) struct ChunkLength {
    /// Rows of prompts in recent steps, older ones with less weight.
    rows: f64,
    /// Seconds that they added to their steps.
    seconds: f64,
}

impl ChunkLength {
    /// Records a step with `n_rows` of prompts, where a step with its decode rows alone takes `base`.
    pub(super) fn learn(&mut self, n_rows: usize, took: Duration, base: Duration) {
        self.rows = KEEP * self.rows + n_rows as f64;
        self.seconds = KEEP * self.seconds + took.saturating_sub(base).as_secs_f64();
    }

    /// Most rows of prompts in a step with decode rows that alone take `base`; `max_rows` is the room for them.
    pub(super) fn choose(&self, base: Duration, max_rows: usize) -> usize {
        let longest = LONGEST_STEP.max(BASES * base);
        let within = if self.rows > 0.0 {
            // Without a cost the quotient is infinite or not a number; both become the most.
            let n = longest.saturating_sub(base).as_secs_f64() * self.rows / self.seconds;
            if n < max_rows as f64 { n as usize } else { max_rows }
        } else {
            FIRST_ROWS
        };
        within.max(MIN_ROWS).min(max_rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Lets chunks be chosen beside decode rows that take `base`, where `n` rows add `cost(n)` milliseconds; returns the
    /// last chunk's rows.
    fn settled(base: Duration, cost: impl Fn(f64) -> f64) -> usize {
        let mut length = ChunkLength::default();
        for _ in 0..40 {
            let n = length.choose(base, 128);
            length.learn(n, base + MS.mul_f64(cost(n as f64)), base);
        }
        length.choose(base, 128)
    }

    #[test]
    fn a_chunk_is_as_long_as_keeps_the_step_within_its_bound() {
        // The quotient may fall just short of a whole row.
        assert!((39..=40).contains(&settled(20 * MS, |n| 2.0 * n)), "20 + 2 x 40 = 100 ms");
        assert_eq!(settled(20 * MS, |n| 0.1 * n), 128, "cheap rows");
        assert!((29..=30).contains(&settled(300 * MS, |n| 10.0 * n)), "workers far away: twice 300 ms");
        assert_eq!(settled(20 * MS, |n| 50.0 * n), MIN_ROWS, "a prompt goes on");
    }

    #[test]
    fn rows_that_share_weights_are_counted_as_they_are() {
        let cost = |n: f64| 20.0 * n.sqrt();
        let n = settled(20 * MS, cost);
        assert!((15..=16).contains(&n), "20 sqrt(16) = 80 ms: {n}");
    }

    #[test]
    fn the_first_chunk_beside_others_is_short_and_one_without_measured_cost_is_not() {
        let mut length = ChunkLength::default();
        assert_eq!((length.choose(MS, 128), length.choose(MS, 4)), (FIRST_ROWS, 4));
        length.learn(32, MS, MS);
        assert_eq!(length.choose(MS, 128), 128);
        assert_eq!(length.choose(MS, 0), 0, "no room");
    }

    #[test]
    fn a_longer_base_never_shortens_a_chunk_below_the_least_nor_above_the_room() {
        let mut length = ChunkLength::default();
        length.learn(100, 500 * MS, MS);
        for base in 0..1000 {
            let n = length.choose(base * MS, 64);
            assert!((MIN_ROWS..=64).contains(&n), "{n} rows beside {base} ms");
        }
    }
}
