//! Splits a model's text, as it arrives, into reasoning, content and tool calls.
//!
//! The model family's [`OutputFormat`] selects the parser. Streamed and whole answers are both built from these pieces,
//! so they cannot differ.

mod harmony;
mod tagged;

use moex_model::text::OutputFormat;

use self::{harmony::Harmony, tagged::Tagged};

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// The model's thinking before its answer.
    Reasoning(String),
    /// The answer itself.
    Content(String),
    /// A complete tool call.
    Call(ToolCall),
}

/// A tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ToolCall {
    /// Name of the tool.
    pub(super) name: String,
    /// Arguments as JSON in the model's own spelling, so that a history tokenises as the model wrote it.
    pub(super) arguments: String,
}

/// Turns text into [`Piece`]s: call [`push`](Self::push) for each part of the text, then [`finish`](Self::finish).
///
/// Text that may be the beginning of a tag is held back until it is certain, at most until the answer ends.
#[derive(Debug)]
pub(super) enum OutputParser {
    /// All text is content.
    Text,
    Tagged(Tagged),
    Harmony(Harmony),
}

impl OutputParser {
    /// `in_think`: the prompt ends with `<think>`. `reads_calls`: tools were offered; otherwise calls are plain text.
    pub(super) fn new(format: OutputFormat, in_think: bool, reads_calls: bool) -> Self {
        match format {
            OutputFormat::Tagged(tags) => Self::Tagged(Tagged::new(tags, in_think, reads_calls)),
            OutputFormat::Harmony => Self::Harmony(Harmony::new(reads_calls)),
            // If a template opens `<think>`, its model closes it, whatever others of the family do.
            OutputFormat::Text if in_think => Self::Tagged(Tagged::new(OutputFormat::TAGS, true, false)),
            OutputFormat::Text => Self::Text,
        }
    }

    /// Adds text and returns the pieces that are certain.
    pub(super) fn push(&mut self, text: &str) -> Vec<Piece> {
        match self {
            Self::Text => {
                [Piece::Content(text.to_owned())].into_iter().filter(|piece| !is_empty(piece)).collect()
            }
            Self::Tagged(parser) => parser.push(text),
            Self::Harmony(parser) => parser.push(text),
        }
    }

    /// Ends the answer and returns the text held back.
    pub(super) fn finish(&mut self) -> Vec<Piece> {
        match self {
            Self::Text => Vec::new(),
            Self::Tagged(parser) => parser.finish(),
            Self::Harmony(parser) => parser.finish(),
        }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All pieces, neighbours of a kind joined, for the text cut at `cuts`.
    fn parse(text: &str, cuts: &[usize], in_think: bool, reads_calls: bool) -> Vec<Piece> {
        parse_as(OutputFormat::Tagged(OutputFormat::TAGS), text, cuts, (in_think, reads_calls))
    }

    fn parse_as(
        format: OutputFormat,
        text: &str,
        cuts: &[usize],
        (in_think, reads_calls): (bool, bool),
    ) -> Vec<Piece> {
        let mut parser = OutputParser::new(format, in_think, reads_calls);
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
            (
                "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"\\\"</tool_call>\"}}</tool_call>",
                false,
                true,
                vec![call("f", "{\"a\": \"\\\"</tool_call>\"}")],
            ),
            (
                "<tool_call>{\"name\n</tool_call> x",
                false,
                true,
                vec![content("<tool_call>{\"name\n</tool_call> x")],
            ),
            ("2 < 3 <tool", false, true, vec![content("2 < 3 <tool")]),
        ];
        for (text, in_think, reads_calls, expected) in cases {
            assert_eq!(parse(text, &[], in_think, reads_calls), expected, "{text:?}");
        }
        let two = format!("First. \n{WEATHER}\n{WEATHER}\n");
        assert_eq!(parse(&two, &[], false, true), vec![content("First."), weather.clone(), weather]);
    }

