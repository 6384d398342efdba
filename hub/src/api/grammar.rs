//! Answers held to a JSON schema, and calls of tools to the tools' own: a grammar for each request, by llguidance.
//!
//! A schema with what llguidance does not have is refused with its words, so that no answer is taken for one that keeps to it.

mod calls;

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use moex_engine::sampler::{Constraint, Grammar};
use moex_model::text::{CallForm, Special, Tags, Text};
use serde_json::{Value, json};

use super::error::ApiError;
use super::request::{ChatRequest, Format, ToolChoice};

/// The longest grammar, in bytes: a schema of hundreds of fields has some ten thousand.
const MAX_GRAMMAR_BYTES: usize = 256 << 10;

/// Grammars that are kept for the next request with the same schema or tools: those used last.
const MAX_KEPT: usize = 16;

/// White space within JSON: enough for one that is indented, and never without end.
const WHITE_SPACE: &str = r"( |\r?\n[ \t]{0,20})";

/// Where an answer stands in its thinking when it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Thinking {
    /// In the midst of it.
    Open,
    /// It may begin with it.
    Possible,
    /// It comes without.
    Over,
}

/// What grammars are made with, the vocabulary as a tree, built when the first is asked for; and some that were made.
#[derive(Default)]
pub(super) struct Grammars {
    factory: OnceLock<Result<ParserFactory, String>>,
    /// Used last first.
    kept: Mutex<VecDeque<(Source, Arc<JsonGrammar>)>>,
}

/// A grammar, and the field that asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    lark: String,
    param: &'static str,
}

/// The grammar that a request asks for, if any.
pub(super) fn source(
    request: &ChatRequest,
    thinking: Thinking,
    tags: Tags,
) -> Result<Option<Source>, ApiError> {
    let [think, think_end] = tags.reasoning;
    let json_body = |schema: &Value| format!("answer: %json {}\n", schema_source(schema));
    let format = match &request.format {
        Format::Text => None,
        Format::JsonObject => Some(json_body(&json!({ "type": "object" }))),
        Format::JsonSchema(schema) => Some(json_body(schema)),
    };
    let tools = request.tools.as_slice();
    let is_strict = tools.iter().any(|tool| tool.pointer("/function/strict") == Some(&Value::Bool(true)));
    let calls = match &request.tool_choice {
        _ if tools.is_empty() => None,
        ToolChoice::Auto if format.is_none() && !is_strict && request.parallel_tool_calls => None,
        ToolChoice::None => None,
        _ => Some(calls::rules(request, tags)),
    };
    let (body, param) = match (format, calls) {
        (None, None) => return Ok(None),
        (Some(format), None) => (format!("body: answer\n{format}"), "response_format"),
        (Some(format), Some(calls)) if request.tool_choice == ToolChoice::Auto => {
            (format!("body: answer | calls\n{format}{calls}"), "response_format")
        }
        (_, Some(calls)) if request.tool_choice == ToolChoice::Auto => {
            // Text as the model likes it, until it begins to call.
            let opening = tags.opening();
            let tag = regex_escape(opening);
            let body = match (request.parallel_tool_calls, tags.form) {
                (true, CallForm::Json) => "(before call_rest)* TEXT",
                (true, CallForm::Separated { .. }) => "TEXT | before calls_rest",
                (false, _) => "TEXT | before call_rest",
            };
            let text = format!(
                "before[suffix={}]: /(?s:.*)/\nTEXT: /(?s:.*)/ & ~/(?s:.*){tag}(?s:.*)/\n",
                quoted(opening)
            );
            (format!("body: {body}\n{text}{calls}"), "tools")
        }
        (_, Some(calls)) => (format!("body: calls\n{calls}"), "tools"),
    };
    if request.ignore_eos {
        return Err(ApiError::invalid(
            "ignore_eos",
            format!(
                "\"ignore_eos\" cannot be used with \"{param}\": an answer that keeps to a grammar ends with it."
            ),
        ));
    }
    if request.continue_final_message {
        return Err(ApiError::unsupported(
            "continue_final_message",
            format!("\"continue_final_message\" cannot be used with \"{param}\": leave one of them out."),
        ));
    }
    let start = match thinking {
        Thinking::Open => "start: thought BREAK? body\n".to_owned(),
        Thinking::Possible => format!("start: ({} thought BREAK?)? body\n", quoted(think)),
        Thinking::Over => "start: body\n".to_owned(),
    };
    let thought = match thinking {
        Thinking::Over => String::new(),
        _ => format!("thought[suffix={}]: /(?s:.*)/\nBREAK: /\\n{{1,2}}/\n", quoted(think_end)),
    };
    let lark = format!("{start}{thought}{body}");
    if lark.len() > MAX_GRAMMAR_BYTES {
        return Err(ApiError::invalid(
            param,
            format!("The schemas in \"{param}\" are too long: {MAX_GRAMMAR_BYTES} bytes are the most."),
        ));
    }
    Ok(Some(Source { lark, param }))
}

