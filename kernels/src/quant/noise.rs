//! Random weights in their stored form, for trying kernels. Nothing is quantised here, so that a worker contains no
//! quantiser.

use half::f16;

use super::{
    Definition, WeightFormat,
    definition::{Minimum, Scale, Zero},
    float::{Bf16, F16, F32},
    format::Format,
};
use crate::noise::{noise, noise_bytes};

impl WeightFormat {
    /// The bytes of a (rows, cols) matrix of random weights, few of them above `magnitude` and none above twice that; the
    /// same for the same seed. Codes and integer scales are any that the format has.
    pub(crate) fn noise(self, rows: usize, cols: usize, seed: u64, magnitude: f32) -> Vec<u8> {
        let Some(definition) = self.definition() else {
            let values = noise(seed, rows * cols, magnitude);
            let mut read_row =
                |row: usize, out: &mut [f32]| out.copy_from_slice(&values[row * cols..][..cols]);
            // Not `Self::quantize`: naming it brings the fitting of every format into a tab's bundle.
            return match self {
                Self::F16 => F16::quantize(rows, cols, &mut read_row),
                Self::Bf16 => Bf16::quantize(rows, cols, &mut read_row),
                _ => F32::quantize(rows, cols, &mut read_row),
            };
        };
        let mut bytes = noise_bytes(seed, self.matrix_bytes(rows, cols));
        let (blocks, parameters) = bytes.split_at_mut(self.value_bytes(rows, cols));
        let parameters = match definition.plane_bytes {
            0 => blocks.chunks_exact_mut(definition.bytes),
            n => parameters.chunks_exact_mut(n),
        };
        for parameters in parameters {
            definition.put_parameters(magnitude, parameters);
        }
        bytes
    }
}

impl Definition {
    /// Writes scale, minimum and zero into a block of random bytes. The scale is divided by its largest factor.
    fn put_parameters(&self, magnitude: f32, bytes: &mut [u8]) {
        let mut put = |at: usize, value: f32| {
            bytes[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
        };
        let (top, step) = (self.top(), f32::from(self.top_step()));
        let zero = top / 2 + 1;
        let span = match (self.minimum, self.zero) {
            (Some(_), _) => f32::from(top) / 2.0,
            (None, Zero::Fixed(zero)) => f32::from(zero.max(top - zero)),
            (None, Zero::At(_)) => f32::from(zero),
        };
        let scale = magnitude / (step * span);
        if let Scale::F16(at) = self.scale {
            put(at, scale);
        }
        match self.minimum {
            Some(Minimum::Subtracted(at)) => put(at, magnitude / step),
            Some(Minimum::Added(at)) => put(at, -magnitude / step),
            None => {}
        }
        if let Scale::E8m0(at) = self.scale {
            bytes[at] = Scale::exponent(scale);
        }
        if let Zero::At(at) = self.zero {
            bytes[at..].fill(0);
            bytes[at] = zero;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{MatrixView, WeightFormat};

    #[test]
    fn weights_are_random_and_of_their_magnitude() {
        for format in WeightFormat::ALL {
            for (rows, cols) in [(3, 512), (5, 72), (2, 131), (1, 1)] {
                let bytes = format.noise(rows, cols, 7, 0.25);
                let row = MatrixView::new(format, rows, cols, &bytes).unwrap().dequantize();
                assert!(row.iter().all(|w| w.abs() <= 0.51), "{format} {row:?}");
                let power = row.iter().map(|w| w * w).sum::<f32>() / row.len() as f32;
                assert!(rows * cols == 1 || power > 0.002, "{format} {power}");
                assert_eq!(bytes, format.noise(rows, cols, 7, 0.25));
                assert_ne!(bytes, format.noise(rows, cols, 8, 0.25), "{format}");
            }
        }
    }
}
