//! The activation between an expert's projections.

/// `gate[i] = silu(gate[i]) * up[i]`, in place, with `silu(x) = x / (1 + exp(-x))`.
///
/// # Panics
/// If the lengths differ.
pub fn silu_mul(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate and up of the same rows");
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate = *gate / (1.0 + libm::expf(-*gate)) * up;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values_and_no_overflow() {
        let mut gate = [0.0, 1.0, -1.0, 100.0, -100.0, -1e30];
        silu_mul(&mut gate, &[3.0, 2.0, 2.0, 1.0, 1.0, 1.0]);
        for (actual, expected) in gate.iter().zip([0.0, 1.462_117_2, -0.537_882_8, 100.0, 0.0, 0.0]) {
            assert!((actual - expected).abs() < 1e-6, "{actual} {expected}");
        }
    }
}
