//! x86-64 with AVX-512 and VNNI: a register is sixteen rows, a product of four columns one instruction.

use std::arch::x86_64::*;

use super::isa::{Isa, Kernel, QUAD_BYTES, ROWS};
use super::prefetch::{Cache, is_amd, prefetch, prefetch_weights};

/// A machine with AVX-512 F, BW, VL and VNNI, and what its processor `P` has besides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512<P>(P);

/// What processors with AVX-512 differ in. Each compiles kernels for itself: a choice within one function would compile
/// every kernel for all of them, in each of them.
pub(crate) trait Variant: Copy {
    /// Whether it has GFNI, which shifts and masks bytes at once.
    const GFNI: bool;
    /// Whether weights are prefetched past the second cache (`prefetchnta`). AMD's processors write to the third cache
    /// what leaves the second, weights for nothing: past it they read a twentieth faster while others use the memory too.
    /// Intel's read on by themselves from the second, and a third slower past it.
    const PAST_SECOND_CACHE: bool;

    /// The variant, if this processor is one.
    fn detect() -> Option<Self>;

    fn compile<K: Kernel>(isa: Avx512<Self>, kernel: K) -> K::Output;
}

/// Intel's first processors with VNNI.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vnni(());

/// Intel's later processors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gfni(());

/// AMD's processors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Zen(());

macro_rules! variants {
    ($($name:ident {
        gfni: $gfni:literal,
        past_second_cache: $past_second_cache:literal,
        features: $features:literal,
        found: $found:expr,
    })*) => {
        $(
            impl Variant for $name {
                const GFNI: bool = $gfni;
                const PAST_SECOND_CACHE: bool = $past_second_cache;

                fn detect() -> Option<Self> {
                    $found.then_some(Self(()))
                }

                #[inline(always)]
                fn compile<K: Kernel>(isa: Avx512<Self>, kernel: K) -> K::Output {
                    #[target_feature(enable = $features)]
                    fn compiled<K: Kernel>(isa: Avx512<$name>, kernel: K) -> K::Output {
                        kernel.run(isa)
                    }
                    vector!(compiled(isa, kernel))
                }
            }
        )*
    };
}

/// Calls an intrinsic on values, and on references to arrays of the width that it reads or writes.
macro_rules! vector {
    ($body:expr) => {
        // SAFETY: `Avx512` is made by `detect` alone, where the machine has the instructions; loads and stores go
        // through references to arrays of their width and ask for no alignment.
        unsafe { $body }
    };
}

/// A matrix over bits whose product with a byte is the byte: its first row, the highest byte, gives bit 0.
const IDENTITY: u64 = 0x0102_0408_1020_4080;

/// For each mask the rows of a matrix over bits that give its bits.
static ROWS_OF: [u64; 256] = {
    let mut rows = [0; 256];
    let mut mask = 0;
    while mask < 256 {
        let mut bit = 0;
        while bit < 8 {
            if mask >> bit & 1 == 1 {
                rows[mask] |= 0xFF << (8 * (7 - bit));
            }
            bit += 1;
        }
        mask += 1;
    }
    rows
};

/// The matrix whose product with a byte is the bits of `mask` of the byte shifted right by `shift`, which may be negative.
#[inline(always)]
fn shift_and_mask(shift: i32, mask: u8) -> i64 {
    let bits = 8 * shift.unsigned_abs();
    let shifted = if shift < 0 { IDENTITY >> bits } else { IDENTITY << bits };
    (shifted & ROWS_OF[usize::from(mask)]) as i64
}

variants! {
    Vnni {
        gfni: false,
        past_second_cache: false,
        features: "avx512f,avx512bw,avx512vl,avx512vnni",
        found: true,
    }
    Gfni {
        gfni: true,
        past_second_cache: false,
        features: "avx512f,avx512bw,avx512vl,avx512vnni,gfni",
        found: is_x86_feature_detected!("gfni"),
    }
    Zen {
        gfni: true,
        past_second_cache: true,
        features: "avx512f,avx512bw,avx512vl,avx512vnni,gfni",
        found: is_x86_feature_detected!("gfni") && is_amd(),
    }
}

impl<P: Variant> Avx512<P> {
    pub(super) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        P::detect().filter(|_| found).map(Self)
    }
}

impl<P: Variant> Isa for Avx512<P> {
    type Bytes = __m512i;
    type Ints = __m512i;
    type Floats = __m512;

