//! The time that a device needs for a message's experts. `engine` computes the results.

use std::time::Duration;

use crate::random::Random;

use super::link::Delay;

/// The costs of computing one message.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// Launch and sync: the cost of a message, however small it is.
    pub per_message: Delay,
    /// For each expert: reading its weights.
    pub per_expert: Duration,
    /// For each (row, expert): the arithmetic.
    pub per_pair: Duration,
    /// 100 is the device as it is; 300 takes three times as long.
    pub slowdown_percent: u32,
}

impl Device {
    /// The time of a message: launch and sync, then its experts. Weights are read during the arithmetic, so the slower
    /// of the two counts.
    pub fn compute_time(
        &self,
        n_experts: usize,
        n_pairs: usize,
        random: &mut Random,
    ) -> (Duration, Duration) {
        let reading = self.per_expert * n_experts as u32;
        let arithmetic = self.per_pair * n_pairs as u32;
        let as_slow = |time: Duration| time * self.slowdown_percent / 100;
        (as_slow(self.per_message.draw(random)), as_slow(reading.max(arithmetic)))
    }
}
