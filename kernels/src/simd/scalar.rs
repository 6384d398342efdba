//! Code without explicit vector instructions: the twin of all others.

use half::f16;

use super::isa::{Isa, Kernel, QUAD_BYTES, ROWS};
use crate::quant::Scale;

/// Any machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scalar;

impl Isa for Scalar {
    type Bytes = [u8; QUAD_BYTES];
    type Ints = [i32; ROWS];
    type Floats = [f32; ROWS];

    const RAISED: bool = true;
    const MAX_TILE: usize = 4;
    const MAX_PANELS: usize = 1;
    const MAX_HEADS: usize = 8;

    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline(always)]
    fn bytes(self, from: &[u8; QUAD_BYTES]) -> Self::Bytes {
        *from
    }
    #[inline(always)]
    fn bits(self, a: Self::Bytes, shift: i32, mask: u8) -> Self::Bytes {
        a.map(|a| if shift < 0 { a << -shift } else { a >> shift } & mask)
    }
    #[inline(always)]
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        std::array::from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    fn codes(self, a: Self::Bytes) -> Self::Bytes {
        a
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], a: Self::Bytes) -> Self::Bytes {
        a.map(|a| table[usize::from(a & 15)])
    }
    #[inline(always)]
    fn dot(self, sums: Self::Ints, a: Self::Bytes, quad: i32) -> Self::Ints {
        let x = quad.to_le_bytes().map(|x| i32::from(x as i8));
        let product = |row: usize, column: usize| i32::from(a[4 * row + column]) * x[column];
        std::array::from_fn(|row| sums[row] + (0..4).map(|column| product(row, column)).sum::<i32>())
    }
    #[inline(always)]
    fn dot_codes(self, sums: Self::Ints, a: Self::Bytes, quad: i32) -> Self::Ints {
        self.dot(sums, a, quad)
    }
    #[inline(always)]
    fn dot_pair(self, sums: Self::Ints, a: &[u8; 2 * ROWS], pair: i32) -> Self::Ints {
        let (low, high) = (pair << 16 >> 16, pair >> 16);
        std::array::from_fn(|row| sums[row] + i32::from(a[2 * row]) * low + i32::from(a[2 * row + 1]) * high)
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> Self::Ints {
        [x; ROWS]
    }
    #[inline(always)]
    fn add_ints(self, a: Self::Ints, b: Self::Ints) -> Self::Ints {
        std::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn to_floats(self, a: Self::Ints) -> Self::Floats {
        a.map(|a| a as f32)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::Floats {
        [x; ROWS]
    }
    #[inline(always)]
    fn floats(self, from: &[u8; 4 * ROWS]) -> Self::Floats {
        std::array::from_fn(|i| f32::from_le_bytes(std::array::from_fn(|byte| from[4 * i + byte])))
    }
    #[inline(always)]
    fn halves(self, from: &[u8; 2 * ROWS]) -> Self::Floats {
        std::array::from_fn(|i| f16::from_le_bytes([from[2 * i], from[2 * i + 1]]).to_f32())
    }
    #[inline(always)]
    fn powers(self, from: &[u8; ROWS]) -> Self::Floats {
        from.map(Scale::power)
    }
    #[inline(always)]
    fn bfloats(self, from: &[u8; 2 * ROWS]) -> Self::Floats {
        std::array::from_fn(|i| f32::from_le_bytes([0, 0, from[2 * i], from[2 * i + 1]]))
    }
    #[inline(always)]
    fn signed(self, from: &[u8; ROWS]) -> Self::Floats {
        from.map(|a| f32::from(a as i8))
    }
    #[inline(always)]
    fn unsigned(self, from: &[u8; ROWS]) -> Self::Floats {
        from.map(f32::from)
    }
    #[inline(always)]
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        std::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        std::array::from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        std::array::from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn mul_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        std::array::from_fn(|i| libm::fmaf(a[i], b[i], c[i]))
    }
    #[inline(always)]
    fn div(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        std::array::from_fn(|i| a[i] / b[i])
    }
    #[inline(always)]
    fn at_least(self, x: Self::Floats, bound: f32) -> Self::Floats {
        x.map(|x| if bound > x { bound } else { x })
    }
    #[inline(always)]
    fn at_most(self, x: Self::Floats, bound: f32) -> Self::Floats {
        x.map(|x| if bound < x { bound } else { x })
    }
    #[inline(always)]
    fn to_exponent(self, x: Self::Floats) -> Self::Floats {
        x.map(|x| f32::from_bits(x.to_bits() << 23))
    }
    #[inline(always)]
    fn lanes(self, x: &[f32; ROWS]) -> Self::Floats {
        *x
    }
    #[inline(always)]
    fn to_array(self, x: Self::Floats) -> [f32; ROWS] {
        x
    }
}
