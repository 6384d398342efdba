//! Whether a worker computed what it was asked, for less than a hundredth of the work: Freivalds' check of each product.
//!
//! A worker answers for a row x with `y = gate * down(h)`, and with the products `g = W_gate x` and `u = W_up x`, from which
//! h follows. Whoever checks has drawn vectors r (2F) and s (D) that nobody else knows ([`Secrets`]), and keeps what they
//! make of an expert's matrices ([`Projection`]): `p = r [W_gate; W_up]` (D) and `q = s W_down` (F). It compares
//!
//! ```text
//! r . [g; u]  with  p . x              the products are right
//! s . y       with  gate * (q . h)     the answer is, of the h that it computes itself from g and u
//! ```
//!
//! x and h are what met the weights: with int8 activations rounded as every worker rounds them, to the bit, so that
//! nothing but the roundings of sums and of the wire lies between the two sides.
//!
//! **Tolerance.** A secret's values are uniform in ±√3: of unit variance, and no two of a kind. So for any error e that does
//! not depend on them, `s . e` has the standard deviation |e|, and exceeds `t |e|` with a probability of at most
//! `2 exp(-t² / 2)` (Hoeffding). An honest answer's errors are bounded:
//!
//! | error | bound of its length |
//! |---|---|
//! | f32 sums of n products | `2^-24 (√(n/4) + 4) ‖W‖ ‖x‖`, for sums in lanes of n/4 terms at most whose roundings are as often up as down |
//! | sums of columns in i16, in formats with minimums | `2^-12 / √n ‖W‖ ‖x‖`, for columns of like size |
//! | the wire | of f16 `2^-11 ‖y‖ + 2^-25 √D`; whoever calls says it |
//!
//! [`TOLERANCE`] of these lengths are allowed. They are bounds; the errors themselves are less than half as long, so that it
//! takes 9 standard deviations for an honest answer to fail, and what fails is computed again, not believed to be a lie. A
//! lie of length `d` in y goes unseen where `|s . d|` is within the tolerance for all [`N_ANSWER`] vectors, which happens with
//! `(0.8 tolerance / d)^4`: 3 % of y in one of 10^5 rows, 100 % in one of 10^11. Secrets of ±1 would miss every second lie that is
//! twice the same value, whatever its size: two of them cancel.

mod products;
mod projection;
mod row;
mod secrets;
mod sums;

pub use products::products_nmse;
pub use projection::Projection;
pub use row::{CheckScratch, Claim, Refuted, RowsAsMet};
pub use secrets::Secrets;
pub use sums::norm;

/// Vectors that the products are projected on. An error of theirs is seen from a thousandth of their length on: two are
/// enough.
pub const N_PRODUCTS: usize = 2;
/// Vectors that an answer is projected on, whose tolerance is the wire's rounding.
pub const N_ANSWER: usize = 4;
/// How many lengths of an honest error are allowed.
pub const TOLERANCE: f32 = 4.0;

#[cfg(test)]
mod tests;
