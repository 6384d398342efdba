//! What `moex-sim table` prints: the paper's figures beside the computed ones, with the reason where they differ.
//!
//! Nothing is fitted. A figure of the paper stands here only where it is known; where it is not, the table shows
//! what is computed and says from what. Tables 1 and 3 and equations 3, 13 and 18 carry the paper's numbers; the names
//! 2, 4 and eq4 hold the rest of the same model, and do not claim to repeat the paper's layout.

pub mod expert_phase;

pub mod sizes;

pub mod end_to_end;

pub mod prefill;

pub mod memory;

use crate::report::{Column, Digits};

/// A column of words, or of numbers with `decimals` digits after the point.
const fn column(key: &'static str, heading: &'static str, decimals: usize) -> Column {
    Column { key, heading, digits: Digits::After(decimals) }
}

/// `n` values from `from` to `to`, evenly by their logarithm.
fn log_steps(from: f64, to: f64, n: u32) -> impl Iterator<Item = f64> {
    let (start, end) = (libm::log(from), libm::log(to));
    (0..n).map(move |i| libm::exp(start + (end - start) * f64::from(i) / f64::from(n - 1)))
}
