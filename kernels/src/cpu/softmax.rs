//! Softmax in f32.

use super::{LANES, dot::fold};

/// `x[i] = exp(x[i] - max) / sum`, in place. An empty row stays empty; a row of minus infinity becomes NaN.
pub fn softmax(x: &mut [f32]) {
    let largest = x.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x));
    let mut lanes = [0.0_f32; LANES];
    for chunk in x.chunks_mut(LANES) {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *x = libm::expf(*x - largest);
            *lane += *x;
        }
    }
    let scale = 1.0 / fold(lanes);
    x.iter_mut().for_each(|x| *x *= scale);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_distribution_and_does_not_overflow() {
        let mut x: Vec<f32> = (0..37).map(|i| 1000.0 + (i % 5) as f32).collect();
        softmax(&mut x);
        assert!((x.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        assert!((x[1] / x[0] - std::f32::consts::E).abs() < 1e-5);
    }
}
