//! Reasoning and calls between tags: `<think>…</think>` first, and each call as `<tool_call>{"name", "arguments"}</tool_call>`
//! or in DeepSeek's form.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Piece, ToolCall, give, is_empty};
use moex_model::text::{CallForm, Tags};

/// The parser.
#[derive(Debug)]
pub(in crate::api) struct Tagged {
    tags: Tags,
    reads_calls: bool,
    mode: Mode,
    /// Text held back.
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Only white space so far: `<think>` may follow.
    Start,
    Thinking {
        begun: bool,
    },
    Content {
        begun: bool,
    },
    /// Between the calls of a list.
    Calls,
    Call,
}

impl Tagged {
    /// See [`OutputParser::new`](super::OutputParser::new).
    pub(super) fn new(tags: Tags, in_think: bool, reads_calls: bool) -> Self {
        let mode = if in_think { Mode::Thinking { begun: false } } else { Mode::Start };
        Self { tags, reads_calls, mode, held: String::new() }
    }

    /// Adds text and returns the pieces that are certain.
    pub(super) fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        while self.step(&mut pieces) {}
        pieces
    }

    /// Ends the answer and returns the text held back.
    pub(super) fn finish(&mut self) -> Vec<Piece> {
        let rest = std::mem::take(&mut self.held);
        let piece = match self.mode {
            Mode::Thinking { .. } => Piece::Reasoning(rest.trim_end().to_owned()),
            Mode::Start | Mode::Content { .. } => Piece::Content(rest),
            Mode::Calls => Piece::Content(rest.trim().to_owned()),
            Mode::Call => self.call_or_text(&rest, ""),
        };
        if is_empty(&piece) { Vec::new() } else { vec![piece] }
    }

    /// One transition; false when more text is needed.
    fn step(&mut self, pieces: &mut Vec<Piece>) -> bool {
        let Tags { reasoning: [think, think_end], call: [call, call_end], form } = self.tags;
        let before = (self.mode, self.held.len());
        match self.mode {
            Mode::Start => {
                let text = self.held.trim_start();
                if let Some(rest) = text.strip_prefix(think) {
                    self.held = rest.to_owned();
                    self.mode = Mode::Thinking { begun: false };
                } else if !think.starts_with(text) {
                    self.mode = Mode::Content { begun: true };
                }
            }
            Mode::Thinking { begun } => {
                let begun = begun || self.drop_leading_space();
                self.mode = Mode::Thinking { begun };
                if let Some(inside) = self.take_through(think_end) {
                    give(pieces, Piece::Reasoning(inside.trim_end().to_owned()));
                    self.mode = Mode::Content { begun: false };
                } else {
                    give(pieces, Piece::Reasoning(self.take_certain(think_end)));
                }
            }
            Mode::Content { begun } => {
                let begun = begun || self.drop_leading_space();
                self.mode = Mode::Content { begun };
                if !self.reads_calls {
                    give(pieces, Piece::Content(std::mem::take(&mut self.held)));
                } else if let Some(text) = self.take_through(self.tags.opening()) {
                    give(pieces, Piece::Content(text.trim_end().to_owned()));
                    self.mode = self.behind_opening();
                } else {
                    give(pieces, Piece::Content(self.take_certain(self.tags.opening())));
                }
            }
            Mode::Calls => {
                let CallForm::Separated { list: [_, list_end], .. } = form else { return false };
                let text = self.held.trim_start();
                if let Some(rest) = text.strip_prefix(call) {
                    self.held = rest.to_owned();
                    self.mode = Mode::Call;
                } else if let Some(rest) = text.strip_prefix(list_end) {
                    self.held = rest.to_owned();
                    self.mode = Mode::Content { begun: false };
                } else if !call.starts_with(text) && !list_end.starts_with(text) {
                    self.mode = Mode::Content { begun: true };
                }
            }
            Mode::Call => {
                if let Some(at) = end_of_call(&self.held, call_end) {
                    let inside = self.take_before(at, call_end);
                    let piece = self.call_or_text(&inside, call_end);
                    // White space between calls is the model's layout; after text it is text.
                    self.mode = match (&piece, form) {
                        (Piece::Call(_), CallForm::Separated { .. }) => Mode::Calls,
                        (Piece::Call(_), CallForm::Json) => Mode::Content { begun: false },
                        _ => Mode::Content { begun: true },
                    };
                    give(pieces, piece);
                }
            }
        }
        (self.mode, self.held.len()) != before
    }

    fn behind_opening(&self) -> Mode {
        match self.tags.form {
            CallForm::Json => Mode::Call,
            CallForm::Separated { .. } => Mode::Calls,
        }
    }

    /// Drops white space in front; true once something else is there.
    fn drop_leading_space(&mut self) -> bool {
        self.held = self.held.trim_start().to_owned();
        !self.held.is_empty()
    }

    /// Removes and returns the text before `tag`, with the tag, if the tag is present.
    fn take_through(&mut self, tag: &str) -> Option<String> {
        let at = self.held.find(tag)?;
        Some(self.take_before(at, tag))
    }

    /// Removes and returns the text before the `tag` at `at`, with the tag.
    fn take_before(&mut self, at: usize, tag: &str) -> String {
        let rest = self.held.split_off(at + tag.len());
        let mut before = std::mem::replace(&mut self.held, rest);
        before.truncate(at);
        before
    }

    /// Removes and returns text that cannot be part of `tag` or of white space before it.
    fn take_certain(&mut self, tag: &str) -> String {
        let is_partial = |n: &usize| tag.get(..*n).is_some_and(|part| self.held.ends_with(part));
        let partial = (1..tag.len()).rev().find(is_partial).unwrap_or(0);
        let before_tag = &self.held[..self.held.len() - partial];
        let rest = self.held.split_off(before_tag.trim_end().len());
        std::mem::replace(&mut self.held, rest)
    }

    /// The call in `inside`, or the text as the model wrote it if that is not a valid call.
    fn call_or_text(&self, inside: &str, end: &str) -> Piece {
        let call = match self.tags.form {
            CallForm::Json => parse_json(inside),
            CallForm::Separated { separator, .. } => parse_separated(inside, separator),
        };
        match call {
            Some(call) => Piece::Call(call),
            None => Piece::Content(format!("{}{inside}{end}", self.tags.call[0])),
        }
    }
}

