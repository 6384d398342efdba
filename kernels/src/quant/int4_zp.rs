//! int4 in groups of 128 columns with a scale and a zero point each, what GPTQ and AWQ call asymmetric; the layout is
//! drawn at [`super::WeightFormat::Int4ZpG128`].

use super::{
    definition::{Definition, Zero},
    format::Integer,
    int4,
    parts::{Parts, reciprocal, to_f16},
};

const TOP: f32 = 15.0;

pub(crate) struct Int4Zp;

impl Integer for Int4Zp {
    const DEFINITION: Definition = Definition { plane_bytes: 4, zero: Zero::At(2), ..int4::BLOCK };
    #[cfg(test)]
    const NOISE_LOSS: f64 = 1.2 / (15.0 * 15.0);

    /// The scale that spreads 16 codes over the values and 0, and the code of 0.
    fn fit(values: &[f32], parts: &mut Parts) {
        let min = values.iter().fold(0.0, |m: f32, &x| m.min(x));
        let max = values.iter().fold(0.0, |m: f32, &x| m.max(x));
        parts.d = to_f16((max - min) / TOP);
        let inverse = reciprocal(parts.d);
        let zero = (-min * inverse).round().clamp(0.0, TOP);
        parts.zero = zero as u8;
        for (code, x) in parts.codes.iter_mut().zip(values) {
            // The conversion saturates at 0 and takes NaN to 0.
            *code = ((x * inverse).round() + zero).min(TOP) as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{MatrixView, WeightFormat};

    #[test]
    fn the_bytes_of_a_row() {
        // From -3 to 12 in steps of 1.0 = 0x3c00: zero is code 3, as is the padding.
        let bytes = WeightFormat::Int4ZpG128.quantize(1, 3, &[-3.0, 12.0, 1.0]);
        let mut expected = vec![0xf0, 0x34];
        expected.extend([0x33; 62]);
        expected.extend([0x00, 0x3c, 3, 0]);
        assert_eq!(bytes, expected);
        let row = MatrixView::new(WeightFormat::Int4ZpG128, 1, 3, &bytes).unwrap().dequantize();
        assert_eq!(row, [-3.0, 12.0, 1.0]);
    }

    #[test]
    fn a_zero_point_of_sixteen_is_read_as_it_is() {
        // What GPTQ's older files mean by a stored 15.
        let mut bytes = vec![0xf0; 64];
        bytes.extend([0x00, 0x3c, 16, 0]);
        let row = MatrixView::new(WeightFormat::Int4ZpG128, 1, 2, &bytes).unwrap().dequantize();
        assert_eq!(row, [-16.0, -1.0]);
    }
}
