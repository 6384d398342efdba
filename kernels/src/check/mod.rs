//! Checks that a worker computed what it was asked, for less than a hundredth of the work: Freivalds' check of each
//! product.
//!
//! A worker answers for a row x with `y = gate * down(h)`, and with the products `g = W_gate x` and `u = W_up x`. h
//! follows from g and u. The checker draws secret vectors r (2F) and s (D) ([`Secrets`]) and keeps their products with
//! an expert's matrices ([`Projection`]): `p = r [W_gate; W_up]` (D) and `q = s W_down` (F). It compares
//!
//! ```text
//! r . [g; u]  with  p . x              the products are right
//! s . y       with  gate * (q . h)     the answer is right for the h that the checker computes from g and u
//! ```
//!
//! x and h are the values that the weights were multiplied with. With int8 activations they are rounded exactly as
//! every worker rounds them, so the two sides differ only by the rounding of sums, of products and of the wire.
//!
//! **Tolerance.** A secret's values are uniform in ±√3: they have unit variance, and no two are equal. So for any error
//! e that is independent of them, `s . e` has the standard deviation |e|, and exceeds `t |e|` with a probability of at
//! most `2 exp(-t² / 2)` (Hoeffding). An honest answer's errors are bounded:
//!
//! | error | bound of its length |
//! |---|---|
//! | f32 sums of n products | `2^-24 (√(n/4) + 4) ‖W‖ ‖x‖`, for sums in lanes of n/4 terms at most whose roundings are as often up as down |
//! | sums of columns in i16, in formats with minimums | `2^-12 / √n ‖W‖ ‖x‖`, for columns of like size |
//! | products in f16 | `2^-11 ‖[g; u]‖ + 2^-25 √(2F)` |
//! | the wire | for f16 `2^-11 ‖y‖ + 2^-25 √D`; the caller gives it |
//!
//! [`TOLERANCE`] times these lengths are allowed. They are bounds: the errors themselves are less than half as long, so
//! an honest answer fails only at 7 standard deviations. What fails is computed again, not taken for a lie. A lie of
//! length `d` goes unseen where `|s . d|` is within the tolerance for all vectors. The probability of that is
//! `(0.8 tolerance / d)^N`. In y, with [`N_ANSWER`] vectors: 3 % of its length in one of 400,000 rows, 100 % in one of
//! 10^11. In the products, with [`N_PRODUCTS`]: 3 % in one of 17,000 rows, 100 % in one of 10^8. Secrets of ±1 would miss every
//! second lie that adds the same error twice, whatever its size: the two cancel.

mod products;
mod projection;
mod row;
mod secrets;
mod sums;

pub use products::products_nmse;
pub use projection::Projection;
pub use row::{AnsweredRow, CheckFailure, CheckScratch, KernelRows};
pub use secrets::Secrets;
pub use sums::{f16_rounding, norm};

/// Vectors that the products are projected on: fewer than for an answer, as they make two thirds of a projection's bytes.
pub const N_PRODUCTS: usize = 3;
/// Vectors that an answer is projected on.
pub const N_ANSWER: usize = 4;
/// The allowed error, as a multiple of an honest error's bound.
pub const TOLERANCE: f32 = 3.0;

#[cfg(test)]
mod tests;
