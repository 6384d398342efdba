//! The operations that a kernel needs of an instruction set: sixteen rows at once, a lane each.
//!
//! Kernels are written once against this trait. Every operation is exact or rounded once as IEEE 754 says, so all
//! instruction sets give the same bits; nothing is fused.

/// The rows of a panel: lanes of [`Isa::Ints`] and [`Isa::Floats`].
pub(crate) const ROWS: usize = 16;
/// Four columns of sixteen rows, a byte each, the columns of a row together.
pub(crate) const QUAD_BYTES: usize = 4 * ROWS;

/// A function that runs on any instruction set.
pub(crate) trait Kernel {
    /// Its result.
    type Output;

    /// Runs on `isa`. It and everything it calls must be `#[inline(always)]`: only then are they compiled for the
    /// instructions.
    fn run<I: Isa>(self, isa: I) -> Self::Output;
}

/// An instruction set. A value of it exists only where the machine has the instructions.
pub(crate) trait Isa: Copy {
    /// [`QUAD_BYTES`] bytes.
    type Bytes: Copy;
    /// 16 i32.
    type Ints: Copy;
    /// 16 f32.
    type Floats: Copy;

    /// Whether [`Self::dot_codes`] takes codes of eight bits as they are, rather than less 128.
    const RAISED: bool;
    /// Whether a unit's quads are unpacked one at a time, since the sums of the rows leave no registers for all; what they give is then
    /// summed by [`Self::add_pairs`].
    const BY_QUAD: bool = false;
    /// Rows of activations that meet a unit of weights at once: as many as the registers hold.
    const MAX_TILE: usize;
    /// Panels that meet a row of activations at once, where there are several rows.
    const MAX_PANELS: usize;
    /// Query heads that meet a cached key or value at once: as many as the registers hold sums of.
    const MAX_HEADS: usize;
    /// Whether cached keys and values are prefetched.
    const CACHE_AHEAD: bool = false;

    /// Runs the kernel, compiled for these instructions.
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output;

    /// Prefetches the weights that are read some time after these, which meet `n_rows` rows of activations at once.
    #[inline(always)]
    fn prefetch_weights(self, _weights: &[u8], _n_rows: usize) {}
    /// Prefetches these bytes.
    #[inline(always)]
    fn prefetch(self, _bytes: &[u8]) {}

    /// Loads bytes in order.
    fn bytes(self, from: &[u8; QUAD_BYTES]) -> Self::Bytes;
    /// Shifts each byte right by `shift`, which may be negative, and keeps the bits of `mask`.
    fn bits(self, a: Self::Bytes, shift: i32, mask: u8) -> Self::Bytes;
    /// Bitwise.
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Eight-bit codes as [`Self::dot_codes`] wants them: less 128 unless [`Self::RAISED`].
    fn codes(self, a: Self::Bytes) -> Self::Bytes;
    /// Looks each byte, 0 to 15, up in the table.
    fn lookup(self, table: &[u8; 16], a: Self::Bytes) -> Self::Bytes;
    /// Adds to each row the dot product of its four bytes, 0 to 127 each, with the four i8 of `quad`.
    fn dot(self, sums: Self::Ints, a: Self::Bytes, quad: i32) -> Self::Ints;
    /// As [`Self::dot`], or it adds to two sums of 16 bits for each row the products of two bytes each, which is fewer instructions.
    #[inline(always)]
    fn add_pairs(self, pairs: Self::Ints, a: Self::Bytes, quad: i32) -> Self::Ints {
        self.dot(pairs, a, quad)
    }
    /// Adds to each row what [`Self::add_pairs`] has summed.
    #[inline(always)]
    fn join_pairs(self, sums: Self::Ints, pairs: Self::Ints) -> Self::Ints {
        self.add_ints(sums, pairs)
    }
    /// Adds to each row the dot product of its four [`Self::codes`] with the four i8 of `quad`, none of which is -128.
    fn dot_codes(self, sums: Self::Ints, a: Self::Bytes, quad: i32) -> Self::Ints;
    /// Adds to each row the dot product of its two bytes, 0 to 255 each, with the two i16 of `pair`.
    fn dot_pair(self, sums: Self::Ints, a: &[u8; 2 * ROWS], pair: i32) -> Self::Ints;

    /// The same in every lane.
    fn splat_int(self, x: i32) -> Self::Ints;
    /// Lane by lane.
    fn add_ints(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// To the nearest.
    fn to_floats(self, a: Self::Ints) -> Self::Floats;

    /// The same in every lane.
    fn splat(self, x: f32) -> Self::Floats;
    /// f32, little-endian.
    fn floats(self, from: &[u8; 4 * ROWS]) -> Self::Floats;
    /// f16, little-endian, including infinities and NaN.
    fn halves(self, from: &[u8; 2 * ROWS]) -> Self::Floats;
    /// `2^(e - 128)` for each byte `e`, exactly.
    fn powers(self, from: &[u8; ROWS]) -> Self::Floats;
    /// bf16, little-endian.
    fn bfloats(self, from: &[u8; 2 * ROWS]) -> Self::Floats;
    /// i8.
    fn signed(self, from: &[u8; ROWS]) -> Self::Floats;
    /// u8.
    fn unsigned(self, from: &[u8; ROWS]) -> Self::Floats;
    /// Rounded once.
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// Rounded once.
    fn sub(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// Rounded once.
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once. Slow where the processor has no instruction for it; only hubs use it.
    fn mul_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// Rounded once.
    fn div(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// The larger of `x` and `bound`; NaN stays NaN.
    fn at_least(self, x: Self::Floats, bound: f32) -> Self::Floats;
    /// The smaller of `x` and `bound`; NaN stays NaN.
    fn at_most(self, x: Self::Floats, bound: f32) -> Self::Floats;
    /// The bits shifted left by 23: an integer in the lowest bits becomes an exponent.
    fn to_exponent(self, x: Self::Floats) -> Self::Floats;
    /// In order of rows.
    fn lanes(self, x: &[f32; ROWS]) -> Self::Floats;
    /// In order of rows.
    fn to_array(self, x: Self::Floats) -> [f32; ROWS];
}
