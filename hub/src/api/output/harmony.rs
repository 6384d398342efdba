//! Parses GPT-OSS's messages (<https://cookbook.openai.com/articles/openai-harmony>): each has a header with its
//! channel, and with its recipient if that is a tool.
//!
//! ```text
//! <|channel|>analysis<|message|>…<|end|>
//! <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>
//! <|start|>assistant<|channel|>final<|message|>…<|return|>
//! ```
//!
//! The prompt ends with `<|start|>assistant`. The last tag ends the answer, so it is usually not in the text.

use serde_json::value::RawValue;

use super::{Piece, ToolCall, give};

const MESSAGE: &str = "<|message|>";
const CHANNEL: &str = "<|channel|>";
/// Possible beginnings of an answer with a header.
const BEGINNINGS: [&str; 3] = [CHANNEL, "<|start|>", " to="];
/// Tags that end a message, including the start of the next one.
const ENDS: [&str; 4] = ["<|end|>", "<|return|>", "<|call|>", "<|start|>"];

/// The parser.
#[derive(Debug)]
pub(in crate::api) struct Harmony {
    reads_calls: bool,
    mode: Mode,
    /// Text held back.
    held: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Mode {
    /// Before any text.
    Start,
    /// Before `<|message|>`.
    Header,
    /// The channel "analysis".
    Reasoning,
    /// The channel "final", or "commentary" to the user.
    Content,
    /// A message to the tool of this name.
    Call(String),
}

impl Harmony {
    pub(super) fn new(reads_calls: bool) -> Self {
        Self { reads_calls, mode: Mode::Start, held: String::new() }
    }

    /// Adds text and returns the pieces that are certain.
    pub(super) fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        while self.step(&mut pieces) {}
        pieces
    }

    /// Ends the answer and returns the text held back. A truncated header is dropped.
    pub(super) fn finish(&mut self) -> Vec<Piece> {
        let rest = std::mem::take(&mut self.held);
        let mut pieces = Vec::new();
        self.give(&mut pieces, rest);
        pieces
    }

    /// One transition; false when more text is needed.
    fn step(&mut self, pieces: &mut Vec<Piece>) -> bool {
        match &self.mode {
            Mode::Start => {
                let begins = BEGINNINGS.iter().any(|tag| self.held.starts_with(tag));
                let may_begin = BEGINNINGS.iter().any(|tag| tag.starts_with(&self.held));
                self.mode = match begins {
                    true => Mode::Header,
                    false if may_begin => return false,
                    false => Mode::Content,
                };
                true
            }
            Mode::Header => match self.held.split_once(MESSAGE) {
                None => false,
                Some((header, rest)) => {
                    self.mode = self.mode_of(header);
                    self.held = rest.to_owned();
                    true
                }
            },
            Mode::Reasoning | Mode::Content | Mode::Call(_) => {
                let end = ENDS.iter().filter_map(|tag| Some((self.held.find(tag)?, tag.len()))).min();
                match end {
                    Some((at, length)) => {
                        let rest = self.held.split_off(at + length);
                        let mut text = std::mem::replace(&mut self.held, rest);
                        text.truncate(at);
                        self.give(pieces, text);
                        self.mode = Mode::Header;
                        true
                    }
                    None if matches!(self.mode, Mode::Call(_)) => false,
                    None => {
                        let rest = self.held.split_off(self.held.len() - self.n_uncertain());
                        let text = std::mem::replace(&mut self.held, rest);
                        self.give(pieces, text);
                        false
                    }
                }
            }
        }
    }

    /// Mode after a header.
    fn mode_of(&self, header: &str) -> Mode {
        let channel = header.split_once(CHANNEL).map_or("", |(_, after)| after);
        let channel = channel.split(|c: char| c.is_whitespace() || c == '<').next().unwrap_or_default();
        let to = header.split_once("to=functions.").map(|(_, after)| after);
        let name = to.and_then(|to| to.split(|c: char| c.is_whitespace() || c == '<').next());
        match (channel, name) {
            (_, Some(name)) if self.reads_calls && !name.is_empty() => Mode::Call(name.to_owned()),
            ("analysis", _) => Mode::Reasoning,
            _ => Mode::Content,
        }
    }

    /// Emits part of a message, or a whole call.
    fn give(&self, pieces: &mut Vec<Piece>, text: String) {
        let piece = match &self.mode {
            Mode::Start | Mode::Header => return,
            Mode::Reasoning => Piece::Reasoning(text),
            Mode::Content => Piece::Content(text),
            Mode::Call(name) => match serde_json::from_str::<&RawValue>(text.trim()) {
                Ok(object) if object.get().starts_with('{') => {
                    Piece::Call(ToolCall { name: name.clone(), arguments: object.get().to_owned() })
                }
                _ => Piece::Content(text),
            },
        };
        give(pieces, piece);
    }

    /// Bytes at the end that may be the beginning of a tag.
    fn n_uncertain(&self) -> usize {
        let of = |tag: &str| (1..tag.len()).rev().find(|&n| self.held.ends_with(&tag[..n])).unwrap_or(0);
        ENDS.iter().map(|tag| of(tag)).max().unwrap_or(0)
    }
}
