//! WebAssembly with SIMD128, decided when the module is built: four values are sixteen rows.

use std::arch::wasm32::*;

use super::{
    half_bits,
    isa::{Isa, Kernel, QUAD_BYTES, ROWS},
};

/// A module built with SIMD128.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wasm;

#[inline(always)]
fn load<const N: usize>(from: &[u8; N], at: usize) -> v128 {
    let part: &[u8; 16] = from[at..].first_chunk().expect("whole vectors of an array");
    // SAFETY: sixteen bytes behind a reference; a load asks for no alignment.
    unsafe { v128_load(part.as_ptr().cast()) }
}

/// The lower halves of the lanes of four values.
#[inline(always)]
fn words(from: &[u8; 2 * ROWS]) -> [v128; 4] {
    let (low, high) = (load(from, 0), load(from, 16));
    [
        u32x4_extend_low_u16x8(low),
        u32x4_extend_high_u16x8(low),
        u32x4_extend_low_u16x8(high),
        u32x4_extend_high_u16x8(high),
    ]
}

impl Isa for Wasm {
    type Bytes = [v128; 4];
    type Ints = [v128; 4];
    type Floats = [v128; 4];

    const RAISED: bool = false;
    /// Registers would hold two rows; kernels for two would take the bundle over its limit.
    const MAX_TILE: usize = 1;
    const MAX_PANELS: usize = 1;
    const MAX_HEADS: usize = 4;

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline(always)]
    fn bytes(self, from: &[u8; QUAD_BYTES]) -> Self::Bytes {
        std::array::from_fn(|i| load(from, 16 * i))
    }
    #[inline(always)]
    fn bits(self, a: Self::Bytes, shift: i32, mask: u8) -> Self::Bytes {
        let count = shift.unsigned_abs();
        a.map(|a| {
            let shifted = if shift < 0 { u8x16_shl(a, count) } else { u8x16_shr(a, count) };
            v128_and(shifted, u8x16_splat(mask))
        })
    }
    #[inline(always)]
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        std::array::from_fn(|i| v128_or(a[i], b[i]))
    }
    #[inline(always)]
    fn codes(self, a: Self::Bytes) -> Self::Bytes {
        a.map(|a| v128_xor(a, u8x16_splat(128)))
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], a: Self::Bytes) -> Self::Bytes {
        let table = load(table, 0);
        a.map(|a| u8x16_swizzle(table, a))
    }
    /// The engine may use its processor's instruction for it: bytes have seven bits, so the sums of two products stay
    /// within 16 bits, no instruction set saturates, and all give the same.
    #[cfg(target_feature = "relaxed-simd")]
    #[inline(always)]
    fn dot(self, sums: Self::Ints, a: Self::Bytes, quad: i32) -> Self::Ints {
        let x = i32x4_splat(quad);
        std::array::from_fn(|i| i32x4_relaxed_dot_i8x16_i7x16_add(x, a[i], sums[i]))
    }
    #[cfg(not(target_feature = "relaxed-simd"))]
    #[inline(always)]
    fn dot(self, sums: Self::Ints, a: Self::Bytes, quad: i32) -> Self::Ints {
        self.dot_codes(sums, a, quad)
    }
    #[inline(always)]
    fn dot_codes(self, sums: Self::Ints, a: Self::Bytes, quad: i32) -> Self::Ints {
        // The four columns as i16, twice: two rows at once.
        let x = i16x8_extend_low_i8x16(i32x4_splat(quad));
        std::array::from_fn(|i| {
            let low = i32x4_dot_i16x8(i16x8_extend_low_i8x16(a[i]), x);
            let high = i32x4_dot_i16x8(i16x8_extend_high_i8x16(a[i]), x);
            let even = i32x4_shuffle::<0, 2, 4, 6>(low, high);
            let odd = i32x4_shuffle::<1, 3, 5, 7>(low, high);
            i32x4_add(sums[i], i32x4_add(even, odd))
        })
    }
    #[inline(always)]
    fn dot_pair(self, sums: Self::Ints, a: &[u8; 2 * ROWS], pair: i32) -> Self::Ints {
        let x = i32x4_splat(pair);
        let (low, high) = (load(a, 0), load(a, 16));
        let parts = [
            u16x8_extend_low_u8x16(low),
            u16x8_extend_high_u8x16(low),
            u16x8_extend_low_u8x16(high),
            u16x8_extend_high_u8x16(high),
        ];
        std::array::from_fn(|i| i32x4_add(sums[i], i32x4_dot_i16x8(parts[i], x)))
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> Self::Ints {
        [i32x4_splat(x); 4]
    }
    #[inline(always)]
    fn add_ints(self, a: Self::Ints, b: Self::Ints) -> Self::Ints {
        std::array::from_fn(|i| i32x4_add(a[i], b[i]))
    }
    #[inline(always)]
    fn to_floats(self, a: Self::Ints) -> Self::Floats {
        a.map(|a| f32x4_convert_i32x4(a))
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::Floats {
        [f32x4_splat(x); 4]
    }
    #[inline(always)]
    fn floats(self, from: &[u8; 4 * ROWS]) -> Self::Floats {
        std::array::from_fn(|i| load(from, 16 * i))
    }
    #[inline(always)]
    fn halves(self, from: &[u8; 2 * ROWS]) -> Self::Floats {
        words(from).map(|half| {
            let magnitude = u32x4_shl(v128_and(half, u32x4_splat(half_bits::MAGNITUDE)), 13);
            let scaled = f32x4_mul(magnitude, f32x4_splat(half_bits::EXPONENT_SHIFT));
            let special = u32x4_ge(magnitude, u32x4_splat(half_bits::INFINITE_MAGNITUDE));
            let special = v128_and(special, u32x4_splat(half_bits::INFINITY));
            let sign = u32x4_shl(v128_and(half, u32x4_splat(half_bits::SIGN)), 16);
            v128_or(scaled, v128_or(special, sign))
        })
    }
    #[inline(always)]
    fn powers(self, from: &[u8; ROWS]) -> Self::Floats {
        let from = load(from, 0);
        let (low, high) = (u16x8_extend_low_u8x16(from), u16x8_extend_high_u8x16(from));
        let ints = [
            u32x4_extend_low_u16x8(low),
            u32x4_extend_high_u16x8(low),
            u32x4_extend_low_u16x8(high),
            u32x4_extend_high_u16x8(high),
        ];
        ints.map(|e| {
            let normal = i32x4_shl(i32x4_sub(e, i32x4_splat(1)), 23);
            i32x4_max(normal, i32x4_shl(i32x4_add(e, i32x4_splat(1)), 21))
        })
    }
    #[inline(always)]
    fn bfloats(self, from: &[u8; 2 * ROWS]) -> Self::Floats {
        words(from).map(|word| u32x4_shl(word, 16))
    }
    #[inline(always)]
    fn signed(self, from: &[u8; ROWS]) -> Self::Floats {
        let from = load(from, 0);
        let (low, high) = (i16x8_extend_low_i8x16(from), i16x8_extend_high_i8x16(from));
        self.to_floats([
            i32x4_extend_low_i16x8(low),
            i32x4_extend_high_i16x8(low),
            i32x4_extend_low_i16x8(high),
            i32x4_extend_high_i16x8(high),
        ])
    }
    #[inline(always)]
    fn unsigned(self, from: &[u8; ROWS]) -> Self::Floats {
        let from = load(from, 0);
        let (low, high) = (u16x8_extend_low_u8x16(from), u16x8_extend_high_u8x16(from));
        self.to_floats([
            u32x4_extend_low_u16x8(low),
            u32x4_extend_high_u16x8(low),
            u32x4_extend_low_u16x8(high),
            u32x4_extend_high_u16x8(high),
        ])
    }
    #[inline(always)]
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        std::array::from_fn(|i| f32x4_add(a[i], b[i]))
    }
    #[inline(always)]
    fn sub(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        std::array::from_fn(|i| f32x4_sub(a[i], b[i]))
    }
    #[inline(always)]
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        std::array::from_fn(|i| f32x4_mul(a[i], b[i]))
    }
    #[inline(always)]
    fn mul_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        let (a, b, c) = (self.to_array(a), self.to_array(b), self.to_array(c));
        self.lanes(&std::array::from_fn(|i| libm::fmaf(a[i], b[i], c[i])))
    }
    #[inline(always)]
    fn div(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        std::array::from_fn(|i| f32x4_div(a[i], b[i]))
    }
    #[inline(always)]
    fn at_least(self, x: Self::Floats, bound: f32) -> Self::Floats {
        x.map(|x| f32x4_max(f32x4_splat(bound), x))
    }
    #[inline(always)]
    fn at_most(self, x: Self::Floats, bound: f32) -> Self::Floats {
        x.map(|x| f32x4_min(f32x4_splat(bound), x))
    }
    #[inline(always)]
    fn to_exponent(self, x: Self::Floats) -> Self::Floats {
        x.map(|x| u32x4_shl(x, 23))
    }
    #[inline(always)]
    fn lanes(self, x: &[f32; ROWS]) -> Self::Floats {
        std::array::from_fn(|i| f32x4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]))
    }
    #[inline(always)]
    fn to_array(self, x: Self::Floats) -> [f32; ROWS] {
        let lanes = |x| {
            [
                f32x4_extract_lane::<0>(x),
                f32x4_extract_lane::<1>(x),
                f32x4_extract_lane::<2>(x),
                f32x4_extract_lane::<3>(x),
            ]
        };
        let lanes = x.map(lanes);
        std::array::from_fn(|i| lanes[i / 4][i % 4])
    }
}
