//! Random bf16 weights: norms are ones, and matrices keep products about as large as their input. A tensor's values
//! depend only on the seed and its name, so they are the same in any file and order.
//!
//! The head's rows are zero for tokens that are no words: then answers are text, which clients and their users can count.

use half::bf16;
use moex_model::gguf::{TokenKind, Vocabulary};
use rand::{Rng, SeedableRng, rngs::Xoshiro256PlusPlus};

/// Values written at a time.
const CHUNK: usize = 1 << 18;

/// Rows (V) of the head that are not zero.
pub(super) struct SpokenTokens(Vec<bool>);

impl SpokenTokens {
    /// The tokens that are words of ASCII letters and digits, or parts of such.
    pub(super) fn of(vocabulary: &Vocabulary) -> Self {
        let is_spoken = |(token, kind): (&String, &TokenKind)| {
            // `Ġ` is a space in a vocabulary of bytes.
            let word = token.trim_start_matches('Ġ');
            *kind == TokenKind::Normal
                && !word.is_empty()
                && word.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        Self(vocabulary.tokens.iter().zip(&vocabulary.kinds).map(is_spoken).collect())
    }
}

/// The weights of one tensor.
pub(super) struct Weights<'a> {
    rng: Xoshiro256PlusPlus,
    shape: Vec<usize>,
    /// If this is the head.
    spoken: Option<&'a SpokenTokens>,
}

impl<'a> Weights<'a> {
    /// Weights of the tensor that a folder calls `name`.
    pub(super) fn new(seed: u64, name: &str, shape: &[usize], spoken: &'a SpokenTokens) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&seed.to_le_bytes()).update(name.as_bytes());
        let rng = Xoshiro256PlusPlus::from_seed(*hasher.finalize().as_bytes());
        let spoken = (name == "lm_head.weight").then_some(spoken);
        Self { rng, shape: shape.to_vec(), spoken }
    }

    /// Passes the tensor's values to `out` in order, piece by piece.
    pub(super) fn for_each<E>(mut self, mut out: impl FnMut(&[bf16]) -> Result<(), E>) -> Result<(), E> {
        let mut piece = Vec::with_capacity(CHUNK);
        let columns = *self.shape.last().unwrap_or(&1);
        let is_norm = self.shape.len() == 1;
        // Uniform in ±a has the variance a²/3: 1/columns keeps a product's variance.
        let half_width = (3.0 / columns as f32).sqrt();
        let mut left = self.shape.iter().product::<usize>();
        while left > 0 {
            let n = left.min(CHUNK);
            piece.clear();
            if is_norm {
                piece.resize(n, bf16::ONE);
            } else {
                self.fill(n, half_width, &mut piece);
            }
            if let Some(SpokenTokens(spoken)) = self.spoken {
                let done = self.shape.iter().product::<usize>() - left;
                for (i, value) in piece.iter_mut().enumerate() {
                    if !spoken.get((done + i) / columns).copied().unwrap_or_default() {
                        *value = bf16::ZERO;
                    }
                }
            }
            out(&piece)?;
            left -= n;
        }
        Ok(())
    }

    fn fill(&mut self, n: usize, half_width: f32, piece: &mut Vec<bf16>) {
        // Each draw gives four weights of 16 bits.
        for start in (0..n).step_by(4) {
            let bits = self.rng.next_u64().to_le_bytes();
            for bits in &bits.as_chunks::<2>().0[..(n - start).min(4)] {
                let unit = f32::from(i16::from_le_bytes(*bits)) / 32_768.0;
                piece.push(bf16::from_f32(unit * half_width));
            }
        }
    }
}
