//! Random weights as they are stored: for trying kernels where nothing is quantised, so that a worker carries no quantiser.

use half::f16;

use super::{Layout, WeightFormat, float, int4};
use crate::noise::{noise, noise_bytes};

impl WeightFormat {
    /// The bytes of a (rows, cols) matrix of random weights, few of them above `magnitude` and none above twice that; the
    /// same for the same seed. Codes and integer scales are any that the format has.
    pub(crate) fn noise(self, rows: usize, cols: usize, seed: u64, magnitude: f32) -> Vec<u8> {
        match self.layout() {
            Layout::Values { .. } => {
                let values = noise(seed, rows * cols, magnitude);
                match self {
                    Self::F16 => float::encode_f16(&values),
                    Self::Bf16 => float::encode_bf16(&values),
                    _ => float::encode_f32(&values),
                }
            }
            Layout::Planes { scale_bytes, .. } => {
                let mut bytes = noise_bytes(seed, self.matrix_bytes(rows, cols));
                let (nibbles, scales) = bytes.split_at_mut(self.value_bytes(rows, cols));
                let padded = int4::n_groups(cols) * int4::GROUP;
                for row in nibbles.chunks_exact_mut((padded / 2).max(1)) {
                    for column in cols..padded {
                        let shift = column % 2 * 4;
                        row[column / 2] = row[column / 2] & (0xf0 >> shift) | int4::ZERO << shift;
                    }
                }
                for group in scales.chunks_exact_mut(scale_bytes) {
                    group[..2].copy_from_slice(&f16::from_f32(magnitude / 8.0).to_le_bytes());
                    group[2..].fill(0);
                    // The zero point, where there is one.
                    group[2..].iter_mut().take(1).for_each(|zero| *zero = int4::ZERO);
                }
                bytes
            }
            Layout::Blocks(blocks) => {
                let mut bytes = noise_bytes(seed, self.matrix_bytes(rows, cols));
                for block in bytes.chunks_exact_mut(blocks.bytes) {
                    for (at, value) in self.floats_of_block(magnitude) {
                        block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
                    }
                }
                bytes
            }
        }
    }

    /// The f16 fields of a block, each by its place: the scale, divided by the most that it is multiplied with, and the
    /// minimum, where there is one. The layouts are drawn in the formats' own files.
    fn floats_of_block(self, magnitude: f32) -> impl Iterator<Item = (usize, f32)> {
        let (scale, minimum) = match self {
            Self::Q8_0 => ((0, magnitude / 128.0), None),
            Self::Q4_1 => ((0, magnitude / 7.5), Some((2, -magnitude))),
            Self::Q5_0 => ((0, magnitude / 16.0), None),
            Self::Q5_1 => ((0, magnitude / 15.5), Some((2, -magnitude))),
            Self::Q4K => ((0, magnitude / (63.0 * 7.5)), Some((2, magnitude / 63.0))),
            Self::Q5K => ((0, magnitude / (63.0 * 15.5)), Some((2, magnitude / 63.0))),
            Self::Q6K => ((208, magnitude / (128.0 * 32.0)), None),
            _ => ((0, magnitude / 8.0), None),
        };
        std::iter::once(scale).chain(minimum)
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

    #[test]
    fn what_int4_is_padded_with_is_zero() {
        for format in [WeightFormat::Int4G128, WeightFormat::Int4ZpG128] {
            let bytes = format.noise(2, 131, 1, 1.0);
            for row in bytes[..2 * 128].chunks_exact(128) {
                assert_eq!((row[65] >> 4, &row[66..]), (8, &[0x88; 62][..]), "{format}");
            }
        }
    }
}
