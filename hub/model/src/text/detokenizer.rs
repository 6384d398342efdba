//! Decodes ids to text incrementally, only whole characters.

use super::{Special, Tokenizer};

/// Decodes one sequence. The concatenated output equals [`Tokenizer::decode`] of all ids.
#[derive(Debug)]
pub struct Detokenizer {
    special: Special,
    /// The beginning of an incomplete character: at most three bytes.
    pending: Vec<u8>,
}

impl Detokenizer {
    /// Starts a new text.
    pub fn new(special: Special) -> Self {
        Self { special, pending: Vec::new() }
    }

    /// Returns the text that `id` completes; often empty in the middle of a character.
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
                // Later bytes may complete this character.
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

    /// Returns the rest at the end: nothing, or the replacement character for an incomplete one.
    pub fn finish(&mut self) -> String {
        let rest = std::mem::take(&mut self.pending);
        String::from_utf8_lossy(&rest).into_owned()
    }
}
