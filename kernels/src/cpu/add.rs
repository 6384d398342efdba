//! Sums: the residual stream and biases.

/// `x[i] += y[i]`.
///
/// # Panics
/// If the lengths differ.
pub fn add(x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "a sum of tensors of one shape");
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// `x[t][i] += bias[i]`: `x` (T, N), `bias` (N).
///
/// # Panics
/// If `x` is not whole rows of `bias`'s length.
pub fn add_bias(x: &mut [f32], bias: &[f32]) {
    if bias.is_empty() {
        return assert!(x.is_empty(), "rows without width");
    }
    assert!(x.len().is_multiple_of(bias.len()), "rows of {}", bias.len());
    x.chunks_exact_mut(bias.len()).for_each(|row| add(row, bias));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bias_goes_to_every_row() {
        let mut x = [1.0, 2.0, 3.0, 4.0];
        add_bias(&mut x, &[10.0, 20.0]);
        assert_eq!(x, [11.0, 22.0, 13.0, 24.0]);
        add(&mut x, &[-11.0, -22.0, -13.0, -24.0]);
        assert_eq!(x, [0.0; 4]);
    }
}
