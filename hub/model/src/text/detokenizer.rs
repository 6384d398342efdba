//! Ids to text as they come, never half a character.

use super::{Special, Tokenizer};

/// Decodes one sequence. What it gives, put together, is what [`Tokenizer::decode`] gives for all ids at once.
#[derive(Debug)]
pub struct Detokenizer {
    special: Special,
    /// The beginning of a character: at most three bytes.
    pending: Vec<u8>,
}

impl Detokenizer {
    /// At the beginning of a text.
    pub fn new(special: Special) -> Self {
        Self { special, pending: Vec::new() }
    }

    /// The text that `id` completes, often empty in the middle of a character.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        self.pending.extend_from_slice(tokenizer.bytes(id, self.special));
        let mut text = String::new();
        loop {
            let error = match std::str::from_utf8(&self.pending) {
                Ok(whole) => {
                    text.push_str(whole);
                    self.pending.clear();
                    return text;
                }
                Err(error) => error,
            };
            let n_valid = error.valid_up_to();
            text.push_str(&String::from_utf8_lossy(&self.pending[..n_valid]));
            match error.error_len() {
                // A character that later bytes may complete.
                None => {
                    self.pending.drain(..n_valid);
                    return text;
                }
                Some(bad) => {
                    text.push(char::REPLACEMENT_CHARACTER);
                    self.pending.drain(..n_valid + bad);
                }
            }
        }
    }

    /// What is left when no more ids come: nothing, or the sign for a character that was never completed.
    pub fn finish(&mut self) -> String {
        let rest = std::mem::take(&mut self.pending);
        String::from_utf8_lossy(&rest).into_owned()
    }
}