/// The schema, with white space as it is allowed here.
fn schema_source(schema: &Value) -> String {
    let options = json!({ "whitespace_pattern": WHITE_SPACE });
    let mut schema = match schema {
        Value::Object(_) => schema.clone(),
        // True is any value; false, none, is refused by llguidance.
        Value::Bool(true) => json!({}),
        other => json!({ "allOf": [other] }),
    };
    schema["x-guidance"] = options;
    schema.to_string()
}

/// A string as Lark writes it, which is as JSON does.
fn quoted(text: &str) -> String {
    json!(text).to_string()
}

fn regex_escape(text: &str) -> String {
    text.chars()
        .map(|c| {
            // What is not ASCII means nothing in a regex, and may not be escaped there.
            if c.is_ascii_punctuation() && !matches!(c, '_' | '<' | '>') {
                format!("\\{c}")
            } else {
                c.to_string()
            }
        })
        .collect()
}

impl Grammars {
    /// The grammar of a source: one that was made before, or a new one, in milliseconds.
    pub(super) fn compile(&self, text: &Text, source: &Source) -> Result<Arc<dyn Grammar>, ApiError> {
        let kept = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let found = {
            let mut kept = kept();
            let at = kept.iter().position(|(made_of, _)| made_of == source);
            at.and_then(|at| kept.remove(at)).map(|(_, grammar)| grammar)
        };
        let grammar = match found.filter(|grammar| !grammar.is_broken.load(Relaxed)) {
            Some(grammar) => grammar,
            None => Arc::new(self.make(text, source)?),
        };
        let mut kept = kept();
        kept.push_front((source.clone(), grammar.clone()));
        kept.truncate(MAX_KEPT);
        Ok(grammar)
    }

    fn make(&self, text: &Text, source: &Source) -> Result<JsonGrammar, ApiError> {
        let factory = self.factory.get_or_init(|| factory(text)).as_ref();
        let factory =
            factory.map_err(|why| ApiError::internal(format!("No grammar can be kept to: {why}.")))?;
        let mut matcher =
            Matcher::new(factory.create_parser(TopLevelGrammar::from_lark(source.lark.clone())));
        // Also finds what only shows at the first step, and warms what all texts share.
        let first = matcher.compute_mask();
        if let Some(why) = matcher.get_error().or(first.err().map(|error| error.to_string())) {
            let param = source.param;
            return Err(ApiError::invalid(
                param,
                format!("The schema in \"{param}\" cannot be kept to: {}.", one_line(&why)),
            ));
        }
        Ok(JsonGrammar { beginning: Mutex::new(matcher), is_broken: Arc::default() })
    }
}

/// An error of llguidance without its dumps and its own line numbers, as part of a sentence.
fn one_line(why: &str) -> String {
    const MAX_CHARS: usize = 300;
    let line = why.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let line = line.split_once("failed to compile JSON schema: ").map_or(line, |(_, what)| what);
    line.trim().trim_end_matches(['.', ':']).chars().take(MAX_CHARS).collect()
}

fn factory(text: &Text) -> Result<ParserFactory, String> {
    let n_ids = text.tokenizer.n_ids();
    let words: Vec<Vec<u8>> = (0..u32::try_from(n_ids).unwrap_or(u32::MAX))
        .map(|id| match (text.tokenizer.bytes(id, Special::Skip), text.tokenizer.bytes(id, Special::Keep)) {
            // A special token is no text, however it is written.
            ([], written @ [_, ..]) => [&[TokTrie::SPECIAL_TOKEN_MARKER], written].concat(),
            (bytes, _) => bytes.to_vec(),
        })
        .collect();
    let (Some(first), n_words) = (text.eos.first(), u32::try_from(words.len()).unwrap_or(u32::MAX)) else {
        return Err("the model has no token that ends a text".to_owned());
    };
    if text.eos.iter().any(|id| *id >= n_words) {
        return Err("a token that ends a text is not in the vocabulary".to_owned());
    }
    let trie = TokTrie::from(&TokRxInfo::new(n_words, *first), &words).with_eos_tokens(&text.eos);
    let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let slices = llguidance::earley::SlicedBiasComputer::json_slices();
    let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
        .map_err(|error| one_line(&error.to_string()))?;
    factory.quiet();
    factory.limits_mut().verbose_errors = false;
    Ok(factory)
}

