//! f32 to the bits of an f16 and back without a branch, so that a loop over a row vectorises on every target, wasm32
//! included. The same numbers as the `half` crate's, which converts one at a time through a feature test; only the
//! payload of a NaN differs.
//!
//! After Fabian Giesen's `float_to_half_fast3_rtne` and `half_to_float_fast5`.

/// The f16 nearest to `value`, ties to even.
#[inline]
pub(crate) fn from_f32(value: f32) -> u16 {
    /// The smallest f32 that is infinite as an f16, but for rounding, which carries into it by itself.
    const OVERFLOW: u32 = (127 + 16) << 23;
    /// The smallest normal f16.
    const SMALLEST_NORMAL: u32 = (127 - 14) << 23;
    /// Added to a smaller value, it leaves the f16's subnormal bits at the bottom, rounded.
    const ALIGN: u32 = ((127 - 15) + (23 - 10) + 1) << 23;

    let bits = value.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7FFF_FFFF;

    let non_finite = if magnitude > 0x7F80_0000 { 0x7E00 } else { 0x7C00 };
    let aligned = f32::from_bits(magnitude) + f32::from_bits(ALIGN);
    let subnormal = aligned.to_bits().wrapping_sub(ALIGN);
    // Rebias the exponent; round half up, less one where that would break a tie to odd.
    let is_odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub((127 - 15) << 23).wrapping_add(0xFFF + is_odd) >> 13;

    let finite = if magnitude < SMALLEST_NORMAL { subnormal } else { normal };
    (sign | if magnitude >= OVERFLOW { non_finite } else { finite }) as u16
}

/// The value of an f16: exact.
#[inline]
pub(crate) fn to_f32(bits: u16) -> f32 {
    /// 2^112: what the exponent's rebias from 15 to 127 multiplies by, subnormals included.
    const REBIAS: f32 = f32::from_bits((254 - 15) << 23);

    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7FFF) << 13;
    let finite = (f32::from_bits(magnitude) * REBIAS).to_bits();
    // Infinities and NaNs keep their mantissa under an f32's full exponent.
    let value = if magnitude >= 0x7C00 << 13 { magnitude | 0x7F80_0000 } else { finite };
    f32::from_bits(sign | value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;
    use proptest::prelude::*;

    fn check_from(value: f32) {
        let (ours, theirs) = (f16::from_bits(from_f32(value)), f16::from_f32(value));
        assert!(
            ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()),
            "{value}: {ours} {theirs}"
        );
    }

    #[test]
    fn every_f16_is_the_value_half_says_and_comes_back() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (to_f32(bits), f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "{bits:#06x}");
            check_from(ours);
            // Halfway to the next f16, and the f32s beside that.
            let halfway = ours.to_bits().wrapping_add(1 << 12);
            for near in [halfway.wrapping_sub(1), halfway, halfway.wrapping_add(1)] {
                check_from(f32::from_bits(near));
            }
        }
    }

    proptest! {
        #[test]
        fn any_f32_rounds_as_half_does(bits in any::<u32>(), in_range in -70_000.0_f32..70_000.0, small in -1e-4_f32..1e-4) {
            check_from(f32::from_bits(bits));
            check_from(in_range);
            check_from(small);
        }
    }
}
