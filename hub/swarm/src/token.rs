//! What admits workers: the hub's join token, and invitations for one worker each, which are derived from it.
//!
//! ```text
//! invitation = NAME ~ first 16 bytes of BLAKE3(key = KDF(join token), NAME), in hexadecimal digits
//! ```
//! So a hub stores none: it checks that a name was signed, and whether that name was revoked.

use std::fmt;

/// What the key of invitations is derived for: no other secret of a join token has the same.
const CONTEXT: &str = "moex.invitations.v1";
/// Between an invitation's name and its signature.
const SEPARATOR: char = '~';
/// Bytes of a signature: nobody guesses 128 bits.
const SIGNATURE_BYTES: usize = 16;
/// Longest name of an invitation, in bytes.
pub const MAX_INVITATION_NAME_BYTES: usize = 32;

/// A secret that is compared in constant time and never printed.
#[derive(Clone)]
pub struct JoinToken(String);

/// By what a worker is admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The hub's join token, which is for everyone who has it.
    Token,
    /// The invitation of this name, which is for one worker.
    Invitation(String),
}

impl JoinToken {
    /// Creates a token from its text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// By what `given` admits, in time that does not depend on where it differs. An invitation may have been revoked.
    pub fn admits(&self, given: &str) -> Option<Admission> {
        if is_same(&self.0, given) {
            return Some(Admission::Token);
        }
        let (name, _) = given.rsplit_once(SEPARATOR)?;
        let is_signed = self.invitation(name).is_some_and(|invitation| is_same(&invitation, given));
        is_signed.then(|| Admission::Invitation(name.to_owned()))
    }

    /// Whether an invitation may have this name: 1 to [`MAX_INVITATION_NAME_BYTES`] letters, digits, `-` or `_`.
    pub fn is_invitation_name(name: &str) -> bool {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=MAX_INVITATION_NAME_BYTES).contains(&name.len()) && name.bytes().all(fits)
    }

    /// The invitation of this name, which a worker gives as its token; none if it may not have the name.
    pub fn invitation(&self, name: &str) -> Option<String> {
        if !Self::is_invitation_name(name) {
            return None;
        }
        let key = blake3::derive_key(CONTEXT, self.0.as_bytes());
        let signature = blake3::keyed_hash(&key, name.as_bytes()).to_hex();
        Some(format!("{name}{SEPARATOR}{}", &signature[..2 * SIGNATURE_BYTES]))
    }

    /// The text, for the join URL's fragment.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

fn is_same(one: &str, other: &str) -> bool {
    // The crate documents that equality of BLAKE3 hashes is constant-time.
    blake3::hash(one.as_bytes()) == blake3::hash(other.as_bytes())
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
        assert_eq!(token.admits("open sesame"), Some(Admission::Token));
        for wrong in ["open sesam", "", "open sesame ", "~", "anna~", "anna"] {
            assert_eq!(token.admits(wrong), None, "{wrong}");
        }
        assert!(!format!("{token:?}").contains("sesame"));
    }

    #[test]
    fn an_invitation_admits_under_its_own_name_alone() {
        let token = JoinToken::new("a~token");
        let invitation = token.invitation("anna-2").unwrap();
        assert_eq!(token.admits(&invitation), Some(Admission::Invitation("anna-2".to_owned())));
        let renamed = invitation.replace("anna-2", "anna-3");
        assert_eq!(token.admits(&renamed), None);
        assert_eq!(token.admits(&invitation[..invitation.len() - 1]), None);
        assert_eq!(JoinToken::new("another").admits(&invitation), None, "a new token ends all invitations");
        for wrong in ["", "an na", "a~b", "é", &"x".repeat(33)] {
            assert_eq!(token.invitation(wrong), None, "{wrong}");
        }
    }
}