    #[test]
    fn deepseek_at_every_split() {
        let v3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Rome\"}\n```<｜tool▁call▁end｜>";
        let v31 = "<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Rome\"}<｜tool▁call▁end｜>";
        let list = |calls: &str| format!("<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>");
        let weather = call("get_weather", "{\"city\": \"Rome\"}");
        let broken = "<｜tool▁call▁begin｜>f<｜tool▁sep｜>oops<｜tool▁call▁end｜>";
        let cases: Vec<(String, bool, Vec<Piece>)> = vec![
            (list(v31), true, vec![weather.clone()]),
            (list(&format!("{v3}\n{v31}")), true, vec![weather.clone(), weather.clone()]),
            (
                format!("<think>so</think>I look.\n{} done", list(v3)),
                true,
                vec![reasoning("so"), content("I look."), weather.clone(), content("done")],
            ),
            (format!("<｜tool▁calls▁begin｜>{v31}"), true, vec![weather]),
            (list(v31), false, vec![content(&list(v31))]),
            (list(broken), true, vec![content(&format!("{broken}<｜tool▁calls▁end｜>"))]),
            ("a <｜tool".to_owned(), true, vec![content("a <｜tool")]),
        ];
        let format = OutputFormat::Tagged(OutputFormat::DEEPSEEK_TAGS);
        for (text, reads_calls, expected) in cases {
            let parsed = |cuts: &[usize]| parse_as(format, &text, cuts, (false, reads_calls));
            assert_eq!(parsed(&[]), expected, "{text:?}");
            for cut in 0..text.len() {
                assert_eq!(parsed(&[cut]), expected, "{text:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn without_a_form_everything_is_text() {
        for text in ["<think>so</think>2", WEATHER, "", "<|channel|>final<|message|>x"] {
            let expected: Vec<Piece> = (!text.is_empty()).then(|| content(text)).into_iter().collect();
            assert_eq!(parse_as(OutputFormat::Text, text, &[3, 9], (false, true)), expected);
        }
        let opened = parse_as(OutputFormat::Text, "so\n</think>\n2 <think>", &[], (true, true));
        assert_eq!(opened, vec![reasoning("so"), content("2 <think>")]);
    }

    #[test]
    fn harmony_at_every_split() {
        let think = "<|channel|>analysis<|message|>2 < 3 <|en\n é<|end|>";
        let answer = "<|start|>assistant<|channel|>final<|message|>Yes: <b>. ";
        let preamble = "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>";
        let arguments = "{\"city\": \"Rome\"}";
        let asks = format!(
            "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{arguments}"
        );
        let in_role = format!(
            "<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{arguments}"
        );
        let weather = call("get_weather", arguments);
        let thought = reasoning("2 < 3 <|en\n é");
        let cases: Vec<(String, bool, Vec<Piece>)> = vec![
            (format!("{think}{answer}"), false, vec![thought.clone(), content("Yes: <b>. ")]),
            (format!("{think}{answer}<|return|>"), true, vec![thought.clone(), content("Yes: <b>. ")]),
            (format!("{think}{asks}"), true, vec![thought.clone(), weather.clone()]),
            (
                format!("{think}{asks}<|call|>{in_role}<|call|>"),
                true,
                vec![thought.clone(), weather.clone(), weather.clone()],
            ),
            (format!("{think}{preamble}{asks}"), true, vec![thought.clone(), content("I look."), weather]),
            // Nobody offered a tool.
            (asks.clone(), false, vec![content(arguments)]),
            (asks.replace("}", ""), true, vec![content("{\"city\": \"Rome\"")]),
            // Cut off in a header, and in a tag.
            (format!("{think}<|start|>assistant<|chan"), true, vec![thought.clone()]),
            ("<|channel|>final<|message|>Yes<|en".to_owned(), true, vec![content("Yes<|en")]),
            // No header at all.
            ("Yes, <|x|>".to_owned(), true, vec![content("Yes, <|x|>")]),
            ("<|cha".to_owned(), true, vec![]),
            (String::new(), true, vec![]),
        ];
        for (text, reads_calls, expected) in cases {
            let parsed = |cuts: &[usize]| parse_as(OutputFormat::Harmony, &text, cuts, (false, reads_calls));
            assert_eq!(parsed(&[]), expected, "{text:?}");
            for cut in 0..text.len() {
                assert_eq!(parsed(&[cut]), expected, "{text:?} cut at {cut}");
            }
            assert_eq!(parsed(&(0..text.len()).collect::<Vec<_>>()), expected, "{text:?} byte by byte");
        }
    }

    proptest! {
        #[test]
        fn harmony_may_be_cut_anywhere(
            parts in prop::collection::vec(prop::sample::select(vec![
                "<|start|>", "assistant", "<|channel|>", "analysis", "final", "commentary", " to=functions.f ", "<|message|>",
                "<|end|>", "<|call|>", "<|", "é", "{}", "<|constrain|>json",
            ]), 0..16),
            cuts in prop::collection::vec(0usize..160, 0..8),
            reads_calls: bool,
        ) {
            let text = parts.concat();
            let cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            prop_assert_eq!(
                parse_as(OutputFormat::Harmony, &text, &cuts, (false, reads_calls)),
                parse_as(OutputFormat::Harmony, &text, &[], (false, reads_calls))
            );
        }

        #[test]
        fn where_the_text_is_cut_does_not_matter(
            parts in prop::collection::vec(prop::sample::select(vec![
                "<think>", "</think>", "\n", " ", "é", "text", "<", "</", "<tool_call>", "</tool_call>",
                "{\"name\": \"f\", \"arguments\": {}}", "\"", "\\",
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
