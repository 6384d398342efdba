//! Parts of answers, and their sum in f32. Parts are summed in ascending order of experts, so the sum does not depend
//! on which workers answered.

use bytes::Bytes;
use half::f16;
use moex_protocol::header::TensorFields;
use moex_protocol::{AnswerPart, AttemptId, Digest, Dtype, tensor};

/// An answer's rows for one work item, still in the wire's number format, with gates applied; or a digest of them.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Index of the job's work item.
    pub item: usize,
    /// For each of these rows, the job's row that it is added to.
    rows: Vec<u16>,
    hidden: usize,
    dtype: Dtype,
    /// (rows, D) in `dtype`: a slice of the message. Empty if there is a digest.
    payload: Bytes,
    /// (rows, 2F) in f32: a slice of the message, where the answer is to be checked.
    products: Option<Bytes>,
    digest: Option<AttemptDigest>,
}

/// A worker's digest of its rows for one work item, and what it takes to compare it with rows.
#[derive(Clone, Debug)]
pub(super) struct AttemptDigest {
    pub digest: Digest,
    pub attempt: AttemptId,
    pub tensor: TensorFields,
}

impl Part {
    /// Extracts this item's rows from `answer`. None if the bytes do not fit. Does not read the values.
    pub(super) fn read(
        item: usize,
        rows: Vec<u16>,
        answer: &AnswerPart,
        products: Option<Bytes>,
        dtype: Dtype,
        hidden: usize,
    ) -> Option<Self> {
        let payload = &answer.payload;
        let fits =
            answer.rows as usize == rows.len() && payload.len() == rows.len() * dtype.row_bytes(hidden);
        fits.then(|| Self { item, rows, hidden, dtype, payload: payload.clone(), products, digest: None })
    }

    /// A digest in place of this item's rows.
    pub(super) fn of_digest(item: usize, digest: AttemptDigest) -> Self {
        let TensorFields { hidden, dtype, .. } = digest.tensor;
        let (rows, payload) = (Vec::new(), Bytes::new());
        Self { item, rows, hidden: hidden.into(), dtype, payload, products: None, digest: Some(digest) }
    }

    /// Whether it is a digest, which cannot be summed.
    pub(crate) fn is_digest(&self) -> bool {
        self.digest.is_some()
    }

    /// Whether it has the same bits as another part for the same item. None of two digests, which nobody can compare.
    pub(crate) fn has_bits_of(&self, other: &Self) -> Option<bool> {
        let is_of = |digest: &AttemptDigest, payload: &[u8]| {
            Digest::of(digest.attempt, digest.tensor, payload) == digest.digest
        };
        match (&self.digest, &other.digest) {
            (None, None) => Some(self.payload == other.payload),
            (Some(digest), None) => Some(is_of(digest, &other.payload)),
            (None, Some(digest)) => Some(is_of(digest, &self.payload)),
            (Some(_), Some(_)) => None,
        }
    }

    /// (rows, D)
    pub(crate) fn values(&self) -> Vec<f32> {
        // The length was checked by `read`.
        tensor::decode_rows(self.dtype, &self.payload, self.hidden).unwrap_or_default()
    }

    /// The answer's bytes, (rows, D) in the wire's number format.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// (rows, 2F) in f32, if the answer is to be checked.
    pub(super) fn products(&self) -> Option<&[u8]> {
        self.products.as_deref()
    }

    /// Bytes of the answer itself.
    pub(super) fn n_bytes(&self) -> usize {
        self.payload.len()
    }

    /// A copy with its own memory and without products, so that the possibly much larger message is freed.
    pub(super) fn detached(&self) -> Self {
        Self { payload: Bytes::copy_from_slice(&self.payload), products: None, ..self.clone() }
    }

    /// Adds those of its rows that are in `sum` (rows, D), which begins with row `first`.
    fn add_to(&self, first: usize, sum: &mut [f32]) {
        let rows = first..first + sum.len() / self.hidden;
        let payloads = self.payload.chunks_exact(self.dtype.row_bytes(self.hidden));
        for (row, payload) in self.rows.iter().map(|row| usize::from(*row)).zip(payloads) {
            if rows.contains(&row) {
                let row = &mut sum[(row - first) * self.hidden..][..self.hidden];
                // The length was checked by `read`.
                let _ = tensor::add_rows(self.dtype, payload, self.hidden, row);
            }
        }
    }
}

/// Sets `sum` (rows, D), which begins with the job's row `first`, to the sum of the parts, ascending by item and thus by expert,
/// whatever their order of arrival.
pub(super) fn combine<'a>(parts: impl IntoIterator<Item = &'a Part>, first: usize, sum: &mut [f32]) {
    let mut parts: Vec<&Part> = parts.into_iter().collect();
    parts.sort_by_key(|part| part.item);
    sum.fill(0.0);
    parts.into_iter().for_each(|part| part.add_to(first, sum));
}

/// A gate in the wire's format.
pub(super) fn wire_gate(gate: f32) -> f16 {
    f16::from_f32(gate)
}

#[cfg(test)]
mod tests {
    use moex_protocol::ExpertId;
    use proptest::prelude::*;

    use super::*;

    fn part(item: usize, rows: Vec<u16>, values: &[f32]) -> Option<Part> {
        let hidden = values.len() / rows.len();
        let payload = values.iter().flat_map(|v| wire_gate(*v).to_le_bytes()).collect::<Vec<u8>>();
        let answer = AnswerPart { expert: ExpertId(0), rows: rows.len() as u32, payload: payload.into() };
        Part::read(item, rows, &answer, None, Dtype::F16, hidden)
    }

    proptest! {
        #[test]
        fn the_sum_has_the_same_bits_in_any_order_of_arrival(
            values in proptest::collection::vec(-1e3f32..1e3, 8 * 4),
            order in Just((0..8u16).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let all: Vec<Part> =
                (0..8).map(|e| part(e, vec![e as u16 % 2, 2], &values[e * 4..][..4]).unwrap()).collect();
            let shuffled: Vec<&Part> = order.iter().map(|e| &all[usize::from(*e)]).collect();
            let bits = |sum: Vec<f32>| sum.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            let (mut one, mut other) = (vec![0.0; 6], vec![1.0; 6]);
            combine(&all, 0, &mut one);
            combine(shuffled.clone(), 0, &mut other);
            prop_assert_eq!(bits(one.clone()), bits(other));
            // So has the sum of some of the rows.
            let mut last = vec![1.0; 4];
            combine(shuffled, 1, &mut last);
            prop_assert_eq!(bits(one[2..].to_vec()), bits(last));
        }
    }

    #[test]
    fn a_part_of_another_size_is_no_answer() {
        assert_eq!(part(0, vec![0], &[1.0, -2.0]).unwrap().detached().values(), [1.0, -2.0]);
        let two = AnswerPart { expert: ExpertId(0), rows: 1, payload: Bytes::from_static(&[0; 4]) };
        assert!(Part::read(0, vec![0, 1], &two, None, Dtype::F16, 2).is_none());
        assert!(Part::read(0, vec![0], &two, None, Dtype::F16, 1).is_none());
    }
}
