//! How near a pass comes to the CPU's.

use super::{N_TOKENS, VOCABULARY};
use crate::nmse;

/// Compares logits (T, V): at least `n_near` rows have nearly the same.
///
/// Sums run in another order, a millionth of their values. Now and then that takes a value to the next step of int8, 1/127 of its
/// unit's largest, and the rows that attend to it change by as much: at most what int8 itself costs.
pub(super) fn assert_near((logits, expected): (&[f32], &[f32]), n_near: usize, what: &str) {
    let rows = logits.chunks(VOCABULARY).zip(expected.chunks(VOCABULARY));
    let errors: Vec<f64> = rows.map(|(ours, expected)| nmse(ours, expected)).collect();
    assert_eq!(errors.len(), N_TOKENS, "{what}");
    let near = errors.iter().filter(|error| **error < 1e-9).count();
    assert!(near >= n_near, "{what}: {errors:?}");
    let error = nmse(logits, expected);
    assert!(error < 1e-3, "{what}: NMSE {error:e}");
}
