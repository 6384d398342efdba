//! Rounds numbers to f16: rows as they go over the wire, and the products of gate and up, by the arithmetic's definition.

use super::{
    Simd,
    isa::{Isa, Kernel},
};

/// Rounds each value to the nearest f16, ties to even, and back; values beyond f16's range become infinite.
pub fn round_to_f16(simd: Simd, values: &mut [f32]) {
    simd.run(RoundToF16 { values });
}

/// Rounds each product of gate or up to the nearest f16, ties to even, and back. What is beyond f16's range becomes its largest
/// number, so that a large product is cut and not lost; what is not a number stays so.
pub(super) struct RoundProducts<'a> {
    pub(super) products: &'a mut [f32],
}

impl Kernel for RoundProducts<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        for product in self.products {
            *product = rounded(product.clamp(-LARGEST_F16, LARGEST_F16));
        }
    }
}

/// The largest f16.
const LARGEST_F16: f32 = 65_504.0;

struct RoundToF16<'a> {
    values: &'a mut [f32],
}

impl Kernel for RoundToF16<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        for value in self.values {
            *value = rounded(*value);
        }
    }
}

/// Has no branch, so that a loop over it is vectorised.
#[inline(always)]
pub(super) fn rounded(value: f32) -> f32 {
    /// 2^-14, the smallest normal f16.
    const SMALLEST_NORMAL: u32 = (127 - 14) << 23;
    /// 65,520, from which on values are nearer to 2^16 than to the largest f16.
    const OVERFLOW: u32 = 0x477f_f000;
    /// f32 has 13 bits of fraction more.
    const SURPLUS: u32 = (1 << 13) - 1;
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    // An f32 from 1/2 to 1 ends at 2^-24, as subnormal f16 do: the addition itself rounds.
    let subnormal = ((f32::from_bits(magnitude) + 0.5) - 0.5).to_bits();
    let normal = (magnitude.wrapping_add(SURPLUS / 2 + (magnitude >> 13 & 1))) & !SURPLUS;
    let infinite = if magnitude > 0x7f80_0000 { 0x7fc0_0000 } else { 0x7f80_0000 };
    let finite = if magnitude < SMALLEST_NORMAL { subnormal } else { normal };
    let rounded = if magnitude >= OVERFLOW { infinite } else { finite };
    f32::from_bits(rounded | bits & 0x8000_0000)
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn products_are_cut_to_the_largest_f16() {
        let values =
            [1e9, -65_519.0, 65_504.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1.000_5, 3e-8, -0.0];
        for simd in Simd::available() {
            let mut actual = values;
            simd.run(RoundProducts { products: &mut actual });
            for (value, actual) in values.into_iter().zip(actual) {
                let expected = f16::from_f32(value.clamp(-65_504.0, 65_504.0)).to_f32();
                let same = actual.to_bits() == expected.to_bits() || (actual.is_nan() && value.is_nan());
                assert!(same, "{simd} {value:e}: {actual:e} {expected:e}");
            }
        }
    }

    #[test]
    fn is_what_half_does_on_every_instruction_set() {
        let values: Vec<f32> = (0..=u16::MAX)
            .flat_map(|bits| {
                let exact = f16::from_bits(bits).to_f32().to_bits();
                // The value, its neighbours, and values about the middle between it and the next.
                [0, 1, !0, 0xfff, 0x1000, 0x1001, 0x1fff]
                    .map(|step: u32| f32::from_bits(exact.wrapping_add(step)))
            })
            .chain((0..1 << 16).map(|i: u32| f32::from_bits(i.wrapping_mul(0x9E37_79B1))))
            .collect();
        for simd in Simd::available() {
            let mut actual = values.clone();
            round_to_f16(simd, &mut actual);
            for (value, actual) in values.iter().zip(actual) {
                let expected = f16::from_f32(*value).to_f32();
                let same = actual.to_bits() == expected.to_bits() || (actual.is_nan() && expected.is_nan());
                assert!(same, "{simd} {value:e}: {actual:e} {expected:e}");
            }
        }
    }
}
