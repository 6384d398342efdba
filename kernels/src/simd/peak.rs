//! The integer products that an instruction set gives at best: what kernels are measured against.

use super::{
    Simd,
    isa::{Isa, Kernel, QUAD_BYTES},
};

/// Sums that do not wait for each other: enough for two instructions a cycle of five cycles each.
const SUMS: usize = 12;
/// Multiplications and additions of one turn.
const OPERATIONS: usize = SUMS * QUAD_BYTES * 2;

/// Runs some `operations` of int8 dot products on registers alone, and gives how many; for benchmarks, which divide by the
/// time.
pub fn spin_products(simd: Simd, operations: usize) -> usize {
    let turns = operations.div_ceil(OPERATIONS);
    std::hint::black_box(simd.run(Spin { turns }));
    turns * OPERATIONS
}

struct Spin {
    turns: usize,
}

impl Kernel for Spin {
    type Output = f32;

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> f32 {
        let weights = isa.bytes(std::hint::black_box(&[1; QUAD_BYTES]));
        let mut sums = [isa.splat_int(0); SUMS];
        for turn in 0..self.turns {
            for sum in &mut sums {
                *sum = isa.dot(*sum, weights, turn as i32);
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
