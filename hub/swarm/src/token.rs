//! The join token, which a worker must send to get work or weights.

use std::fmt;

/// A secret that is compared in constant time and never printed.
#[derive(Clone)]
pub struct JoinToken(String);

impl JoinToken {
    /// Creates a token from its text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Whether `given` is this token, in time that does not depend on where they differ.
    pub fn matches(&self, given: &str) -> bool {
        // The crate documents that equality of BLAKE3 hashes is constant-time.
        blake3::hash(self.0.as_bytes()) == blake3::hash(given.as_bytes())
    }

    /// The text, for the join URL's fragment.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinToken(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_text_matches_and_debug_hides_it() {
        let token = JoinToken::new("open sesame");
        assert!(token.matches("open sesame"));
        assert!(!token.matches("open sesam") && !token.matches("") && !token.matches("open sesame "));
        assert!(!format!("{token:?}").contains("sesame"));
    }
}
