//! YaRN: rotations stretched for contexts longer than a model was trained on, as transformers'
//! `_compute_yarn_parameters` computes them (<https://arxiv.org/abs/2309.00071>, section 3).

/// Config `rope_scaling` / `rope_parameters` with `rope_type` "yarn".
#[derive(Clone, Debug, PartialEq)]
pub struct Yarn {
    /// `factor`: how many times longer the context is.
    pub factor: f64,
    /// `original_max_position_embeddings`; where absent, `max_position_embeddings`.
    pub original_max_positions: f64,
    /// `attention_factor`, the factor of sine and cosine; where absent, computed.
    pub attention_factor: Option<f64>,
    /// `beta_fast`: columns that turn more often than this within the original context are left as they are.
    pub beta_fast: f64,
    /// `beta_slow`: columns that turn less often than this are stretched by the whole factor.
    pub beta_slow: f64,
    /// `mscale`; together with `mscale_all_dim` it is another way to the attention factor.
    pub mscale: Option<f64>,
    /// `mscale_all_dim`.
    pub mscale_all_dim: Option<f64>,
    /// `truncate`: whether the bounds between fast and slow columns are rounded to whole columns.
    pub truncate: bool,
}

impl Yarn {
    /// Takes transformers' defaults for all fields that a config may leave out.
    pub fn new(factor: f64, original_max_positions: f64) -> Self {
        Self {
            factor,
            original_max_positions,
            attention_factor: None,
            beta_fast: 32.0,
            beta_slow: 1.0,
            mscale: None,
            mscale_all_dim: None,
            truncate: true,
        }
    }

    /// `0.1 m ln(factor) + 1`: how a longer context scales the sharpness of attention.
    pub fn mscale(&self, m: f64) -> f64 {
        mscale(self.factor, m)
    }

    /// The factor of sine and cosine.
    pub(super) fn attention_scale(&self) -> f32 {
        let given = |value: Option<f64>| value.filter(|&v| v != 0.0);
        let scale = match (self.attention_factor, given(self.mscale), given(self.mscale_all_dim)) {
            (Some(scale), ..) => scale,
            (None, Some(m), Some(all)) => mscale(self.factor, m) / mscale(self.factor, all),
            (None, ..) => mscale(self.factor, 1.0),
        };
        scale as f32
    }

    /// `frequencies` (C/2), each divided by a number between 1 and the factor.
    pub(super) fn stretch(&self, frequencies: &[f32], head_width: usize, theta: f32) -> Vec<f32> {
        let (low, high) = self.correction_range(head_width as f64, f64::from(theta));
        let width = if low == high { 0.001 } else { high - low };
        let stretched = frequencies.iter().enumerate().map(|(i, &frequency)| {
            let slowness = ((i as f32 - low as f32) / width as f32).clamp(0.0, 1.0);
            let kept = 1.0 - slowness;
            frequency / self.factor as f32 * (1.0 - kept) + frequency * kept
        });
        stretched.collect()
    }

    /// The last column that is not stretched, and the first that is stretched by the whole factor.
    fn correction_range(&self, dim: f64, base: f64) -> (f64, f64) {
        let column_turning = |turns: f64| {
            let wavelength = self.original_max_positions / (turns * 2.0 * std::f64::consts::PI);
            dim * wavelength.ln() / (2.0 * base.ln())
        };
        let (low, high) = (column_turning(self.beta_fast), column_turning(self.beta_slow));
        let (low, high) = if self.truncate { (low.floor(), high.ceil()) } else { (low, high) };
        (low.max(0.0), high.min(dim - 1.0))
    }
}

fn mscale(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qwen3_with_factor_four() {
        // dim 128, base 1e6, original 32768: the column turning 32 times is 128 ln(32768 / 64pi) / (2 ln 1e6) = 23.59,
        // the one turning once 39.64; so 0..=23 stay and 40.. are divided by four.
        let yarn = Yarn::new(4.0, 32768.0);
        assert_eq!(yarn.correction_range(128.0, 1e6), (23.0, 40.0));
        let stretched = yarn.stretch(&[1.0; 64], 128, 1e6);
        assert!(stretched[..=23].iter().all(|f| *f == 1.0));
        assert!(stretched[40..].iter().all(|f| *f == 0.25));
        assert!(stretched[23..=40].is_sorted_by(|a, b| a > b));
        assert!((yarn.attention_scale() - 1.138_629_4).abs() < 1e-6);
    }

    #[test]
    fn the_attention_factor_is_taken_from_what_is_given() {
        let yarn = Yarn::new(4.0, 32768.0);
        assert_eq!(Yarn { attention_factor: Some(0.5), ..yarn.clone() }.attention_scale(), 0.5);
        let equal = Yarn { mscale: Some(0.7), mscale_all_dim: Some(0.7), ..yarn.clone() };
        assert_eq!(equal.attention_scale(), 1.0);
        assert_eq!(Yarn { factor: 1.0, ..yarn }.attention_scale(), 1.0);
    }

    #[test]
    fn without_truncation_the_bounds_are_fractions() {
        let (low, high) = Yarn { truncate: false, ..Yarn::new(4.0, 32768.0) }.correction_range(128.0, 1e6);
        assert!((low - 23.59).abs() < 0.01 && (high - 39.65).abs() < 0.01, "{low} {high}");
    }
}
