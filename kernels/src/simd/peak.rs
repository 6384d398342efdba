//! The limits that kernels are measured against: an instruction set's best rate of integer products, and the speed of
//! memory.

use super::{
    Simd,
    isa::{Isa, Kernel, QUAD_BYTES},
};

/// Independent sums: enough for two instructions a cycle of five cycles each.
const SUMS: usize = 12;
/// Columns that meet the weights in turn. Were they the same for all sums, instruction sets whose dot product is several instructions
/// would compute most of it once.
const QUADS: usize = 64;
/// Multiplications and additions of one turn.
const OPERATIONS: usize = SUMS * QUAD_BYTES * 2;

/// Runs some `operations` of int8 dot products on registers alone; returns how many. Benchmarks divide the number by
/// the time.
pub fn spin_products(simd: Simd, operations: usize) -> usize {
    let turns = operations.div_ceil(OPERATIONS);
    std::hint::black_box(simd.run(Spin { turns }));
    turns * OPERATIONS
}

/// Reads memory as kernels read weights, and does nothing with it. The rest after whole kilobytes is not read.
pub fn read(simd: Simd, memory: &[u8]) {
    std::hint::black_box(simd.run(Read { memory }));
}

struct Read<'a> {
    memory: &'a [u8],
}

impl Kernel for Read<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> f32 {
        let mut all = [isa.bytes(&[0; QUAD_BYTES]); 16];
        for piece in self.memory.as_chunks::<{ 16 * QUAD_BYTES }>().0 {
            isa.prefetch_weights(piece, 1);
            for (all, bytes) in all.iter_mut().zip(piece.as_chunks().0) {
                *all = isa.or(*all, isa.bytes(bytes));
            }
        }
        let sum = all.into_iter().fold(isa.splat_int(0), |sum, bytes| isa.dot(sum, bytes, 1));
        isa.to_array(isa.to_floats(sum))[0]
    }
}

struct Spin {
    turns: usize,
}

impl Kernel for Spin {
    type Output = f32;

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> f32 {
        let weights = isa.bytes(std::hint::black_box(&[1; QUAD_BYTES]));
        let quads = std::hint::black_box([1; QUADS]);
        let mut sums = [isa.splat_int(0); SUMS];
        for turn in 0..self.turns {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = isa.dot(*sum, weights, quads[(turn + i) % QUADS]);
            }
        }
        let mut all = isa.splat_int(0);
        for sum in sums {
            all = isa.add_ints(all, sum);
        }
        isa.to_array(isa.to_floats(all))[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn does_what_it_says_or_a_little_more() {
        for simd in Simd::available() {
            let done = spin_products(simd, 1_000_000);
            assert!((1_000_000..1_000_000 + OPERATIONS).contains(&done));
        }
    }
}
