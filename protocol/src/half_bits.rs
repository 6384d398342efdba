//! Rows of f16: f32 to its bits and back without a branch, so that a loop over a row vectorises on every target, wasm32
//! included, and on x86-64 with AVX2 where the processor has it. The same numbers as the `half` crate's, which converts
//! one at a time through a feature test; only the payload of a NaN differs.
//!
//! After Fabian Giesen's `float_to_half_fast3_rtne` and `half_to_float_fast5`.

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd128;

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
pub(crate) use simd128::{any_masked, decode, encode};

/// The smallest f32 that is infinite as an f16, but for rounding, which carries into it by itself.
const OVERFLOW: u32 = (127 + 16) << 23;
/// The smallest normal f16.
const SMALLEST_NORMAL: u32 = (127 - 14) << 23;
/// Added to a smaller value, it leaves the f16's subnormal bits at the bottom, rounded.
const ALIGN: u32 = ((127 - 15) + (23 - 10) + 1) << 23;
/// What the exponent's bias of 127 is above that of 15.
const REBIASED: u32 = (127 - 15) << 23;
/// 2^112: what the exponent's rebias from 15 to 127 multiplies by, subnormals included.
const REBIAS: f32 = f32::from_bits((254 - 15) << 23);

/// Compiles a function's loop a second time, for AVX2, and takes that where it runs: two to five times as fast.
#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
macro_rules! with_avx2 {
    ($(#[$doc:meta])* fn $name:ident $(<const $flag:ident: bool>)? ($($arg:ident: $type:ty),*) $(-> $out:ty)? $body:block) => {
        $(#[$doc])*
        pub(crate) fn $name $(<const $flag: bool>)? ($($arg: $type),*) $(-> $out)? {
            #[inline(always)]
            fn plain $(<const $flag: bool>)? ($($arg: $type),*) $(-> $out)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn wide $(<const $flag: bool>)? ($($arg: $type),*) $(-> $out)? {
                    plain $(::<$flag>)? ($($arg),*)
                }
                if std::is_x86_feature_detected!("avx2") {
                    // SAFETY: the processor has what it is compiled for.
                    return unsafe { wide $(::<$flag>)? ($($arg),*) };
                }
            }
            plain $(::<$flag>)? ($($arg),*)
        }
    };
}

#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
with_avx2! {
    /// Little-endian f16 `bytes` to `out`, or with `ADD` onto it.
    fn decode<const ADD: bool>(bytes: &[u8], out: &mut [f32]) {
        for (out, pair) in out.iter_mut().zip(bytes.chunks_exact(2)) {
            let value = to_f32(u16::from_le_bytes([pair[0], pair[1]]));
            *out = if ADD { *out + value } else { value };
        }
    }
}

#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
with_avx2! {
    /// `values` to little-endian f16 `bytes`.
    fn encode(values: &[f32], bytes: &mut [u8]) {
        for (pair, &value) in bytes.chunks_exact_mut(2).zip(values) {
            pair.copy_from_slice(&from_f32(value).to_le_bytes());
        }
    }
}

#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
with_avx2! {
    /// Whether any little-endian u16 has all bits of `mask` set.
    fn any_masked(bytes: &[u8], mask: u16) -> bool {
        /// Whole blocks without a branch inside, so that the loop vectorises.
        const BLOCK: usize = 512;
        bytes.chunks(BLOCK).any(|block| {
            block.chunks_exact(2).fold(false, |found, pair| {
                found | (u16::from_le_bytes([pair[0], pair[1]]) & mask == mask)
            })
        })
    }
}

/// The f16 nearest to `value`, ties to even.
#[inline(always)]
fn from_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7FFF_FFFF;

    let non_finite = if magnitude > 0x7F80_0000 { 0x7E00 } else { 0x7C00 };
    let aligned = f32::from_bits(magnitude) + f32::from_bits(ALIGN);
    let subnormal = aligned.to_bits().wrapping_sub(ALIGN);
    // Rebias the exponent; round half up, less one where that would break a tie to odd.
    let is_odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub(REBIASED).wrapping_add(0xFFF + is_odd) >> 13;

    let finite = if magnitude < SMALLEST_NORMAL { subnormal } else { normal };
    (sign | if magnitude >= OVERFLOW { non_finite } else { finite }) as u16
}

/// The value of an f16: exact.
#[inline(always)]
fn to_f32(bits: u16) -> f32 {
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

    #[test]
    fn slices_are_the_single_values_whatever_they_are_compiled_for() {
        // No whole number of vectors.
        let bits: Vec<u16> = (0..=u16::MAX).chain(0..5).collect();
        let bytes: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        let mut values = vec![1.0; bits.len()];
        decode::<false>(&bytes, &mut values);
        let mut sums = vec![0.75; bits.len()];
        decode::<true>(&bytes, &mut sums);
        let mut back = vec![0; bytes.len()];
        encode(&values, &mut back);
        for (at, &bits) in bits.iter().enumerate() {
            assert_eq!(values[at].to_bits(), to_f32(bits).to_bits());
            assert_eq!(sums[at].to_bits(), (0.75 + to_f32(bits)).to_bits());
            assert_eq!(back[2 * at..][..2], from_f32(values[at]).to_le_bytes());
            assert_eq!(any_masked(&bytes[2 * at..][..2], 0x7C00), bits & 0x7C00 == 0x7C00);
        }
        assert!(any_masked(&bytes, 0x7C00) && !any_masked(&bytes[..2 * 0x7C00], 0x7C00));
    }

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
