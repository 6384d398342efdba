//! Random bf16 weights: norms of ones, and matrices whose products stay about as large as what goes in.

use std::io;

use half::bf16;
use rand::{Rng, SeedableRng, rngs::Xoshiro256PlusPlus};

use crate::commands::safetensors_file::Planned;

/// Values written at a time.
const CHUNK: usize = 1 << 18;

/// A stream of weights.
pub(super) struct Weights {
    rng: Xoshiro256PlusPlus,
    buffer: Vec<u8>,
}

impl Weights {
    pub(super) fn new(seed: u64) -> Self {
        Self { rng: Xoshiro256PlusPlus::seed_from_u64(seed), buffer: Vec::with_capacity(2 * CHUNK) }
    }

    /// Gives a tensor's bytes to `out`, piece by piece.
    pub(super) fn write(
        &mut self,
        tensor: &Planned,
        mut out: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let columns = *tensor.shape.last().unwrap_or(&1);
        let is_norm = tensor.shape.len() == 1;
        // Uniform in ±a has the variance a²/3: 1/columns keeps a product's variance.
        let half_width = (3.0 / columns as f32).sqrt();
        let mut left = tensor.n_values();
        while left > 0 {
            let n = left.min(CHUNK);
            self.buffer.clear();
            if is_norm {
                self.buffer.extend(std::iter::repeat_n(bf16::ONE.to_le_bytes(), n).flatten());
            } else {
                self.fill(n, half_width);
            }
            out(&self.buffer)?;
            left -= n;
        }
        Ok(())
    }

    fn fill(&mut self, n: usize, half_width: f32) {
        // Four weights of 16 bits from every draw.
        for start in (0..n).step_by(4) {
            let bits = self.rng.next_u64().to_le_bytes();
            for bits in &bits.as_chunks::<2>().0[..(n - start).min(4)] {
                let unit = f32::from(i16::from_le_bytes(*bits)) / 32_768.0;
                self.buffer.extend(bf16::from_f32(unit * half_width).to_le_bytes());
            }
        }
    }
}
