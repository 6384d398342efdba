//! The fixed order in which products are summed.

/// Partial sums of a dot product: enough for the compiler to fill any machine's vector registers, and a part of the
/// result's definition.
pub const LANES: usize = 16;

/// `sum(a[i] * b[i])`: lane `i % 16` sums its products in order, then the lanes are folded in halves.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "lengths of a dot product");
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut lanes = [0.0_f32; LANES];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            // Not `mul_add`: machines that fuse and machines that do not would give different bits.
            lanes[lane] += a[lane] * b[lane];
        }
    }
    for (lane, (a, b)) in lanes.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *lane += a * b;
    }
    fold(lanes)
}

/// The sum of the lanes: adds the upper half to the lower until one lane is left.
#[inline]
pub(crate) fn fold(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
        half /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::noise;

    #[test]
    fn agrees_with_f64_at_every_length() {
        for n in 0..200 {
            let (a, b) = (noise(1, n, 1.0), noise(2, n, 1.0));
            let exact: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            // 2^-24 for each of at most n / 16 + 5 roundings of sums below n.
            assert!((f64::from(dot(&a, &b)) - exact).abs() <= 1e-6 * n as f64, "{n}");
        }
    }
}
