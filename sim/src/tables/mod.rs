//! The tables of `moex-sim table`: the paper's figures beside the computed ones, with the reason for differences.
//!
//! Nothing is fitted. A figure of the paper appears only where it is known; otherwise the table shows the computed
//! value and its inputs. Tables 1 and 3 and equations 3, 13 and 18 have the paper's numbers; the tables 2, 4 and eq4
//! hold the rest of the same model, and their layout differs from the paper's.

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
