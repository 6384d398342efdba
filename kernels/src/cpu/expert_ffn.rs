//! One expert: `down(silu(gate(x)) * up(x))`, times the router's gate.

use super::{linear, silu_mul};
use crate::{ExpertView, batch::Pair};

/// `out[p] = pairs[p].gate * expert(rows[pairs[p].row])`: `rows` (R, D), `out` (P, D). The gate is applied here, once.
///
/// # Panics
/// If a pair names a row that is not there, or `out` is not P rows of D.
pub fn expert_ffn(expert: &ExpertView<'_>, rows: &[f32], pairs: &[Pair], out: &mut [f32]) {
    let (hidden, inner) = (expert.gate.cols(), expert.gate.rows());
    assert_eq!(out.len(), pairs.len() * hidden, "a row for each pair");
    let mut x = Vec::with_capacity(pairs.len() * hidden); // (P, D)
    for pair in pairs {
        x.extend_from_slice(&rows[pair.row as usize * hidden..][..hidden]);
    }
    let mut h = vec![0.0; pairs.len() * inner]; // (P, F)
    let mut up = vec![0.0; pairs.len() * inner]; // (P, F)
    linear(&x, &expert.gate, &mut h);
    linear(&x, &expert.up, &mut up);
    silu_mul(&mut h, &up);
    linear(&h, &expert.down, out);
    for (pair, row) in pairs.iter().zip(out.chunks_exact_mut(hidden.max(1))) {
        row.iter_mut().for_each(|y| *y *= pair.gate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ExpertShape, WeightFormat};

    #[test]
    fn one_expert_by_hand() {
        // D 2, F 1: gate x0 = 2, up x1 = 3, h = silu(2) * 3, down [1, -2], times the gate 0.5.
        let shape = ExpertShape::uniform(2, 1, WeightFormat::F32);
        let block = shape.pack(&[1.0, 0.0], &[0.0, 1.0], &[1.0, -2.0]);
        let mut out = [f32::NAN; 4];
        let pairs = [Pair { row: 1, gate: 0.5 }, Pair { row: 0, gate: 1.0 }];
        expert_ffn(&shape.view(&block).unwrap(), &[0.0, 7.0, 2.0, 3.0], &pairs, &mut out);
        let h = 2.0 / (1.0 + (-2.0_f32).exp()) * 3.0;
        for (actual, expected) in out.iter().zip([0.5 * h, -h, 0.0, 0.0]) {
            assert!((actual - expected).abs() < 1e-6);
        }
    }
}
