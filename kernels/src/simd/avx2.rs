//! x86-64 with AVX2: two registers are sixteen rows.

use std::arch::x86_64::*;

use super::isa::{Isa, Kernel, QUAD_BYTES, ROWS};
use super::prefetch::{Cache, is_amd, prefetch, prefetch_weights};

/// A machine with AVX2, FMA and F16C, and what its processor `P` has besides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2<P> {
    _variant: P,
    /// Whether AMD made the processor.
    is_amd: bool,
}

/// What processors with AVX2 differ in. Each compiles kernels for itself.
pub(crate) trait Variant: Copy {
    /// Whether a product of four columns is one instruction.
    const VNNI: bool;

    /// The variant, if this processor is one.
    fn detect() -> Option<Self>;

    fn compile<K: Kernel>(isa: Avx2<Self>, kernel: K) -> K::Output;
}

/// Without AVX-VNNI.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plain(());

/// With AVX-VNNI: Intel's processors for laptops and desktops since 2021, which have no AVX-512.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vnni(());

/// Calls an intrinsic on values, and on references to arrays of the width that it reads or writes.
macro_rules! vector {
    ($body:expr) => {
        // SAFETY: `Avx2` is made by `detect` alone, where the machine has the instructions; loads and stores go through
        // references to arrays of their width and ask for no alignment.
        unsafe { $body }
    };
}

macro_rules! variants {
    ($($name:ident { vnni: $vnni:literal, features: $features:literal, found: $found:expr, })*) => {
        $(
            impl Variant for $name {
                const VNNI: bool = $vnni;

                fn detect() -> Option<Self> {
                    $found.then_some(Self(()))
                }

                #[inline(always)]
                fn compile<K: Kernel>(isa: Avx2<Self>, kernel: K) -> K::Output {
                    #[target_feature(enable = $features)]
                    fn compiled<K: Kernel>(isa: Avx2<$name>, kernel: K) -> K::Output {
                        kernel.run(isa)
                    }
                    vector!(compiled(isa, kernel))
                }
            }
        )*
    };
}

variants! {
    Plain { vnni: false, features: "avx2,f16c,fma", found: true, }
    Vnni { vnni: true, features: "avx2,f16c,fma,avxvnni", found: is_x86_feature_detected!("avxvnni"), }
}

impl<P: Variant> Avx2<P> {
    pub(super) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("fma");
        P::detect().filter(|_| found).map(|_variant| Self { _variant, is_amd: is_amd() })
    }
}

/// Does the same for both registers. Not `map`: a closure would be compiled without the instructions.
macro_rules! both {
    ($i:ident => $body:expr) => {
        [
            {
                let $i = 0;
                $body
            },
            {
                let $i = 1;
                $body
            },
        ]
    };
}

/// The halves of an array.
#[inline(always)]
fn halves<const N: usize, const M: usize>(from: &[u8; N]) -> [&[u8; M]; 2] {
    const { assert!(N == 2 * M) };
    let (halves, _) = from.as_chunks();
    [&halves[0], &halves[1]]
}

/// The sums of the four products of each lane, of which no two neighbours reach 2^15.
#[inline(always)]
fn dot_lanes(sums: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
    vector!({
        let pairs = _mm256_maddubs_epi16(unsigned, signed);
        _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
    })
}

impl<P: Variant> Isa for Avx2<P> {
    type Bytes = [__m256i; 2];
    type Ints = [__m256i; 2];
    type Floats = [__m256; 2];

