//! Projections of an expert's matrices on secret vectors.

use std::sync::Arc;

use super::{
    N_ANSWER, N_PRODUCTS, Secrets,
    sums::{add_multiples, dots},
};
use crate::{ExpertFormat, ExpertView, MatrixView, simd::Simd};

/// An expert's matrices, projected on [`Secrets`].
#[derive(Debug)]
pub struct Projection {
    pub(super) secrets: Arc<Secrets>,
    pub(super) format: ExpertFormat,
    /// p ([`N_PRODUCTS`], D).
    pub(super) gate_up: Vec<f32>,
    /// q ([`N_ANSWER`], F).
    pub(super) down: Vec<f32>,
    /// ‖`[W_gate; W_up]`‖ and ‖`W_down`‖.
    pub(super) norms: [f32; 2],
    pub(super) biases: Option<Biases>,
}

/// The biases of an expert that has them.
#[derive(Debug)]
pub(super) struct Biases {
    /// Biases of gate and up (F), padded with zeros to whole panels.
    pub(super) gate_up: [Vec<f32>; 2],
    /// s . bias of down, for each vector.
    pub(super) down: [f32; N_ANSWER],
}

impl Projection {
    /// Projects an expert: reads each of its weights once.
    ///
    /// # Panics
    /// If the secrets are for other widths.
    pub fn new(simd: Simd, expert: &ExpertView<'_>, secrets: Arc<Secrets>) -> Self {
        let (hidden, inner) = (expert.gate.cols(), expert.gate.rows());
        assert_eq!((secrets.hidden, secrets.inner), (hidden, inner), "secrets of this shape");
        let mut gate_up = vec![0.0; N_PRODUCTS * hidden];
        let mut down = vec![0.0; N_ANSWER * inner];
        let mut squares = [0.0; 2];
        for (first, matrix) in [(0, &expert.gate), (inner, &expert.up)] {
            let factors = |row: usize| std::array::from_fn(|k| secrets.products[k * 2 * inner + first + row]);
            squares[0] += project::<N_PRODUCTS>(simd, matrix, factors, &mut gate_up);
        }
        let factors = |row: usize| std::array::from_fn(|k| secrets.answer[k * hidden + row]);
        squares[1] += project::<N_ANSWER>(simd, &expert.down, factors, &mut down);
        let biases = expert.biases.as_ref().map(|biases| {
            let filled_up = |bias: &MatrixView<'_>| {
                let mut values = bias.dequantize();
                values.resize(inner.next_multiple_of(crate::simd::isa::ROWS), 0.0);
                values
            };
            let down = dots(simd, &secrets.answer, &biases.down.dequantize());
            Biases { gate_up: [filled_up(&biases.gate), filled_up(&biases.up)], down }
        });
        let format =
            ExpertFormat { gate_up: expert.gate.format(), down: expert.down.format(), kind: expert.kind() };
        let norms = squares.map(|square| square.sqrt() as f32);
        Self { secrets, format, gate_up, down, norms, biases }
    }

    /// Bytes of this projection.
    pub fn bytes(&self) -> usize {
        let biases = self.biases.as_ref().map_or(0, |biases| biases.gate_up.iter().map(Vec::len).sum());
        4 * (self.gate_up.len() + self.down.len() + biases)
    }

    /// D, the width of an answer.
    pub fn hidden(&self) -> usize {
        self.secrets.hidden
    }

    /// Bytes of the projection of an expert without biases.
    pub fn n_bytes(hidden: usize, inner: usize) -> usize {
        4 * (N_PRODUCTS * hidden + N_ANSWER * inner)
    }
}

/// Adds `factors(row)[k] * row` to `sums` (K, cols) for each row of a matrix; gives the sum of its squares.
fn project<const K: usize>(
    simd: Simd,
    matrix: &MatrixView<'_>,
    factors: impl Fn(usize) -> [f32; K],
    sums: &mut [f32],
) -> f64 {
    let mut scratch = vec![0.0; matrix.cols()];
    let mut square = 0.0;
    for row in 0..matrix.rows() {
        let weights = matrix.row(row, &mut scratch);
        add_multiples(simd, factors(row), weights, sums);
        let [of_row] = dots::<1>(simd, weights, weights);
        square += f64::from(of_row);
    }
    square
}
