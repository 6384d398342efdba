//! The one measure by which results are compared.

/// Normalised mean squared error of `actual` against `expected`: `sum((a - b)^2) / sum(b^2)`, summed in f64.
///
/// Zero when both are all zero. Infinite when the lengths differ, when anything is not a number, or when `expected` is
/// all zero and `actual` is not: such results agree with nothing.
pub fn nmse(actual: &[f32], expected: &[f32]) -> f64 {
    if actual.len() != expected.len() {
        return f64::INFINITY;
    }
    let (mut error, mut power) = (0.0_f64, 0.0_f64);
    for (&a, &b) in actual.iter().zip(expected) {
        let (a, b) = (f64::from(a), f64::from(b));
        error += (a - b) * (a - b);
        power += b * b;
    }
    match error {
        0.0 => 0.0,
        e if e.is_finite() && power > 0.0 => e / power,
        _ => f64::INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_relative_to_the_expected_power() {
        assert_eq!(nmse(&[3.0, 4.0], &[3.0, 4.0]), 0.0);
        assert!((nmse(&[3.0, 5.0], &[3.0, 4.0]) - 1.0 / 25.0).abs() < 1e-12);
    }

    #[test]
    fn nonsense_is_infinitely_wrong() {
        for actual in [&[f32::NAN, 0.0][..], &[f32::INFINITY, 0.0], &[1.0], &[]] {
            assert_eq!(nmse(actual, &[1.0, 2.0]), f64::INFINITY);
        }
        assert_eq!(nmse(&[1.0], &[0.0]), f64::INFINITY);
        assert_eq!(nmse(&[0.0], &[0.0]), 0.0);
    }
}