    const RAISED: bool = P::VNNI;
    const BY_QUAD: bool = true;
    const MAX_TILE: usize = 4;
    const MAX_PANELS: usize = 1;
    const MAX_HEADS: usize = 4;
    const CACHE_AHEAD: bool = true;

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        P::compile(self, kernel)
    }

    #[inline(always)]
    fn prefetch_weights(self, weights: &[u8], n_rows: usize) {
        match self.is_amd {
            true => prefetch_weights(weights, Cache::First),
            false => prefetch_weights(weights, Cache::of_intel(n_rows)),
        }
    }
    #[inline(always)]
    fn prefetch(self, bytes: &[u8]) {
        prefetch(bytes, Cache::First);
    }
    #[inline(always)]
    fn bytes(self, from: &[u8; QUAD_BYTES]) -> Self::Bytes {
        let from = halves::<QUAD_BYTES, 32>(from);
        both!(i => vector!(_mm256_loadu_si256(from[i].as_ptr().cast())))
    }
    #[inline(always)]
    fn bits(self, a: Self::Bytes, shift: i32, mask: u8) -> Self::Bytes {
        both!(i => vector!({
            let count = _mm_cvtsi32_si128(shift.abs());
            let shifted =
                if shift < 0 { _mm256_sll_epi16(a[i], count) } else { _mm256_srl_epi16(a[i], count) };
            _mm256_and_si256(shifted, _mm256_set1_epi8(mask as i8))
        }))
    }
    #[inline(always)]
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        both!(i => vector!(_mm256_or_si256(a[i], b[i])))
    }
    #[inline(always)]
    fn codes(self, a: Self::Bytes) -> Self::Bytes {
        if P::VNNI {
            return a;
        }
        both!(i => vector!(_mm256_xor_si256(a[i], _mm256_set1_epi8(-128))))
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], a: Self::Bytes) -> Self::Bytes {
        let table = vector!(_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())));
        both!(i => vector!(_mm256_shuffle_epi8(table, a[i])))
    }
    #[inline(always)]
    fn dot(self, sums: Self::Ints, a: Self::Bytes, quad: i32) -> Self::Ints {
        let x = vector!(_mm256_set1_epi32(quad));
        if P::VNNI {
            return both!(i => vector!(_mm256_dpbusd_avx_epi32(sums[i], a[i], x)));
        }
        both!(i => dot_lanes(sums[i], a[i], x))
    }
    #[inline(always)]
    fn add_pairs(self, pairs: Self::Ints, a: Self::Bytes, quad: i32) -> Self::Ints {
        if P::VNNI {
            return self.dot(pairs, a, quad);
        }
        let x = vector!(_mm256_set1_epi32(quad));
        both!(i => vector!(_mm256_add_epi16(pairs[i], _mm256_maddubs_epi16(a[i], x))))
    }
    #[inline(always)]
    fn join_pairs(self, sums: Self::Ints, pairs: Self::Ints) -> Self::Ints {
        if P::VNNI {
            return self.add_ints(sums, pairs);
        }
        both!(i => vector!(_mm256_add_epi32(sums[i], _mm256_madd_epi16(pairs[i], _mm256_set1_epi16(1)))))
    }
    #[inline(always)]
    fn dot_codes(self, sums: Self::Ints, a: Self::Bytes, quad: i32) -> Self::Ints {
        if P::VNNI {
            return self.dot(sums, a, quad);
        }
        let x = vector!(_mm256_set1_epi32(quad));
        // |a| (x sign a): the magnitude of -128 is 128 as it should be, and two products are 2^15 - 256 at most.
        both!(i => vector!(dot_lanes(sums[i], _mm256_abs_epi8(a[i]), _mm256_sign_epi8(x, a[i]))))
    }
    #[inline(always)]
    fn dot_pair(self, sums: Self::Ints, a: &[u8; 2 * ROWS], pair: i32) -> Self::Ints {
        let a = halves::<32, 16>(a);
        both!(i => vector!({
            let a = _mm256_cvtepu8_epi16(_mm_loadu_si128(a[i].as_ptr().cast()));
            let pair = _mm256_set1_epi32(pair);
            match P::VNNI {
                true => _mm256_dpwssd_avx_epi32(sums[i], a, pair),
                false => _mm256_add_epi32(sums[i], _mm256_madd_epi16(a, pair)),
            }
        }))
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> Self::Ints {
        [vector!(_mm256_set1_epi32(x)); 2]
    }
    #[inline(always)]
    fn add_ints(self, a: Self::Ints, b: Self::Ints) -> Self::Ints {
        both!(i => vector!(_mm256_add_epi32(a[i], b[i])))
    }
    #[inline(always)]
    fn to_floats(self, a: Self::Ints) -> Self::Floats {
        both!(i => vector!(_mm256_cvtepi32_ps(a[i])))
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::Floats {
        [vector!(_mm256_set1_ps(x)); 2]
    }
    #[inline(always)]
    fn floats(self, from: &[u8; 4 * ROWS]) -> Self::Floats {
        let from = halves::<64, 32>(from);
        both!(i => vector!(_mm256_loadu_ps(from[i].as_ptr().cast())))
    }
    #[inline(always)]
    fn halves(self, from: &[u8; 2 * ROWS]) -> Self::Floats {
        let from = halves::<32, 16>(from);
        both!(i => vector!(_mm256_cvtph_ps(_mm_loadu_si128(from[i].as_ptr().cast()))))
    }
    #[inline(always)]
    fn powers(self, from: &[u8; ROWS]) -> Self::Floats {
        let from = halves::<16, 8>(from);
        both!(i => vector!({
            let e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from[i].as_ptr().cast()));
            let one = _mm256_set1_epi32(1);
            let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, one));
            let smallest = _mm256_slli_epi32::<21>(_mm256_add_epi32(e, one));
            _mm256_castsi256_ps(_mm256_max_epi32(normal, smallest))
        }))
    }
    #[inline(always)]
    fn bfloats(self, from: &[u8; 2 * ROWS]) -> Self::Floats {
        let from = halves::<32, 16>(from);
        both!(i => vector!({
            let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(from[i].as_ptr().cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
        }))
    }
    #[inline(always)]
    fn signed(self, from: &[u8; ROWS]) -> Self::Floats {
        let from = halves::<16, 8>(from);
        both!(i => vector!({
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from[i].as_ptr().cast())))
        }))
    }
    #[inline(always)]
    fn unsigned(self, from: &[u8; ROWS]) -> Self::Floats {
        let from = halves::<16, 8>(from);
        both!(i => vector!({
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from[i].as_ptr().cast())))
        }))
    }
    #[inline(always)]
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        both!(i => vector!(_mm256_add_ps(a[i], b[i])))
    }
    #[inline(always)]
    fn sub(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        both!(i => vector!(_mm256_sub_ps(a[i], b[i])))
    }
    #[inline(always)]
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        both!(i => vector!(_mm256_mul_ps(a[i], b[i])))
    }
    #[inline(always)]
    fn mul_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        both!(i => vector!(_mm256_fmadd_ps(a[i], b[i], c[i])))
    }
    #[inline(always)]
    fn div(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        both!(i => vector!(_mm256_div_ps(a[i], b[i])))
    }
    #[inline(always)]
    fn at_least(self, x: Self::Floats, bound: f32) -> Self::Floats {
        // Where one operand is NaN, the result is the second.
        both!(i => vector!(_mm256_max_ps(_mm256_set1_ps(bound), x[i])))
    }
    #[inline(always)]
    fn at_most(self, x: Self::Floats, bound: f32) -> Self::Floats {
        both!(i => vector!(_mm256_min_ps(_mm256_set1_ps(bound), x[i])))
    }
    #[inline(always)]
    fn to_exponent(self, x: Self::Floats) -> Self::Floats {
        both!(i => vector!(_mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_castps_si256(x[i])))))
    }
    #[inline(always)]
    fn lanes(self, x: &[f32; ROWS]) -> Self::Floats {
        vector!([_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))])
    }
    #[inline(always)]
    fn to_array(self, x: Self::Floats) -> [f32; ROWS] {
        let mut array = [[0.0; 8]; 2];
        for (array, x) in array.iter_mut().zip(x) {
            vector!(_mm256_storeu_ps(array.as_mut_ptr(), x));
        }
        std::array::from_fn(|i| array[i / 8][i % 8])
    }
}
