//! One expert: `down(silu(gate(x)) * up(x))`, or its kind's own function between the projections, times the router's
//! gate.

use super::{add_bias, clamped_swiglu, linear, silu_mul};
use crate::{ExpertKind, ExpertView, batch::Pair};

/// `out[p] = pairs[p].gate * expert(rows[pairs[p].row])`: `rows` (R, D), `out` (P, D). The gate is applied here, once.
///
/// # Panics
/// If a pair names a row that is not there, or `out` is not P rows of D.
pub fn expert_ffn(expert: &ExpertView<'_>, rows: &[f32], pairs: &[Pair], out: &mut [f32]) {
    expert_ffn_with(expert, rows, pairs, out, None);
}

/// [`expert_ffn`] that also fills `products` (P, 2F), if given: for each pair the products with gate, then those with
/// up, without biases.
///
/// # Panics
/// As [`expert_ffn`]; if `products` has another shape.
pub fn expert_ffn_with(
    expert: &ExpertView<'_>,
    rows: &[f32],
    pairs: &[Pair],
    out: &mut [f32],
    products: Option<&mut [f32]>,
) {
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
    if let Some(products) = products {
        assert_eq!(products.len(), 2 * h.len(), "products of gate and up for each pair");
        let each = h.chunks_exact(inner.max(1)).zip(up.chunks_exact(inner.max(1)));
        for (products, (gate, up)) in products.chunks_exact_mut(2 * inner.max(1)).zip(each) {
            products[..inner].copy_from_slice(gate);
            products[inner..].copy_from_slice(up);
        }
    }
    if let Some(biases) = &expert.biases {
        add_bias(&mut h, &biases.gate.dequantize());
        add_bias(&mut up, &biases.up.dequantize());
    }
    match expert.kind() {
        ExpertKind::Silu => silu_mul(&mut h, &up),
        ExpertKind::ClampedSwiglu => clamped_swiglu(&mut h, &up),
    }
    linear(&h, &expert.down, out);
    if let Some(biases) = &expert.biases {
        add_bias(out, &biases.down.dequantize());
    }
    for (pair, row) in pairs.iter().zip(out.chunks_exact_mut(hidden.max(1))) {
        row.iter_mut().for_each(|y| *y *= pair.gate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ExpertBiases, ExpertShape, MatrixView, WeightFormat};

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
    #[test]
    fn biases_and_the_clamped_kind_by_hand() {
        // D 1, F 1: gate 2 x + 1, up 3 x - 1, down -1 x + 0.25; x 1, so gate 3, up 2.
        let matrix = |value: &'static f32| MatrixView::of_f32(1, 1, std::slice::from_ref(value)).unwrap();
        let kind = ExpertKind::ClampedSwiglu;
        let biases = ExpertBiases { kind, gate: matrix(&1.0), up: matrix(&-1.0), down: matrix(&0.25) };
        let (gate, up, down) = (matrix(&2.0), matrix(&3.0), matrix(&-1.0));
        let mut out = [f32::NAN];
        let expert = ExpertView { gate, up, down, biases: Some(biases) };
        expert_ffn(&expert, &[1.0], &[Pair { row: 0, gate: 0.5 }], &mut out);
        let h = (2.0 + 1.0) * 3.0 / (1.0 + (-1.702_f32 * 3.0).exp());
        assert!((out[0] - 0.5 * (0.25 - h)).abs() < 1e-6, "{out:?}");
    }
}
