//! The seeded random source.

use rand_pcg::{
    Pcg64,
    rand_core::{Rng, SeedableRng},
};

/// A stream of random numbers named by a seed: PCG XSL-RR 128/64, the same on every machine.
#[derive(Clone, Debug)]
pub struct Random {
    bits: Pcg64,
    /// The second normal of the last pair, if it is unused.
    spare: Option<f64>,
}

impl Random {
    /// The stream `stream` of `seed`; different streams of one seed are unrelated.
    pub fn new(seed: u64, stream: u64) -> Self {
        // The golden ratio spreads neighbouring streams over the seed space; the seeding hashes the rest.
        let mixed = seed.wrapping_add(stream.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        Self { bits: Pcg64::seed_from_u64(mixed), spare: None }
    }

    /// Uniform in [0, 1), all 53 bits random.
    pub fn uniform(&mut self) -> f64 {
        (self.bits.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform among 0..n, n at least 1: the bias is below n / 2^64.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.bits.next_u64()) * n as u128) >> 64) as usize
    }

    /// Standard normal, by Marsaglia's polar method.
    pub fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        loop {
            let (x, y) = (2.0 * self.uniform() - 1.0, 2.0 * self.uniform() - 1.0);
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                let stretch = (-2.0 * libm::log(square) / square).sqrt();
                self.spare = Some(y * stretch);
                return x * stretch;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_names_its_numbers() {
        // Literal values: another machine, toolchain or crate version must give these bits.
        let mut random = Random::new(1, 0);
        let numbers = [random.uniform(), random.normal(), random.normal(), random.uniform()];
        assert_eq!(
            numbers.map(f64::to_bits),
            [
                4_605_740_128_936_427_717,
                13_815_646_288_361_440_359,
                13_832_196_902_842_202_544,
                4_600_665_855_579_506_000,
            ]
        );
        assert_ne!(Random::new(1, 1).uniform(), Random::new(1, 0).uniform());
        assert_ne!(Random::new(2, 0).uniform(), Random::new(1, 0).uniform());
    }

    #[test]
    fn normals_have_the_moments_of_a_normal() {
        let mut random = Random::new(3, 0);
        let n = 200_000;
        let draws: Vec<f64> = (0..n).map(|_| random.normal()).collect();
        let moment = |power: i32| draws.iter().map(|z| z.powi(power)).sum::<f64>() / f64::from(n);
        // Each bound is about four standard errors of that moment.
        for (power, want, bound) in [(1, 0.0, 0.009), (2, 1.0, 0.013), (3, 0.0, 0.035), (4, 3.0, 0.09)] {
            assert!((moment(power) - want).abs() < bound, "moment {power}: {}", moment(power));
        }
    }

    #[test]
    fn below_reaches_every_value_and_no_other() {
        let mut random = Random::new(4, 0);
        let mut seen = [0u32; 7];
        for _ in 0..7_000 {
            seen[random.below(7)] += 1;
        }
        assert!(seen.iter().all(|&count| (850..1150).contains(&count)), "{seen:?}");
        assert_eq!(random.below(1), 0);
    }
}
