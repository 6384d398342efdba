//! Reads f16 numbers as f32.

use super::{
    Simd,
    isa::{Isa, Kernel, ROWS},
};

/// `out[i]` is the `i`th f16, little-endian, of `bytes`.
///
/// # Panics
/// If there are not two bytes for each.
pub fn widen_halves(simd: Simd, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len(), 2 * out.len(), "two bytes a value");
    simd.run(WidenHalves { bytes, out });
}

struct WidenHalves<'a> {
    bytes: &'a [u8],
    out: &'a mut [f32],
}

impl Kernel for WidenHalves<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let (halves, rest) = self.bytes.as_chunks::<{ 2 * ROWS }>();
        let (out, out_rest) = self.out.as_chunks_mut::<ROWS>();
        for (halves, out) in halves.iter().zip(out) {
            *out = isa.to_array(isa.halves(halves));
        }
        let mut last = [0; 2 * ROWS];
        last[..rest.len()].copy_from_slice(rest);
        let last = isa.to_array(isa.halves(&last));
        out_rest.copy_from_slice(&last[..out_rest.len()]);
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn is_what_half_does_on_every_instruction_set() {
        let bytes: Vec<u8> = (0..u16::MAX).flat_map(u16::to_le_bytes).collect();
        for simd in Simd::available() {
            let mut out = vec![0.0; usize::from(u16::MAX)];
            widen_halves(simd, &bytes, &mut out);
            for (bits, out) in (0..u16::MAX).zip(out) {
                let expected = f16::from_bits(bits).to_f32();
                assert!(out == expected || out.is_nan() && expected.is_nan(), "{simd} {bits:x}: {out}");
            }
        }
    }
}
