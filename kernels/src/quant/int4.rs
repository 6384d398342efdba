//! int4 in groups of 128 columns with one f16 scale each; the layout is drawn at [`super::WeightFormat::Int4G128`].

use half::f16;

use super::{
    definition::{Definition, Zero},
    format::Integer,
    parts::Parts,
    planes::Plane,
};

/// The columns that share a scale.
pub const GROUP: usize = 128;

/// The common definition of both int4 formats, without their zeros.
pub(super) const BLOCK: Definition = Definition {
    cols: GROUP,
    group: GROUP,
    bytes: GROUP / 2,
    codes: &[Plane { at: 0, bits: 4, width: 1 }],
    ..Definition::BLOCK
};

pub(crate) struct Int4;

impl Integer for Int4 {
    const DEFINITION: Definition = Definition { plane_bytes: 2, zero: Zero::Fixed(8), ..BLOCK };
    #[cfg(test)]
    const NOISE_LOSS: f64 = 1.2 / (14.0 * 14.0);

    fn fit(values: &[f32], parts: &mut Parts) {
        let Some(values) = values.as_array() else { return };
        // Packing a model mostly runs this, and with eight lanes it takes half as long as with four. The bits are the
        // same.
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: this processor has the instructions.
            return unsafe { fit_avx2(values, parts) };
        }
        fit(values, parts);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn fit_avx2(values: &[f32; GROUP], parts: &mut Parts) {
    fit(values, parts);
}

#[inline(always)]
fn fit(values: &[f32; GROUP], parts: &mut Parts) {
    let scale = best_scale(values).to_f32();
    parts.d = scale;
    for (place, x) in parts.codes.iter_mut().zip(values) {
        *place = (code(*x, scale) + 8.0) as i32 as u8;
    }
}

/// Scales tried for each group. The first takes the largest weight to 7, the others cut it off in favour of the rest.
const CANDIDATES: u8 = 16;
/// The step from one candidate to the next smaller one, as a part of the first.
const CANDIDATE_STEP: f32 = 0.02;

/// The candidate scale with the smallest squared error; of equals, the largest.
#[inline(always)]
fn best_scale(group: &[f32; GROUP]) -> f16 {
    let largest = group.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
    let mut best = (f16::ZERO, f32::INFINITY);
    for candidate in 0..CANDIDATES {
        let scale = largest / 7.0 * (1.0 - CANDIDATE_STEP * f32::from(candidate));
        let scale = f16::from_f32(scale.min(f16::MAX.to_f32()));
        let error = squared_error(group, scale.to_f32());
        if error < best.1 {
            best = (scale, error);
        }
    }
    best.0
}

#[inline(always)]
fn squared_error(group: &[f32; GROUP], scale: f32) -> f32 {
    // 16 lanes in a fixed order: vector code with the same bits on every machine.
    let mut lanes = [0.0_f32; 16];
    for chunk in group.as_chunks::<16>().0 {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            let error = x - code(x, scale) * scale;
            *lane += error * error;
        }
    }
    lanes.iter().sum()
}

/// The integer in -8..=7 nearest to `x / scale`, halves to even; 0 for NaN.
#[inline(always)]
fn code(x: f32, scale: f32) -> f32 {
    /// Adding 1.5 * 2^23 leaves no bits behind the point, so that the addition itself rounds.
    const ROUNDER: f32 = 12_582_912.0;
    let quotient = if scale > 0.0 { x / scale } else { 0.0 };
    let quotient = if quotient.is_nan() { 0.0 } else { quotient };
    quotient.clamp(-8.0, 7.0) + ROUNDER - ROUNDER
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Int4, Integer, Parts};
    use crate::{MatrixView, WeightFormat, nmse};

    #[test]
    fn the_bytes_of_a_row() {
        // 0x8 is zero; 7, -7 and 1 lie on the grid of scale 1.0 = 0x3c00; the other 125 columns are padding.
        let bytes = WeightFormat::Int4G128.quantize(1, 3, &[7.0, -7.0, 1.0]);
        let mut expected = vec![0x1f, 0x89];
        expected.extend([0x88; 62]);
        expected.extend([0x00, 0x3c]);
        assert_eq!(bytes, expected);
    }

    #[test]
    fn zeros_stay_zeros_and_nonsense_does_no_harm() {
        let values = [0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e-30];
        for values in [&[0.0; 6], &values] {
            let bytes = WeightFormat::Int4G128.quantize(1, 6, values);
            let row = MatrixView::new(WeightFormat::Int4G128, 1, 6, &bytes).unwrap().dequantize();
            assert_eq!(row[0], 0.0);
            assert!(row.iter().all(|x| x.is_finite()));
        }
    }

    #[test]
    fn every_instruction_set_fits_alike() {
        let groups = crate::noise::noise(5, 1000 * super::GROUP, 0.3);
        for group in groups.as_chunks().0 {
            let [mut fast, mut plain] = [Parts::default(), Parts::default()];
            Int4::fit(group, &mut fast);
            super::fit(group, &mut plain);
            assert_eq!((fast.d, fast.codes), (plain.d, plain.codes));
        }
    }

    proptest! {
        #[test]
        fn never_further_than_half_a_step_or_the_cut(
            rows in 1_usize..4,
            cols in 1_usize..300,
            seed in any::<u64>(),
            magnitude in -3_i32..3,
        ) {
            let values = crate::noise::noise(seed, rows * cols, 10.0_f32.powi(magnitude));
            let bytes = WeightFormat::Int4G128.quantize(rows, cols, &values);
            let decoded = MatrixView::new(WeightFormat::Int4G128, rows, cols, &bytes).unwrap().dequantize();
            for (decoded, values) in decoded.chunks(cols).zip(values.chunks(cols)) {
                for (decoded, values) in decoded.chunks(super::GROUP).zip(values.chunks(super::GROUP)) {
                    // Taking the largest weight to 7 errs by half a step of 1/7 at most, the f16 scale by 2^-11 more;
                    // any other candidate was taken because its squared error is smaller.
                    let largest = values.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
                    let half_step = f64::from(largest) * (0.5 / 7.0 + 1.0 / 2048.0) + 1e-6;
                    let bound = half_step * half_step * values.len() as f64;
                    let error: f64 =
                        decoded.iter().zip(values).map(|(a, b)| f64::from(a - b).powi(2)).sum();
                    prop_assert!(error <= bound, "{error} > {bound}");
                }
            }
        }

        #[test]
        fn of_noise_loses_about_a_hundredth(seed in any::<u64>()) {
            let values = crate::noise::noise(seed, 8 * 256, 0.02);
            let bytes = WeightFormat::Int4G128.quantize(8, 256, &values);
            let decoded = MatrixView::new(WeightFormat::Int4G128, 8, 256, &bytes).unwrap().dequantize();
            // Uniform noise in steps of 1/7: an error of step^2 / 12 against a power of 1 / 3.
            prop_assert!(nmse(&decoded, &values) < 1.2 / (4.0 * 49.0));
        }
    }
}
