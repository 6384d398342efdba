//! The activation of Gemma's MLP.

/// `gate[i] = gelu(gate[i]) * up[i]`, in place, with GELU's tanh approximation (`0.5 x (1 + tanh(sqrt(2 / pi) (x +
/// 0.044715 x^3)))`).
///
/// # Panics
/// If the lengths differ.
pub fn gelu_mul(gate: &mut [f32], up: &[f32]) {
    const SCALE: f32 = std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2;
    assert_eq!(gate.len(), up.len(), "gate and up of the same rows");
    for (gate, up) in gate.iter_mut().zip(up) {
        let x = *gate;
        let inner = SCALE * (x + 0.044_715 * (x * x * x));
        *gate = 0.5 * x * (1.0 + libm::tanhf(inner)) * up;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        let mut gate = [0.0, 1.0, -1.0, 10.0];
        gelu_mul(&mut gate, &[3.0, 1.0, 1.0, 2.0]);
        for (actual, expected) in gate.iter().zip([0.0, 0.841_192, -0.158_808, 20.0]) {
            assert!((actual - expected).abs() < 1e-5, "{actual} {expected}");
        }
    }
}
