//! Multiplies values by the sigmoid of gates.

/// `row[i] *= 1 / (1 + exp(-x))`.
pub fn scale_by_sigmoid(row: &mut [f32], x: f32) {
    let share = 1.0 / (1.0 + libm::expf(-x));
    row.iter_mut().for_each(|value| *value *= share);
}

/// `row[i] *= 1 / (1 + exp(-gates[i]))`.
///
/// # Panics
/// If the lengths differ.
pub fn sigmoid_mul(row: &mut [f32], gates: &[f32]) {
    assert_eq!(row.len(), gates.len(), "a gate for each value");
    row.iter_mut().zip(gates).for_each(|(value, gate)| *value *= 1.0 / (1.0 + libm::expf(-gate)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_at_zero_and_all_far_above() {
        let mut row = [2.0, -4.0];
        scale_by_sigmoid(&mut row, 0.0);
        assert_eq!(row, [1.0, -2.0]);
        scale_by_sigmoid(&mut row, 100.0);
        assert_eq!(row, [1.0, -2.0]);
        sigmoid_mul(&mut row, &[100.0, 0.0]);
        assert_eq!(row, [1.0, -1.0]);
    }
}
