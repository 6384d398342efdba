//! The secret vectors of a check.

use super::{N_ANSWER, N_PRODUCTS};

/// Secret vectors for all experts of a model, of independent values uniform in ±√3.
#[derive(Debug)]
pub struct Secrets {
    pub(super) hidden: usize,
    pub(super) inner: usize,
    /// ([`N_PRODUCTS`], 2F).
    pub(super) products: Vec<f32>,
    /// ([`N_ANSWER`], D).
    pub(super) answer: Vec<f32>,
}

impl Secrets {
    /// Draws the vectors for experts of D `hidden` and F `inner`. `random` must give bits that nobody can guess.
    pub fn new(hidden: usize, inner: usize, mut random: impl FnMut() -> u32) -> Self {
        let mut draw = |n: usize| -> Vec<f32> {
            // The middle of one of 2^24 equal parts of ±1: never 0.
            let value = |bits: u32| ((bits >> 8) as f32 + 0.5) / (1 << 23) as f32 - 1.0;
            (0..n).map(|_| 3.0_f32.sqrt() * value(random())).collect()
        };
        let (products, answer) = (draw(N_PRODUCTS * 2 * inner), draw(N_ANSWER * hidden));
        Self { hidden, inner, products, answer }
    }

    /// Bytes of the vectors for experts of these widths.
    pub fn n_bytes(hidden: usize, inner: usize) -> usize {
        4 * (N_PRODUCTS * 2 * inner + N_ANSWER * hidden)
    }
}
