//! The same in WASM's vectors, by hand: a tab's bundle is compiled for size, and then no loop is vectorised.

use core::arch::wasm32::*;

use super::{ALIGN, OVERFLOW, REBIAS, REBIASED, SMALLEST_NORMAL, from_f32, to_f32};

/// Little-endian f16 `bytes` to `out`, or with `ADD` onto it.
pub(crate) fn decode<const ADD: bool>(bytes: &[u8], out: &mut [f32]) {
    let (fours, rest) = out.as_chunks_mut::<4>();
    let (eights, _) = bytes.as_chunks::<8>();
    for (four, eight) in fours.iter_mut().zip(eights) {
        let halves = u32x4_extend_low_u16x8(i64x2_splat(i64::from_le_bytes(*eight)));
        let sign = u32x4_shl(v128_and(halves, u32x4_splat(0x8000)), 16);
        let magnitude = u32x4_shl(v128_and(halves, u32x4_splat(0x7FFF)), 13);
        let finite = f32x4_mul(magnitude, f32x4_splat(REBIAS));
        let full = v128_or(magnitude, u32x4_splat(0x7F80_0000));
        let is_full = i32x4_ge(magnitude, u32x4_splat(0x7C00 << 13));
        let value = v128_or(v128_bitselect(full, finite, is_full), sign);
        let at: *mut v128 = four.as_mut_ptr().cast();
        // SAFETY: four f32 are as many bytes, which may lie anywhere.
        unsafe { v128_store(at, if ADD { f32x4_add(v128_load(at), value) } else { value }) };
    }
    let done = bytes.len().min(2 * 4 * fours.len().min(eights.len()));
    for (out, pair) in rest.iter_mut().zip(bytes[done..].chunks_exact(2)) {
        let value = to_f32(u16::from_le_bytes([pair[0], pair[1]]));
        *out = if ADD { *out + value } else { value };
    }
}

/// `values` to little-endian f16 `bytes`.
pub(crate) fn encode(values: &[f32], bytes: &mut [u8]) {
    let (eights, rest) = values.as_chunks::<8>();
    let (sixteens, last) = bytes.as_chunks_mut::<16>();
    for (sixteen, eight) in sixteens.iter_mut().zip(eights) {
        let from: *const v128 = eight.as_ptr().cast();
        // SAFETY: eight f32 are two vectors, and eight f16 are one; both may lie anywhere.
        unsafe {
            let halves = [v128_load(from), v128_load(from.add(1))].map(halves_of);
            v128_store(sixteen.as_mut_ptr().cast(), u16x8_narrow_i32x4(halves[0], halves[1]));
        }
    }
    for (pair, &value) in last.chunks_exact_mut(2).zip(rest) {
        pair.copy_from_slice(&from_f32(value).to_le_bytes());
    }
}

/// The f16 nearest to each of four f32, ties to even, as u32: [`from_f32`].
#[inline(always)]
fn halves_of(bits: v128) -> v128 {
    let sign = v128_and(u32x4_shr(bits, 16), u32x4_splat(0x8000));
    let magnitude = v128_and(bits, u32x4_splat(0x7FFF_FFFF));
    let is_nan = i32x4_gt(magnitude, u32x4_splat(0x7F80_0000));
    let non_finite = v128_bitselect(u32x4_splat(0x7E00), u32x4_splat(0x7C00), is_nan);
    let aligned = f32x4_add(magnitude, u32x4_splat(ALIGN));
    let subnormal = i32x4_sub(aligned, u32x4_splat(ALIGN));
    let is_odd = v128_and(u32x4_shr(magnitude, 13), u32x4_splat(1));
    let rebiased = i32x4_add(magnitude, u32x4_splat(0xFFFu32.wrapping_sub(REBIASED)));
    let normal = u32x4_shr(i32x4_add(rebiased, is_odd), 13);
    let is_small = i32x4_lt(magnitude, u32x4_splat(SMALLEST_NORMAL));
    let finite = v128_bitselect(subnormal, normal, is_small);
    let is_over = i32x4_ge(magnitude, u32x4_splat(OVERFLOW));
    v128_or(sign, v128_bitselect(non_finite, finite, is_over))
}

/// Whether any little-endian u16 has all bits of `mask` set.
pub(crate) fn any_masked(bytes: &[u8], mask: u16) -> bool {
    let (sixteens, rest) = bytes.as_chunks::<16>();
    let masks = u16x8_splat(mask);
    let found = sixteens.iter().fold(u16x8_splat(0), |found, sixteen| {
        // SAFETY: sixteen bytes are a vector, which may lie anywhere.
        let halves = unsafe { v128_load(sixteen.as_ptr().cast()) };
        v128_or(found, u16x8_eq(v128_and(halves, masks), masks))
    });
    let is_masked = |pair: &[u8]| u16::from_le_bytes([pair[0], pair[1]]) & mask == mask;
    v128_any_true(found) || rest.chunks_exact(2).any(is_masked)
}
