//! Dot products of several vectors with one, and multiples of one onto several, on a chosen instruction set.

use crate::simd::{
    Simd,
    isa::{Isa, Kernel, ROWS},
};

/// `vectors[k] . x` for each of the K `vectors` (K, n).
pub(super) fn dots<const K: usize>(simd: Simd, vectors: &[f32], x: &[f32]) -> [f32; K] {
    assert_eq!(vectors.len(), K * x.len(), "{K} vectors as long as the other");
    simd.run(Dots::<K> { vectors, x })
}

/// `|x|`, the root of the sum of the squares.
pub fn norm(simd: Simd, x: &[f32]) -> f32 {
    let [square] = dots::<1>(simd, x, x);
    square.sqrt()
}

/// How far rounding `values` to f16 has moved them at most, as a length.
pub fn f16_rounding(simd: Simd, values: &[f32]) -> f32 {
    /// Half the distance of two neighbours, below the smallest normal number.
    const LEAST: f32 = 1.0 / (1 << 25) as f32;
    norm(simd, values) / 2048.0 + (values.len() as f32).sqrt() * LEAST
}

/// `sums[k] += factors[k] * x` for each of the K `sums` (K, n).
pub(super) fn add_multiples<const K: usize>(simd: Simd, factors: [f32; K], x: &[f32], sums: &mut [f32]) {
    assert_eq!(sums.len(), K * x.len(), "{K} sums as long as what is added");
    simd.run(AddMultiples { factors, x, sums });
}

struct Dots<'a, const K: usize> {
    vectors: &'a [f32],
    x: &'a [f32],
}

impl<const K: usize> Kernel for Dots<'_, K> {
    type Output = [f32; K];

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> Self::Output {
        let n = self.x.len();
        let (x, x_rest) = self.x.as_chunks::<ROWS>();
        let vectors: [_; K] = std::array::from_fn(|k| self.vectors[k * n..][..n].as_chunks::<ROWS>());
        // Two sums of each, of every second panel: an addition waits for the one before.
        let mut sums = [[isa.splat(0.0); 2]; K];
        let (pairs, last) = x.as_chunks::<2>();
        for (i, x) in pairs.iter().enumerate() {
            let x = [isa.lanes(&x[0]), isa.lanes(&x[1])];
            for (sums, (vector, _)) in sums.iter_mut().zip(&vectors) {
                sums[0] = isa.add(sums[0], isa.mul(isa.lanes(&vector[2 * i]), x[0]));
                sums[1] = isa.add(sums[1], isa.mul(isa.lanes(&vector[2 * i + 1]), x[1]));
            }
        }
        if let [x] = last {
            let x = isa.lanes(x);
            for (sums, (vector, _)) in sums.iter_mut().zip(&vectors) {
                sums[0] = isa.add(sums[0], isa.mul(isa.lanes(&vector[2 * pairs.len()]), x));
            }
        }
        std::array::from_fn(|k| {
            let rest: f32 = x_rest.iter().zip(vectors[k].1).map(|(x, v)| x * v).sum();
            sum(isa.to_array(isa.add(sums[k][0], sums[k][1]))) + rest
        })
    }
}

/// The sum, in halves that are added lane by lane.
#[inline(always)]
fn sum(mut lanes: [f32; ROWS]) -> f32 {
    let mut n = ROWS;
    while n > 1 {
        n /= 2;
        for i in 0..n {
            lanes[i] += lanes[i + n];
        }
    }
    lanes[0]
}

struct AddMultiples<'a, const K: usize> {
    factors: [f32; K],
    x: &'a [f32],
    sums: &'a mut [f32],
}

impl<const K: usize> Kernel for AddMultiples<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let (x, x_rest) = self.x.as_chunks::<ROWS>();
        for (factor, sums) in self.factors.into_iter().zip(self.sums.chunks_exact_mut(self.x.len().max(1))) {
            let (sums, sums_rest) = sums.as_chunks_mut::<ROWS>();
            for (sum, x) in sums.iter_mut().zip(x) {
                *sum = isa.to_array(isa.add(isa.lanes(sum), isa.mul(isa.splat(factor), isa.lanes(x))));
            }
            for (sum, x) in sums_rest.iter_mut().zip(x_rest) {
                *sum += factor * x;
            }
        }
    }
}