/// A grammar at its beginning. What its texts find out about it is common to all of them, so that it is found out once.
struct JsonGrammar {
    beginning: Mutex<Matcher>,
    /// Whether one of them came to grief, perhaps over what is common: others begin anew.
    is_broken: Arc<AtomicBool>,
}

impl fmt::Debug for JsonGrammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JsonGrammar")
    }
}

impl Grammar for JsonGrammar {
    fn begin(&self) -> Box<dyn Constraint> {
        // A matcher that a panic left behind says so itself.
        let beginning = self.beginning.lock().unwrap_or_else(PoisonError::into_inner);
        Box::new(Position { matcher: beginning.clone(), is_broken: self.is_broken.clone() })
    }
}

/// Where a text stands in its grammar.
struct Position {
    matcher: Matcher,
    is_broken: Arc<AtomicBool>,
}

impl fmt::Debug for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Position")
    }
}

impl Position {
    fn gives_up(&self, error: &impl fmt::Display) -> String {
        self.is_broken.store(true, Relaxed);
        one_line(&error.to_string())
    }
}

impl Constraint for Position {
    fn allow(&mut self, logits: &mut [f32]) -> Result<(), String> {
        let mask = self.matcher.compute_mask_or_eos().map_err(|error| self.gives_up(&error))?;
        // A bit a token, the lowest first.
        let words = mask.as_slice().iter().copied().chain(std::iter::repeat(0));
        for (word, logits) in words.zip(logits.chunks_mut(u32::BITS as usize)) {
            if word == u32::MAX {
                continue;
            }
            for (bit, logit) in logits.iter_mut().enumerate() {
                if word >> bit & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        if self.matcher.is_stopped() && !self.matcher.is_error() {
            return Ok(());
        }
        self.matcher.consume_token(token).map_err(|error| self.gives_up(&error))
    }
}

#[cfg(test)]
mod tests {
    use moex_model::Checkpoint;

    use super::*;

    #[test]
    fn grammars_used_last_are_kept_and_broken_ones_are_not() {
        let text = Text::load(&Checkpoint::demo().unwrap()).unwrap();
        let source = |n: usize| Source { lark: format!("start: \"{n}\""), param: "response_format" };
        let grammars = Grammars::default();
        let kept = || -> Vec<(Source, Arc<JsonGrammar>)> { grammars.kept.lock().unwrap().clone().into() };
        for n in (0..MAX_KEPT + 3).chain([5]) {
            grammars.compile(&text, &source(n)).unwrap();
        }
        assert_eq!((kept().len(), &kept()[0].0, &kept()[1].0), (MAX_KEPT, &source(5), &source(MAX_KEPT + 2)));
        assert!(kept().iter().all(|(made_of, _)| *made_of != source(0)));

        let first = kept()[0].1.clone();
        grammars.compile(&text, &source(5)).unwrap();
        assert!(Arc::ptr_eq(&first, &kept()[0].1), "it is the one made before");
        let mut position = first.begin();
        assert!(position.accept(text.tokenizer.encode("6").unwrap()[0]).is_err());
        grammars.compile(&text, &source(5)).unwrap();
        assert!(!Arc::ptr_eq(&first, &kept()[0].1), "its text came to grief");
        assert_eq!(kept().len(), MAX_KEPT);
    }

    #[test]
    fn only_what_the_grammar_allows_keeps_its_logit() {
        let text = Text::load(&Checkpoint::demo().unwrap()).unwrap();
        let grammars = Grammars::default();
        let source = Source { lark: "start: \"6\" | \"7\"".to_owned(), param: "response_format" };
        let mut position = grammars.compile(&text, &source).unwrap().begin();
        // Rows of logits may be longer than the vocabulary.
        let mut logits = vec![1.0; text.tokenizer.n_ids() + 40];
        position.allow(&mut logits).unwrap();
        let allowed: Vec<usize> = (0..logits.len()).filter(|token| logits[*token] == 1.0).collect();
        let digit = |digit: &str| text.tokenizer.encode(digit).unwrap()[0] as usize;
        assert_eq!(allowed, [digit("6"), digit("7")]);
        assert!(logits.iter().all(|logit| *logit == 1.0 || *logit == f32::NEG_INFINITY));
    }
}
