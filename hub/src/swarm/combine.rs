//! What a job has been answered so far, and the sum of it: f32, ascending by expert, whoever answered.

use half::f16;
use moex_protocol::{AnswerPart, Dtype, tensor};

/// What one answer says of some cells of a job, decoded. Gates are applied already.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// Indices of the job's calls, ascending: one, or those summed on the worker.
    pub cells: Vec<usize>,
    /// The job's row that each of these rows adds to.
    pub rows: Vec<u16>,
    /// (rows, D)
    pub values: Vec<f32>,
}

/// Decodes a part into (rows, D). None if the bytes do not fit, or a value is not finite.
pub(super) fn decode_part(part: &AnswerPart, dtype: Dtype, hidden: usize, n_rows: usize) -> Option<Vec<f32>> {
    // On the bits of the payload, a block at a time: a loop over the values that may stop at each is ten times slower.
    if part.rows as usize != n_rows || tensor::has_non_finite(dtype, hidden, &part.payload) {
        return None;
    }
    let values = tensor::decode_rows(dtype, &part.payload, hidden).ok()?;
    (values.len() == n_rows * hidden).then_some(values)
}

/// Adds the parts to (T, D) zeros, ascending by cell and so by expert: the result does not depend on the order of
/// arrival.
pub(super) fn combine<'a>(
    parts: impl IntoIterator<Item = &'a Part>,
    n_rows: usize,
    hidden: usize,
) -> Vec<f32> {
    let mut parts: Vec<&Part> = parts.into_iter().collect();
    parts.sort_by_key(|part| part.cells.first());
    let mut sum = vec![0.0; n_rows * hidden];
    for part in parts {
        for (row, values) in part.rows.iter().zip(part.values.chunks_exact(hidden)) {
            let start = usize::from(*row) * hidden;
            for (sum, value) in sum[start..start + hidden].iter_mut().zip(values) {
                *sum += value;
            }
        }
    }
    sum
}

/// A gate as it goes on the wire.
pub(super) fn wire_gate(gate: f32) -> f16 {
    f16::from_f32(gate)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_sum_has_the_same_bits_in_any_order_of_arrival(
            values in proptest::collection::vec(-1e3f32..1e3, 8 * 4),
            order in Just((0..8u16).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let all: Vec<Part> = (0..8usize)
                .map(|e| Part { cells: vec![e], rows: vec![e as u16 % 2, 2], values: values[e * 4..][..4].to_vec() })
                .collect();
            let shuffled: Vec<&Part> = order.iter().map(|e| &all[usize::from(*e)]).collect();
            let bits = |sum: Vec<f32>| sum.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            prop_assert_eq!(bits(combine(&all, 3, 2)), bits(combine(shuffled, 3, 2)));
        }
    }

    #[test]
    fn a_part_with_a_value_that_is_not_finite_is_no_answer() {
        let part = |values: [f32; 2]| {
            let payload = values.iter().flat_map(|v| wire_gate(*v).to_le_bytes()).collect::<Vec<u8>>();
            AnswerPart { expert: None, rows: 1, payload: payload.into() }
        };
        assert_eq!(decode_part(&part([1.0, -2.0]), Dtype::F16, 2, 1), Some(vec![1.0, -2.0]));
        assert_eq!(decode_part(&part([1.0, f32::NAN]), Dtype::F16, 2, 1), None);
        assert_eq!(decode_part(&part([f32::INFINITY, 0.0]), Dtype::F16, 2, 1), None);
        assert_eq!(decode_part(&part([1.0, 1.0]), Dtype::F16, 2, 2), None);
    }
}
