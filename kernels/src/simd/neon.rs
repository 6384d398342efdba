//! AArch64 with the dot product extension: four registers are sixteen rows.

use std::{arch::aarch64::*, arch::asm};

use super::{
    half_bits,
    isa::{Isa, Kernel, QUAD_BYTES, ROWS},
};

/// A machine with NEON and its dot product instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neon(());

impl Neon {
    pub(super) fn detect() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("dotprod").then_some(Self(()))
    }
}

/// Calls an intrinsic on values, and on references to arrays of the width that it reads or writes.
macro_rules! vector {
    ($body:expr) => {
        // SAFETY: NEON is a part of AArch64 as Rust knows it, and `Neon` is made by `detect` alone, where the machine has
        // the dot product too; loads and stores go through references to arrays of their width and ask for no alignment.
        unsafe { $body }
    };
}

/// The quarters of an array.
#[inline(always)]
fn quarters<const N: usize, const M: usize>(from: &[u8; N]) -> [&[u8; M]; 4] {
    const { assert!(N == 4 * M) };
    let (quarters, _) = from.as_chunks();
    [&quarters[0], &quarters[1], &quarters[2], &quarters[3]]
}

/// Adds to each lane the dot product of its four i8. Uses the instruction itself, since its intrinsic is not stable.
#[inline(always)]
fn sdot(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    vector!({
        asm!(
            ".arch_extension dotprod",
            "sdot {sums:v}.4s, {a:v}.16b, {b:v}.16b",
            sums = inout(vreg) sums,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    });
    sums
}

/// The lower halves of the lanes of four registers.
#[inline(always)]
fn words(from: &[u8; 2 * ROWS]) -> [uint32x4_t; 4] {
    quarters::<32, 8>(from).map(|from| vector!(vmovl_u16(vreinterpret_u16_u8(vld1_u8(from.as_ptr())))))
}

impl Isa for Neon {
    type Bytes = [uint8x16_t; 4];
    type Ints = [int32x4_t; 4];
    type Floats = [float32x4_t; 4];

    const RAISED: bool = false;
    const MAX_TILE: usize = 2;
    const MAX_PANELS: usize = 1;
    const MAX_HEADS: usize = 4;

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "neon,dotprod")]
        fn compiled<K: Kernel>(isa: Neon, kernel: K) -> K::Output {
            kernel.run(isa)
        }
        vector!(compiled(self, kernel))
    }

    #[inline(always)]
    fn bytes(self, from: &[u8; QUAD_BYTES]) -> Self::Bytes {
        quarters::<QUAD_BYTES, 16>(from).map(|from| vector!(vld1q_u8(from.as_ptr())))
    }
    #[inline(always)]
    fn bits(self, a: Self::Bytes, shift: i32, mask: u8) -> Self::Bytes {
        a.map(|a| vector!(vandq_u8(vshlq_u8(a, vdupq_n_s8(-shift as i8)), vdupq_n_u8(mask))))
    }
    #[inline(always)]
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        std::array::from_fn(|i| vector!(vorrq_u8(a[i], b[i])))
    }
    #[inline(always)]
    fn codes(self, a: Self::Bytes) -> Self::Bytes {
        a.map(|a| vector!(veorq_u8(a, vdupq_n_u8(128))))
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], a: Self::Bytes) -> Self::Bytes {
        let table = vector!(vld1q_u8(table.as_ptr()));
        a.map(|a| vector!(vqtbl1q_u8(table, a)))
    }
    #[inline(always)]
    fn dot(self, sums: Self::Ints, a: Self::Bytes, quad: i32) -> Self::Ints {
        let x = vector!(vreinterpretq_s8_s32(vdupq_n_s32(quad)));
        std::array::from_fn(|i| sdot(sums[i], vector!(vreinterpretq_s8_u8(a[i])), x))
    }
    #[inline(always)]
    fn dot_codes(self, sums: Self::Ints, a: Self::Bytes, quad: i32) -> Self::Ints {
        self.dot(sums, a, quad)
    }
    #[inline(always)]
    fn dot_pair(self, sums: Self::Ints, a: &[u8; 2 * ROWS], pair: i32) -> Self::Ints {
        let parts = quarters::<32, 8>(a);
        std::array::from_fn(|i| {
            vector!({
                let x = vreinterpretq_s16_s32(vdupq_n_s32(pair));
                let a = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(parts[i].as_ptr())));
                let low = vmull_s16(vget_low_s16(a), vget_low_s16(x));
                let high = vmull_high_s16(a, x);
                vaddq_s32(sums[i], vpaddq_s32(low, high))
            })
        })
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> Self::Ints {
        [vector!(vdupq_n_s32(x)); 4]
    }
    #[inline(always)]
    fn add_ints(self, a: Self::Ints, b: Self::Ints) -> Self::Ints {
        std::array::from_fn(|i| vector!(vaddq_s32(a[i], b[i])))
    }
    #[inline(always)]
    fn to_floats(self, a: Self::Ints) -> Self::Floats {
        a.map(|a| vector!(vcvtq_f32_s32(a)))
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::Floats {
        [vector!(vdupq_n_f32(x)); 4]
    }
    #[inline(always)]
    fn floats(self, from: &[u8; 4 * ROWS]) -> Self::Floats {
        quarters::<64, 16>(from).map(|from| vector!(vreinterpretq_f32_u8(vld1q_u8(from.as_ptr()))))
    }
    #[inline(always)]
    fn halves(self, from: &[u8; 2 * ROWS]) -> Self::Floats {
        words(from).map(|half| {
            vector!({
                let magnitude = vshlq_n_u32::<13>(vandq_u32(half, vdupq_n_u32(half_bits::MAGNITUDE)));
                let scaled = vmulq_n_f32(vreinterpretq_f32_u32(magnitude), half_bits::EXPONENT_SHIFT);
                let special = vcgeq_u32(magnitude, vdupq_n_u32(half_bits::INFINITE_MAGNITUDE));
                let special = vandq_u32(special, vdupq_n_u32(half_bits::INFINITY));
                let sign = vshlq_n_u32::<16>(vandq_u32(half, vdupq_n_u32(half_bits::SIGN)));
                let bits = vorrq_u32(vreinterpretq_u32_f32(scaled), vorrq_u32(special, sign));
                vreinterpretq_f32_u32(bits)
            })
        })
    }
    #[inline(always)]
    fn powers(self, from: &[u8; ROWS]) -> Self::Floats {
        vector!({
            let from = vld1q_u8(from.as_ptr());
            let (low, high) = (vmovl_u8(vget_low_u8(from)), vmovl_high_u8(from));
            let ints = [
                vmovl_u16(vget_low_u16(low)),
                vmovl_high_u16(low),
                vmovl_u16(vget_low_u16(high)),
                vmovl_high_u16(high),
            ];
            ints.map(|e| {
                let (e, one) = (vreinterpretq_s32_u32(e), vdupq_n_s32(1));
                let normal = vshlq_n_s32::<23>(vsubq_s32(e, one));
                let smallest = vshlq_n_s32::<21>(vaddq_s32(e, one));
                vreinterpretq_f32_s32(vmaxq_s32(normal, smallest))
            })
        })
    }
    #[inline(always)]
    fn bfloats(self, from: &[u8; 2 * ROWS]) -> Self::Floats {
        words(from).map(|word| vector!(vreinterpretq_f32_u32(vshlq_n_u32::<16>(word))))
    }
    #[inline(always)]
    fn signed(self, from: &[u8; ROWS]) -> Self::Floats {
        vector!({
            let from = vld1q_s8(from.as_ptr().cast());
            let (low, high) = (vmovl_s8(vget_low_s8(from)), vmovl_high_s8(from));
            let ints = [
                vmovl_s16(vget_low_s16(low)),
                vmovl_high_s16(low),
                vmovl_s16(vget_low_s16(high)),
                vmovl_high_s16(high),
            ];
            self.to_floats(ints)
        })
    }
    #[inline(always)]
    fn unsigned(self, from: &[u8; ROWS]) -> Self::Floats {
        vector!({
            let from = vld1q_u8(from.as_ptr());
            let (low, high) = (vmovl_u8(vget_low_u8(from)), vmovl_high_u8(from));
            let ints = [
                vmovl_u16(vget_low_u16(low)),
                vmovl_high_u16(low),
                vmovl_u16(vget_low_u16(high)),
                vmovl_high_u16(high),
            ];
            ints.map(|ints| vcvtq_f32_u32(ints))
        })
    }
    #[inline(always)]
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        std::array::from_fn(|i| vector!(vaddq_f32(a[i], b[i])))
    }
    #[inline(always)]
    fn sub(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        std::array::from_fn(|i| vector!(vsubq_f32(a[i], b[i])))
    }
    #[inline(always)]
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        std::array::from_fn(|i| vector!(vmulq_f32(a[i], b[i])))
    }
    #[inline(always)]
    fn mul_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        std::array::from_fn(|i| vector!(vfmaq_f32(c[i], a[i], b[i])))
    }
    #[inline(always)]
    fn div(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        std::array::from_fn(|i| vector!(vdivq_f32(a[i], b[i])))
    }
    #[inline(always)]
    fn at_least(self, x: Self::Floats, bound: f32) -> Self::Floats {
        x.map(|x| vector!(vmaxq_f32(vdupq_n_f32(bound), x)))
    }
    #[inline(always)]
    fn at_most(self, x: Self::Floats, bound: f32) -> Self::Floats {
        x.map(|x| vector!(vminq_f32(vdupq_n_f32(bound), x)))
    }
    #[inline(always)]
    fn to_exponent(self, x: Self::Floats) -> Self::Floats {
        x.map(|x| vector!(vreinterpretq_f32_u32(vshlq_n_u32::<23>(vreinterpretq_u32_f32(x)))))
    }
    #[inline(always)]
    fn lanes(self, x: &[f32; ROWS]) -> Self::Floats {
        std::array::from_fn(|i| vector!(vld1q_f32(x.as_ptr().add(4 * i))))
    }
    #[inline(always)]
    fn to_array(self, x: Self::Floats) -> [f32; ROWS] {
        let mut array = [[0.0; 4]; 4];
        for (array, x) in array.iter_mut().zip(x) {
            vector!(vst1q_f32(array.as_mut_ptr(), x));
        }
        std::array::from_fn(|i| array[i / 4][i % 4])
    }
}