/// Where the tag is that ends a call: not within a string of its JSON, which may hold any text but a line break.
fn end_of_call(text: &str, tag: &str) -> Option<usize> {
    let (mut is_string, mut is_escaped) = (false, false);
    for (at, c) in text.char_indices() {
        if !is_string && text[at..].starts_with(tag) {
            return Some(at);
        }
        match c {
            '\n' => (is_string, is_escaped) = (false, false),
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = is_string,
            '"' => is_string = !is_string,
            _ => {}
        }
    }
    None
}

fn parse_json(text: &str) -> Option<ToolCall> {
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
        // Some models write the object into a string, as the API itself does.
        Some(other) => serde_json::from_str::<String>(other).ok()?,
    };
    Some(ToolCall { name: written.name, arguments })
}

fn parse_separated(text: &str, separator: &str) -> Option<ToolCall> {
    let (before, behind) = text.split_once(separator)?;
    let (name, arguments) = match behind.split_once("```json") {
        Some((name, code)) => (name, code.trim_end().strip_suffix("```")?),
        None => (before, behind),
    };
    let (name, arguments) = (name.trim(), arguments.trim());
    let is_object = arguments.starts_with('{') && serde_json::from_str::<&RawValue>(arguments).is_ok();
    (is_object && !name.is_empty())
        .then(|| ToolCall { name: name.to_owned(), arguments: arguments.to_owned() })
}
