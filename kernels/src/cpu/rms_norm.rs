//! RMSNorm: rows divided by their root mean square.

use super::dot;

/// `out[t][i] = weight[i] * x[t][i] / sqrt(mean(x[t]^2) + eps)`: `x` (T, D), `weight` (D), `out` (T, D).
///
/// # Panics
/// If the lengths do not fit one T.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    out.copy_from_slice(x);
    rms_norm_in_place(out, weight, eps);
}

/// [`rms_norm`] in place. With the rows of one head, `x` (T, H, C) and `weight` (C), it is the norm of queries and
/// keys.
///
/// # Panics
/// If `x` is not whole rows of `weight`'s length.
pub fn rms_norm_in_place(x: &mut [f32], weight: &[f32], eps: f32) {
    let width = weight.len();
    if width == 0 {
        return assert!(x.is_empty(), "rows without width");
    }
    assert!(x.len().is_multiple_of(width), "rows of {width}");
    for row in x.chunks_exact_mut(width) {
        let mean_square = dot(row, row) / width as f32;
        let scale = 1.0 / (mean_square + eps).sqrt();
        for (x, weight) in row.iter_mut().zip(weight) {
            *x = *weight * (*x * scale);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_threes_and_fours() {
        // Mean square 12.5, so the root is 3.5355.
        let mut out = [0.0; 4];
        rms_norm(&[3.0, 4.0, -4.0, 3.0], &[1.0, 1.0, 2.0, 0.0], 0.0, &mut out);
        let unit = 12.5_f32.sqrt();
        for (actual, expected) in out.iter().zip([3.0 / unit, 4.0 / unit, -8.0 / unit, 0.0]) {
            assert!((actual - expected).abs() < 1e-6);
        }
    }

    #[test]
    fn zeros_stay_zeros() {
        let mut x = [0.0; 6];
        rms_norm_in_place(&mut x, &[1.0; 3], 1e-6);
        assert_eq!(x, [0.0; 6]);
    }
}
