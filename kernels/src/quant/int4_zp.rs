//! int4 in groups of 128 columns with a scale and a zero point each, what GPTQ and AWQ call asymmetric; the layout is
//! drawn at [`super::WeightFormat::Int4ZpG128`].

use half::f16;

use super::{
    int4::{GROUP, GROUP_BYTES},
    parts::{Geometry, Parts, reciprocal, to_f16},
};

pub(super) const GEOMETRY: Geometry = Geometry { cols: GROUP, group: GROUP, has_minimums: false, zero: None };
/// The bytes of a group's scale and zero point.
pub(super) const PARAMETER_BYTES: usize = 4;

const TOP: f32 = 15.0;

pub(super) fn encode(cols: usize, values: &[f32]) -> Vec<u8> {
    let (mut nibbles, mut parameters) = (Vec::new(), Vec::new());
    for row in values.chunks_exact(cols.max(1)) {
        for group in row.chunks(GROUP) {
            let mut padded = [0.0; GROUP];
            padded[..group.len()].copy_from_slice(group);
            let (scale, zero) = fit(&padded);
            let inverse = reciprocal(scale.to_f32());
            // The conversion saturates at 0 and takes what is not a number there.
            let codes = padded.map(|x| ((x * inverse).round() + f32::from(zero)).min(TOP) as u8);
            nibbles.extend(codes.as_chunks::<2>().0.iter().map(|[low, high]| low | high << 4));
            parameters.extend(scale.to_le_bytes());
            parameters.extend([zero, 0]);
        }
    }
    nibbles.extend(parameters);
    nibbles
}

/// The scale that spreads 16 codes over the values and 0, and the code of 0.
fn fit(group: &[f32; GROUP]) -> (f16, u8) {
    let min = group.iter().fold(0.0, |m: f32, &x| m.min(x));
    let max = group.iter().fold(0.0, |m: f32, &x| m.max(x));
    let scale = to_f16((max - min) / TOP);
    let zero = (-min * reciprocal(scale)).round().clamp(0.0, TOP);
    (f16::from_f32(scale), zero as u8)
}

/// The group with these nibbles and this scale and zero point.
#[inline]
pub(super) fn read(nibbles: &[u8], parameters: &[u8], parts: &mut Parts) {
    parts.d = f16::from_le_bytes([parameters[0], parameters[1]]).to_f32();
    parts.zero = parameters[2];
    for (pair, byte) in parts.codes.chunks_exact_mut(2).zip(nibbles) {
        pair.copy_from_slice(&[byte & 15, byte >> 4]);
    }
}

/// One row: its whole groups of nibbles and their parameters, both as stored, to the first `out.len()` columns.
pub(super) fn decode_row(nibbles: &[u8], parameters: &[u8], out: &mut [f32]) {
    let mut parts = Parts::default();
    let groups = nibbles.chunks_exact(GROUP_BYTES).zip(parameters.chunks_exact(PARAMETER_BYTES));
    for ((nibbles, parameters), out) in groups.zip(out.chunks_mut(GROUP)) {
        read(nibbles, parameters, &mut parts);
        parts.values(GEOMETRY, out);
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
