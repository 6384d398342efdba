//! An expert's true products, for a hub that asks whether a worker's are wrong or differ only by rounding.

use super::KernelRows;
use crate::ExpertView;

/// Compares the products that a worker `said` (2F) for a row with the expert's own: the squared errors' sum divided by
/// the squared values' sum. Multiplies every weight of gate and up once, in f64.
pub fn products_nmse(expert: &ExpertView<'_>, rows: &KernelRows, row: usize, said: &[f32]) -> f64 {
    let x = rows.row(row).0; // (D)
    let mut scratch = vec![0.0; x.len()];
    let (mut error, mut power) = (0.0, 0.0);
    let halves = said.chunks(expert.gate.rows().max(1));
    for (matrix, said) in [&expert.gate, &expert.up].into_iter().zip(halves) {
        for (f, said) in said.iter().enumerate() {
            let weights = matrix.row(f, &mut scratch);
            let product: f64 = weights.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
            error += (f64::from(*said) - product).powi(2);
            power += product * product;
        }
    }
    // 0 / 0: both are zero, which is no difference.
    if error == 0.0 { 0.0 } else { error / power }
}
