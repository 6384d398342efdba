//! The activation between the projections of GPT-OSS' experts.

/// The factor of a gate inside the sigmoid.
pub const SWIGLU_ALPHA: f32 = 1.702;
/// The limit of gates and ups (config `swiglu_limit`): gates are cut to at most this, ups to between minus this and
/// this.
pub const SWIGLU_LIMIT: f32 = 7.0;

/// `gate[i] = (u + 1) g sigmoid(1.702 g)`, in place, with `g` the gate cut to at most 7 and `u` the up cut to between
/// -7 and 7. NaN stays NaN.
///
/// # Panics
/// If the lengths differ.
pub fn clamped_swiglu(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate and up of the same rows");
    for (gate, up) in gate.iter_mut().zip(up) {
        let g = if *gate > SWIGLU_LIMIT { SWIGLU_LIMIT } else { *gate };
        let u = up.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT);
        *gate = (u + 1.0) * (g / (1.0 + libm::expf(-(SWIGLU_ALPHA * g))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values_and_no_overflow() {
        let mut gate = [0.0, 1.0, -1.0, 100.0, -1e30, 2.0, f32::NAN];
        clamped_swiglu(&mut gate, &[3.0, 1.0, 1.0, 100.0, 1.0, -100.0, 0.0]);
        // sigmoid(1.702) = 0.845_796, sigmoid(11.914) = 0.999_993_3, sigmoid(3.404) = 0.967_829.
        for (actual, expected) in gate.iter().zip([0.0, 1.691_592, -0.308_408, 55.999_63, 0.0, -11.613_95]) {
            assert!((actual - expected).abs() < 1e-4, "{actual} {expected}");
        }
        assert!(gate[6].is_nan());
    }
}
