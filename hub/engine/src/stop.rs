//! Stop strings: holds text back while it may be the beginning of one.

/// Outgoing text of one sequence.
#[derive(Debug)]
pub(super) struct StopText {
    stops: Vec<String>,
    /// Shorter than the longest stop string.
    held: String,
}

/// Text that may be emitted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Released {
    /// This text; more may follow.
    Text(String),
    /// This text; a stop string followed it.
    Stopped(String),
}

impl StopText {
    pub(super) fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new() }
    }

    /// Adds the next piece.
    pub(super) fn push(&mut self, text: String) -> Released {
        if self.stops.is_empty() {
            return Released::Text(text);
        }
        self.held.push_str(&text);
        if let Some(start) = self.stops.iter().filter_map(|stop| self.held.find(stop)).min() {
            self.held.truncate(start);
            return Released::Stopped(std::mem::take(&mut self.held));
        }
        let begun = self.stops.iter().map(|stop| begun(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - begun);
        Released::Text(std::mem::replace(&mut self.held, rest))
    }

    /// Returns the text held back at the end.
    pub(super) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Number of bytes at the end of `text` that are a proper prefix of `stop`.
fn begun(text: &str, stop: &str) -> usize {
    // Both are UTF-8, so bytes that are equal begin and end at characters.
    let longest = text.len().min(stop.len() - 1);
    (1..=longest).rev().find(|len| text.as_bytes().ends_with(&stop.as_bytes()[..*len])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stops(stops: &[&str]) -> StopText {
        StopText::new(stops.iter().map(|stop| (*stop).to_owned()).collect())
    }

    fn text(text: &str) -> Released {
        Released::Text(text.to_owned())
    }

    fn stopped(text: &str) -> Released {
        Released::Stopped(text.to_owned())
    }

    #[test]
    fn without_stops_everything_passes() {
        let mut out = stops(&[]);
        assert_eq!(out.push("abc".to_owned()), text("abc"));
        assert_eq!(out.finish(), "");
    }

    #[test]
    fn a_stop_in_pieces_is_never_said() {
        let mut out = stops(&["\n\nUser:"]);
        assert_eq!(out.push("one\n".to_owned()), text("one"));
        assert_eq!(out.push("\nUs".to_owned()), text(""));
        assert_eq!(out.push("er: two".to_owned()), stopped(""));
    }

    #[test]
    fn what_only_began_like_a_stop_is_said() {
        let mut out = stops(&["END", "EXIT"]);
        assert_eq!(out.push("the E".to_owned()), text("the "));
        assert_eq!(out.push("X".to_owned()), text(""));
        assert_eq!(out.push("AM E".to_owned()), text("EXAM "));
        assert_eq!(out.finish(), "E");
    }

    #[test]
    fn the_earliest_stop_counts_and_overlaps_are_found() {
        assert_eq!(stops(&["two", "ne"]).push("one two".to_owned()), stopped("o"));
        let mut out = stops(&["aab"]);
        assert_eq!(out.push("aa".to_owned()), text(""));
        assert_eq!(out.push("a".to_owned()), text("a"), "the last two may still begin it");
        assert_eq!(out.push("b".to_owned()), stopped(""));
        let mut out = stops(&["é!"]);
        assert_eq!(out.push("caf\u{e9}".to_owned()), text("caf"));
        assert_eq!(out.push("?".to_owned()), text("é?"));
    }
}
