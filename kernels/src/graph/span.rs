//! A step's request: rows of sequences, and which of their logits are wanted.

use super::KvTable;

/// Rows of one sequence in a step: tokens that follow what it has cached.
pub struct Span<'a> {
    /// The tokens, at least one.
    pub ids: &'a [u32],
    /// Positions already cached, and the position of the first token.
    pub start: usize,
    /// Its pages, with room for `start + ids.len()` positions.
    pub table: &'a KvTable,
    /// Which rows' logits are wanted.
    pub wanted: WantedLogits,
}

impl Span<'_> {
    /// How many of its first `n_rows` rows have their logits wanted; it may have fewer rows.
    #[cfg(all(feature = "gpu", not(target_arch = "wasm32")))]
    pub(crate) fn n_wanted_of(&self, n_rows: usize) -> usize {
        match self.wanted {
            WantedLogits::Nothing => 0,
            WantedLogits::Last => usize::from(n_rows >= self.ids.len()),
            WantedLogits::All => n_rows.min(self.ids.len()),
        }
    }
}

/// The rows of a sequence whose logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedLogits {
    /// None: a prompt's chunk that others follow.
    Nothing,
    /// The last: the next token is drawn from it.
    Last,
    /// All of them.
    All,
}
