//! Whether two answers to the same work items are the same, up to rounding.

use crate::dispatcher::Part;

/// Two honest answers differ by less, as sum((a - b)^2) / sum(b^2). The largest honest differences: results rounded to f16
/// 1e-7, to bf16 5e-6; f16 arithmetic on a GPU 1e-6; activations quantised to int8 before each of two products 1.5e-4, and
/// results in int8 on the wire 1e-4. A wrong expert, row or gate is off by 0.1 and more.
pub const TOLERANCE_NMSE: f64 = 1e-3;
/// Below this root of the mean square a difference is rounding, however small the values: the least f16 is 6e-8.
const ROUNDING_RMS: f64 = 2e-7;

/// By how much (NMSE) a part of an answer differs from what is true: in a bit if `is_exact`, else by more than honest kernels
/// do.
pub(crate) fn difference(answer: &Part, truth: &Part, is_exact: bool) -> Option<f64> {
    if answer.has_bits_of(truth) != Some(false) {
        return None;
    }
    // By how much is not known.
    if answer.is_digest() {
        return Some(f64::MAX);
    }
    let (answer, truth) = (answer.values(), truth.values());
    if is_exact { Some(nmse(&answer, &truth)) } else { differs(&answer, &truth) }
}

/// What a comparison of an answer with another one found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Comparison {
    /// Parts that could be compared.
    pub n_compared: usize,
    /// The first work item that differs, and by how much (NMSE).
    pub first_difference: Option<(usize, f64)>,
}

/// NMSE of `answer` beside `truth`, (rows, D) each, if it is beyond what honest kernels differ by.
pub(super) fn differs(answer: &[f32], truth: &[f32]) -> Option<f64> {
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
    let pairs = answer.iter().zip(truth);
    let error = square(&mut pairs.map(|(answer, truth)| f64::from(*answer) - f64::from(*truth)));
    let power = square(&mut truth.iter().map(|value| f64::from(*value)));
    let rounding = ROUNDING_RMS * ROUNDING_RMS * truth.len() as f64;
    // Not where the error is NaN, or infinite, as the power then may be too.
    let is_small = error.is_finite() && error <= TOLERANCE_NMSE * power + rounding;
    let is_rounding = answer.len() == truth.len() && is_small;
    (!is_rounding).then(|| (error / power).min(f64::MAX))
}

fn nmse(answer: &[f32], truth: &[f32]) -> f64 {
    let square = |value: f64| value * value;
    let error: f64 = answer.iter().zip(truth).map(|(a, t)| square(f64::from(*a) - f64::from(*t))).sum();
    let power: f64 = truth.iter().map(|value| square(f64::from(*value))).sum();
    // What is nothing beside nothing is no difference; NaN is larger than all.
    if error == 0.0 { 0.0 } else { (error / power).min(f64::MAX) }
}

/// Compares the parts of `answer` with those of `truth` for the same items.
pub(super) fn compare<'a>(
    answer: impl IntoIterator<Item = &'a Part>,
    truth: &[&Part],
    is_exact: bool,
) -> Comparison {
    let mut found = Comparison::default();
    for part in answer {
        if let Some(other) = truth.iter().find(|other| other.item == part.item) {
            found.n_compared += 1;
            if let Some(nmse) = difference(part, other, is_exact) {
                found.first_difference = found.first_difference.or(Some((part.item, nmse)));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use half::f16;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rounding_is_no_difference_and_a_wrong_gate_is(
            values in proptest::collection::vec(-3.0f32..3.0, 64), scale in -24i32..8,
        ) {
            let truth: Vec<f32> = values.iter().map(|v| f16::from_f32(v * (scale as f32).exp2()).to_f32()).collect();
            let answer: Vec<f32> = truth.iter().map(|v| f16::from_f32(v * 1.0009).to_f32()).collect();
            prop_assert_eq!(differs(&answer, &truth), None);
            let rms = (truth.iter().map(|v| v * v).sum::<f32>() / 64.0).sqrt();
            let wrong: Vec<f32> = truth.iter().map(|v| v * 1.5).collect();
            prop_assert!(rms < 1e-6 || differs(&wrong, &truth).is_some());
        }
    }

    #[test]
    fn values_where_there_are_none_differ() {
        assert_eq!(differs(&[0.0; 4], &[0.0; 4]), None);
        assert_eq!(differs(&[1.0; 4], &[0.0; 4]), Some(f64::MAX));
        assert!(differs(&[0.0; 4], &[1.0; 4]).is_some() && differs(&[1.0; 3], &[1.0; 4]).is_some());
        assert!(differs(&[1e30; 4], &[1.0; 4]).is_some() && differs(&[f32::NAN; 4], &[1.0; 4]).is_some());
        assert!(differs(&[1.0; 4], &[f32::INFINITY; 4]).is_some());
    }
}
