//! Llama 3's rotations for longer contexts, as transformers' `_compute_llama3_parameters` computes them.

use std::f32::consts::TAU;

/// Config `rope_scaling` / `rope_parameters` with `rope_type` "llama3".
#[derive(Clone, Debug, PartialEq)]
pub struct Llama3 {
    /// `factor`: the slowest frequencies are divided by it.
    pub factor: f64,
    /// `low_freq_factor`: columns that turn less often than this within the original context are slowed down by the
    /// whole factor.
    pub low: f64,
    /// `high_freq_factor`: columns that turn more often than this are left as they are.
    pub high: f64,
    /// `original_max_position_embeddings`.
    pub original_max_positions: f64,
}

impl Llama3 {
    /// A frequency divided by a number between 1 and the factor.
    pub(super) fn stretch(&self, frequency: f32) -> f32 {
        let (factor, original) = (self.factor as f32, self.original_max_positions as f32);
        let (low, high) = (self.low as f32, self.high as f32);
        let wavelength = TAU / frequency;
        if wavelength > original / low {
            frequency / factor
        } else if wavelength < original / high {
            frequency
        } else {
            let smooth = (original / wavelength - low) / (high - low);
            (1.0 - smooth) * frequency / factor + smooth * frequency
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_columns_stay_slow_ones_are_divided_and_those_between_lie_between() {
        let scaling = Llama3 { factor: 8.0, low: 1.0, high: 4.0, original_max_positions: 64.0 };
        assert_eq!(scaling.stretch(1.0), 1.0);
        assert_eq!(scaling.stretch(0.01), 0.01 / 8.0);
        let between = scaling.stretch(0.2);
        assert!(between < 0.2 && between > 0.2 / 8.0, "{between}");
    }
}