    const RAISED: bool = true;
    const MAX_TILE: usize = 16;
    const MAX_PANELS: usize = 2;
    const MAX_HEADS: usize = 8;
    const CACHE_AHEAD: bool = !P::PAST_SECOND_CACHE;

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        P::compile(self, kernel)
    }

    #[inline(always)]
    fn prefetch_weights(self, weights: &[u8], n_rows: usize) {
        let cache = if P::PAST_SECOND_CACHE { Cache::PastSecond } else { Cache::of_intel(n_rows) };
        prefetch_weights(weights, cache);
    }
    #[inline(always)]
    fn prefetch(self, bytes: &[u8]) {
        prefetch(bytes, Cache::Second);
    }
    #[inline(always)]
    fn bytes(self, from: &[u8; QUAD_BYTES]) -> Self::Bytes {
        vector!(_mm512_loadu_si512(from.as_ptr().cast()))
    }
    #[inline(always)]
    fn bits(self, a: Self::Bytes, shift: i32, mask: u8) -> Self::Bytes {
        if P::GFNI && shift != 0 {
            let matrix = shift_and_mask(shift, mask);
            return vector!(_mm512_gf2p8affine_epi64_epi8::<0>(a, _mm512_set1_epi64(matrix)));
        }
        vector!({
            let count = _mm_cvtsi32_si128(shift.abs());
            let shifted = if shift < 0 { _mm512_sll_epi16(a, count) } else { _mm512_srl_epi16(a, count) };
            _mm512_and_si512(shifted, _mm512_set1_epi8(mask as i8))
        })
    }
    #[inline(always)]
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        vector!(_mm512_or_si512(a, b))
    }
    #[inline(always)]
    fn codes(self, a: Self::Bytes) -> Self::Bytes {
        a
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], a: Self::Bytes) -> Self::Bytes {
        vector!({
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, a)
        })
    }
    #[inline(always)]
    fn dot(self, sums: Self::Ints, a: Self::Bytes, quad: i32) -> Self::Ints {
        vector!(_mm512_dpbusd_epi32(sums, a, _mm512_set1_epi32(quad)))
    }
    #[inline(always)]
    fn dot_codes(self, sums: Self::Ints, a: Self::Bytes, quad: i32) -> Self::Ints {
        self.dot(sums, a, quad)
    }
    #[inline(always)]
    fn dot_pair(self, sums: Self::Ints, a: &[u8; 2 * ROWS], pair: i32) -> Self::Ints {
        vector!({
            let a = _mm512_cvtepu8_epi16(_mm256_loadu_si256(a.as_ptr().cast()));
            _mm512_dpwssd_epi32(sums, a, _mm512_set1_epi32(pair))
        })
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> Self::Ints {
        vector!(_mm512_set1_epi32(x))
    }
    #[inline(always)]
    fn add_ints(self, a: Self::Ints, b: Self::Ints) -> Self::Ints {
        vector!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn to_floats(self, a: Self::Ints) -> Self::Floats {
        vector!(_mm512_cvtepi32_ps(a))
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::Floats {
        vector!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn floats(self, from: &[u8; 4 * ROWS]) -> Self::Floats {
        vector!(_mm512_loadu_ps(from.as_ptr().cast()))
    }
    #[inline(always)]
    fn halves(self, from: &[u8; 2 * ROWS]) -> Self::Floats {
        vector!(_mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())))
    }
    #[inline(always)]
    fn powers(self, from: &[u8; ROWS]) -> Self::Floats {
        vector!({
            let e = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.as_ptr().cast()));
            let one = _mm512_set1_epi32(1);
            let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(e, one));
            let smallest = _mm512_slli_epi32::<21>(_mm512_add_epi32(e, one));
            _mm512_castsi512_ps(_mm512_max_epi32(normal, smallest))
        })
    }
    #[inline(always)]
    fn bfloats(self, from: &[u8; 2 * ROWS]) -> Self::Floats {
        vector!({
            let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
        })
    }
    #[inline(always)]
    fn signed(self, from: &[u8; ROWS]) -> Self::Floats {
        vector!(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.as_ptr().cast()))))
    }
    #[inline(always)]
    fn unsigned(self, from: &[u8; ROWS]) -> Self::Floats {
        vector!(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.as_ptr().cast()))))
    }
    #[inline(always)]
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        vector!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        vector!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        vector!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn mul_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        vector!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn div(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        vector!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn at_least(self, x: Self::Floats, bound: f32) -> Self::Floats {
        // Where one operand is NaN, the result is the second.
        vector!(_mm512_max_ps(_mm512_set1_ps(bound), x))
    }
    #[inline(always)]
    fn at_most(self, x: Self::Floats, bound: f32) -> Self::Floats {
        vector!(_mm512_min_ps(_mm512_set1_ps(bound), x))
    }
    #[inline(always)]
    fn to_exponent(self, x: Self::Floats) -> Self::Floats {
        vector!(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_castps_si512(x))))
    }
    #[inline(always)]
    fn lanes(self, x: &[f32; ROWS]) -> Self::Floats {
        vector!(_mm512_loadu_ps(x.as_ptr()))
    }
    #[inline(always)]
    fn to_array(self, x: Self::Floats) -> [f32; ROWS] {
        let mut array = [0.0; ROWS];
        vector!(_mm512_storeu_ps(array.as_mut_ptr(), x));
        array
    }
}
