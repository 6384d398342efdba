//! Text that a peer wrote, made fit for a log line or a terminal: one line, no control characters, bounded.

use std::fmt::{self, Display, Formatter, Write};

/// Characters of a peer's text that are shown; what follows is cut off.
pub const MAX_SHOWN_CHARS: usize = 200;

/// A peer's text as it may be shown: see [`peer_text`].
#[derive(Clone, Copy, Debug)]
pub struct PeerText<'a>(&'a str);

/// Shows the first [`MAX_SHOWN_CHARS`] characters of `text`. Line breaks, terminal escapes, and characters that cannot be
/// seen or that turn the direction of writing are written as Rust writes them: `\n`, `\u{1b}`.
pub fn peer_text(text: &str) -> PeerText<'_> {
    PeerText(text)
}

impl Display for PeerText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut chars = self.0.chars();
        for char in chars.by_ref().take(MAX_SHOWN_CHARS) {
            match char {
                '"' | '\'' => f.write_char(char)?,
                _ => write!(f, "{}", char.escape_debug())?,
            }
        }
        match chars.next() {
            Some(_) => f.write_str("..."),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forged_log_line_stays_one_line_without_escapes() {
        let forged = "no\n2026-11-22T00:00:00Z  INFO all is well \u{1b}[2J\r\u{202e}\u{9b}31m";
        let shown = peer_text(forged).to_string();
        assert_eq!(shown, "no\\n2026-11-22T00:00:00Z  INFO all is well \\u{1b}[2J\\r\\u{202e}\\u{9b}31m");
    }

    #[test]
    fn plain_text_of_any_language_is_shown_as_it_is() {
        for plain in ["the device \"GPU 0\" isn't there", "der Speicher genügt nicht", "内存不足", ""] {
            assert_eq!(peer_text(plain).to_string(), plain);
        }
    }

    #[test]
    fn long_text_is_cut() {
        let shown = peer_text(&"ä".repeat(10 * MAX_SHOWN_CHARS)).to_string();
        assert_eq!(shown, format!("{}...", "ä".repeat(MAX_SHOWN_CHARS)));
    }
}
