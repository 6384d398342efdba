//! Every block format against bytes and values of the reference implementation.

use super::{MatrixView, WeightFormat};

/// A line: what to check (`quantize` or `dequantize`), format, values, bytes.
const GOLDEN: &str = include_str!("golden.txt");

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

#[test]
fn blocks_are_those_of_the_reference() {
    let mut seen = Vec::new();
    for line in GOLDEN.lines().filter(|line| !line.starts_with('#')) {
        let [what, format, values, bytes] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let (format, bytes) = (format.parse::<WeightFormat>().unwrap(), unhex(bytes));
        let values: Vec<f32> = unhex(values).as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        if what == "quantize" {
            assert_eq!(format.quantize(1, values.len(), &values), bytes, "{format}");
        } else {
            let row = MatrixView::new(format, 1, values.len(), &bytes).unwrap().dequantize();
            let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&row), bits(&values), "{format}");
        }
        seen.push((what, format));
    }
    // All of GGUF's blocks; the package has no quantisers of blocks of 256, and none of iq4_nl.
    let of_gguf = |format: &WeightFormat| format.is_quantised() && format.gguf_type().is_some();
    for format in WeightFormat::ALL.into_iter().filter(of_gguf) {
        let has_quantiser = format.block_cols() == 32 && format != WeightFormat::Iq4Nl;
        assert!(seen.contains(&("dequantize", format)), "{format}");
        assert_eq!(seen.contains(&("quantize", format)), has_quantiser, "{format}");
    }
}
