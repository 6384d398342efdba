//! Splits a model's text, as it arrives, into reasoning, content and tool calls.
//!
//! Qwen3 writes `<think>…</think>` first and each call as `<tool_call>{"name", "arguments"}</tool_call>`. The streaming
//! and the whole answer are both made of these pieces, so they cannot differ.

use serde::Deserialize;
use serde_json::value::RawValue;

const THINK: &str = "<think>";
const THINK_END: &str = "</think>";
const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// From inside `<think>`.
    Reasoning(String),
    /// The answer itself.
    Content(String),
    /// A whole call of a tool.
    Call(ToolCall),
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ToolCall {
    /// The tool.
    pub(super) name: String,
    /// JSON, in the model's own spelling: sent back in a history, it tokenises as the model wrote it.
    pub(super) arguments: String,
}

/// Turns text into [`Piece`]s: [`push`](Self::push) for each bit of text, then [`finish`](Self::finish).
///
/// Text that may yet become a tag is held back, at most until the answer ends.
#[derive(Debug)]
pub(super) struct OutputParser {
    reads_calls: bool,
    mode: Mode,
    /// Text not yet given out.
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Nothing but white space yet: `<think>` may come.
    Start,
    Thinking {
        begun: bool,
    },
    Content {
        begun: bool,
    },
    Call,
}

impl OutputParser {
    /// `in_think`: the prompt itself ended with `<think>`. `reads_calls`: tools were offered; without it a
    /// `<tool_call>` is text like any other.
    pub(super) fn new(in_think: bool, reads_calls: bool) -> Self {
        let mode = if in_think { Mode::Thinking { begun: false } } else { Mode::Start };
        Self { reads_calls, mode, held: String::new() }
    }

    /// Takes text, gives what is certain by now.
    pub(super) fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        while self.step(&mut pieces) {}
        pieces
    }

    /// The answer has ended: gives what was held back.
    pub(super) fn finish(&mut self) -> Vec<Piece> {
        let rest = std::mem::take(&mut self.held);
        let piece = match self.mode {
            Mode::Thinking { .. } => Piece::Reasoning(rest.trim_end().to_owned()),
            Mode::Start | Mode::Content { .. } => Piece::Content(rest),
            Mode::Call => call_or_text(&rest, ""),
        };
        if is_empty(&piece) { Vec::new() } else { vec![piece] }
    }

    /// One transition; false when more text is needed.
    fn step(&mut self, pieces: &mut Vec<Piece>) -> bool {
        let before = (self.mode, self.held.len());
        match self.mode {
            Mode::Start => {
                let text = self.held.trim_start();
                if let Some(rest) = text.strip_prefix(THINK) {
                    self.held = rest.to_owned();
                    self.mode = Mode::Thinking { begun: false };
                } else if !THINK.starts_with(text) {
                    self.mode = Mode::Content { begun: true };
                }
            }
            Mode::Thinking { begun } => {
                let begun = begun || self.drop_leading_space();
                self.mode = Mode::Thinking { begun };
                if let Some(inside) = self.take_through(THINK_END) {
                    give(pieces, Piece::Reasoning(inside.trim_end().to_owned()));
                    self.mode = Mode::Content { begun: false };
                } else {
                    give(pieces, Piece::Reasoning(self.take_certain(THINK_END)));
                }
            }
            Mode::Content { begun } => {
                let begun = begun || self.drop_leading_space();
                self.mode = Mode::Content { begun };
                if !self.reads_calls {
                    give(pieces, Piece::Content(std::mem::take(&mut self.held)));
                } else if let Some(text) = self.take_through(CALL) {
                    give(pieces, Piece::Content(text.trim_end().to_owned()));
                    self.mode = Mode::Call;
                } else {
                    give(pieces, Piece::Content(self.take_certain(CALL)));
                }
            }
            Mode::Call => {
                if let Some(inside) = self.take_through(CALL_END) {
                    let piece = call_or_text(&inside, CALL_END);
                    // White space between calls is the model's layout; after text it is text.
                    self.mode = Mode::Content { begun: matches!(piece, Piece::Content(_)) };
                    give(pieces, piece);
                }
            }
        }
        (self.mode, self.held.len()) != before
    }

    /// Drops white space in front; true once something else is there.
    fn drop_leading_space(&mut self) -> bool {
        self.held = self.held.trim_start().to_owned();
        !self.held.is_empty()
    }

    /// What stands before `tag`, if the tag is there; both are taken.
    fn take_through(&mut self, tag: &str) -> Option<String> {
        let at = self.held.find(tag)?;
        let rest = self.held.split_off(at + tag.len());
        let mut before = std::mem::replace(&mut self.held, rest);
        before.truncate(at);
        Some(before)
    }

    /// What cannot be part of `tag` nor the white space before it.
    fn take_certain(&mut self, tag: &str) -> String {
        let partial = (1..tag.len()).rev().find(|&n| self.held.ends_with(&tag[..n])).unwrap_or(0);
        let before_tag = &self.held[..self.held.len() - partial];
        let rest = self.held.split_off(before_tag.trim_end().len());
        std::mem::replace(&mut self.held, rest)
    }
}

