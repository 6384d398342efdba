//! Tests that hold for every format.

use proptest::prelude::*;

use super::{MatrixView, WeightFormat};
use crate::{nmse, noise::noise};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn of_noise_only_what_the_bits_cost_is_lost(seed in any::<u64>(), magnitude in -1_i32..3) {
        let values = noise(seed, 8 * 512, 10.0_f32.powi(magnitude));
        for format in WeightFormat::ALL {
            let bytes = format.quantize(8, 512, &values);
            let decoded = MatrixView::new(format, 8, 512, &bytes).unwrap().dequantize();
            prop_assert!(nmse(&decoded, &values) < format.noise_loss(), "{format} {}", nmse(&decoded, &values));
        }
    }

    #[test]
    fn a_row_and_its_blocks_do_not_depend_on_what_surrounds_them(cols in 1_usize..600, seed in any::<u64>()) {
        let values = noise(seed, 3 * cols, 1.0);
        for format in WeightFormat::ALL {
            let bytes = format.quantize(3, cols, &values);
            let together = MatrixView::new(format, 3, cols, &bytes).unwrap().dequantize();
            for (values, together) in values.chunks(cols).zip(together.chunks(cols)) {
                let bytes = format.quantize(1, cols, values);
                let alone = MatrixView::new(format, 1, cols, &bytes).unwrap().dequantize();
                prop_assert_eq!(&alone, together);
            }
        }
    }
}

#[test]
fn zeros_stay_zeros_and_nonsense_does_no_harm() {
    let nonsense = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 1e-40, 0.0];
    for format in &WeightFormat::ALL[3..] {
        for values in [&[0.0; 7], &nonsense] {
            let bytes = format.quantize(1, 7, values);
            let row = MatrixView::new(*format, 1, 7, &bytes).unwrap().dequantize();
            assert!(row.iter().all(|x| x.is_finite()), "{format} {row:?}");
            assert!(values[0] != 0.0 || row == [0.0; 7], "{format} {row:?}");
        }
    }
}

#[test]
fn any_bytes_are_a_matrix() {
    for format in WeightFormat::ALL {
        let cols = 3 * format.block_cols() - 1;
        let n = format.matrix_bytes(2, cols.max(1));
        let bytes: Vec<u8> = noise(5, n, 128.0).iter().map(|x| *x as i32 as u8).collect();
        let matrix = MatrixView::new(format, 2, cols.max(1), &bytes).unwrap();
        assert_eq!(matrix.dequantize().len(), 2 * cols.max(1));
    }
}

#[test]
fn sizes_are_those_of_the_formats() {
    // Bits a weight, of a row of 2048.
    for (name, bits) in [
        ("int4", 4.125),
        ("int4-zp", 4.25),
        ("q8_0", 8.5),
        ("q4_0", 4.5),
        ("q4_1", 5.0),
        ("q5_0", 5.5),
        ("q5_1", 6.0),
        ("q2_K", 2.625),
        ("q3_K", 3.4375),
        ("q4_K", 4.5),
        ("q5_K", 5.5),
        ("q6_K", 6.5625),
        ("iq4_nl", 4.5),
        ("iq4_xs", 4.25),
        ("mxfp4", 4.25),
    ] {
        let format: WeightFormat = name.parse().unwrap();
        assert_eq!(format.matrix_bytes(3, 2048) as f64, 3.0 * 2048.0 * bits / 8.0, "{name}");
    }
}