fn give(pieces: &mut Vec<Piece>, piece: Piece) {
    if !is_empty(&piece) {
        pieces.push(piece);
    }
}

fn is_empty(piece: &Piece) -> bool {
    matches!(piece, Piece::Reasoning(text) | Piece::Content(text) if text.is_empty())
}

/// The call written in `inside`, or, when it is none, the text as the model wrote it.
fn call_or_text(inside: &str, end: &str) -> Piece {
    match parse_call(inside) {
        Some(call) => Piece::Call(call),
        None => Piece::Content(format!("{CALL}{inside}{end}")),
    }
}

fn parse_call(text: &str) -> Option<ToolCall> {
    #[derive(Deserialize)]
    struct Written<'a> {
        name: String,
        #[serde(borrow, alias = "parameters")]
        arguments: Option<&'a RawValue>,
    }
    let written: Written<'_> = serde_json::from_str(text.trim()).ok()?;
    let arguments = match written.arguments.map(RawValue::get) {
        None => "{}".to_owned(),
        Some(object) if object.starts_with('{') => object.to_owned(),
        // Some write the object into a string, as the API itself does.
        Some(other) => serde_json::from_str::<String>(other).ok()?,
    };
    Some(ToolCall { name: written.name, arguments })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All pieces, neighbours of a kind joined, for the text cut at `cuts`.
    fn parse(text: &str, cuts: &[usize], in_think: bool, reads_calls: bool) -> Vec<Piece> {
        let mut parser = OutputParser::new(in_think, reads_calls);
        let mut ends: Vec<usize> = cuts.iter().map(|&cut| text.floor_char_boundary(cut)).collect();
        ends.push(text.len());
        ends.sort_unstable();
        let mut pieces = Vec::new();
        let mut start = 0;
        for end in ends {
            pieces.extend(parser.push(&text[start..end]));
            start = end;
        }
        pieces.extend(parser.finish());
        join(pieces)
    }

    fn join(pieces: Vec<Piece>) -> Vec<Piece> {
        let mut joined: Vec<Piece> = Vec::new();
        for piece in pieces {
            match (joined.last_mut(), piece) {
                (Some(Piece::Reasoning(last)), Piece::Reasoning(text))
                | (Some(Piece::Content(last)), Piece::Content(text)) => last.push_str(&text),
                (_, piece) => joined.push(piece),
            }
        }
        joined
    }

    fn content(text: &str) -> Piece {
        Piece::Content(text.to_owned())
    }

    fn reasoning(text: &str) -> Piece {
        Piece::Reasoning(text.to_owned())
    }

    fn call(name: &str, arguments: &str) -> Piece {
        Piece::Call(ToolCall { name: name.to_owned(), arguments: arguments.to_owned() })
    }

    const WEATHER: &str = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\", \"a\": 1}}\n</tool_call>";

    #[test]
    fn examples() {
        let weather = call("get_weather", "{\"city\": \"Rome\", \"a\": 1}");
        let cases: Vec<(&str, bool, bool, Vec<Piece>)> = vec![
            ("Hello.\n", false, false, vec![content("Hello.\n")]),
            ("  <b", false, false, vec![content("  <b")]),
            ("<think>\n\n</think>\n\n85", false, false, vec![content("85")]),
            ("<think>\n1 + 1\n</think>\n\n2", false, true, vec![reasoning("1 + 1"), content("2")]),
            ("so\n</think>\n2", true, false, vec![reasoning("so"), content("2")]),
            ("<think>cut off <", false, false, vec![reasoning("cut off <")]),
            ("a <think> b", false, false, vec![content("a <think> b")]),
            (WEATHER, false, true, vec![weather.clone()]),
            (WEATHER, false, false, vec![content(WEATHER)]),
            ("<tool_call>oops</tool_call> x", false, true, vec![content("<tool_call>oops</tool_call> x")]),
            ("<tool_call>{\"name\": \"f\"", false, true, vec![content("<tool_call>{\"name\": \"f\"")]),
            ("<tool_call>{\"name\": \"f\"}", false, true, vec![call("f", "{}")]),
            ("2 < 3 <tool", false, true, vec![content("2 < 3 <tool")]),
        ];
        for (text, in_think, reads_calls, expected) in cases {
            assert_eq!(parse(text, &[], in_think, reads_calls), expected, "{text:?}");
        }
        let two = format!("First. \n{WEATHER}\n{WEATHER}\n");
        assert_eq!(parse(&two, &[], false, true), vec![content("First."), weather.clone(), weather]);
    }

    proptest! {
        #[test]
        fn where_the_text_is_cut_does_not_matter(
            parts in prop::collection::vec(prop::sample::select(vec![
                "<think>", "</think>", "\n", " ", "é", "text", "<", "</", "<tool_call>", "</tool_call>",
                "{\"name\": \"f\", \"arguments\": {}}",
            ]), 0..12),
            cuts in prop::collection::vec(0usize..120, 0..8),
            in_think: bool,
            reads_calls: bool,
        ) {
            let text = parts.concat();
            let cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            prop_assert_eq!(
                parse(&text, &cuts, in_think, reads_calls),
                parse(&text, &[], in_think, reads_calls)
            );
        }
    }
}
