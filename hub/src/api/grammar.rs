//! Constrains answers to a JSON schema, and tool calls to the tools' schemas, with a llguidance grammar per request.
//!
//! A schema that llguidance does not support is refused with llguidance's message, so that no client takes an
//! unconstrained answer for a constrained one.

mod calls;
mod check;

pub use check::check as check_grammar;

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use moex_engine::sampler::{Constraint, Grammar};
use moex_model::text::{CallForm, Special, Tags, Text};
use serde_json::{Value, json};

use super::error::ApiError;
use super::request::{ChatRequest, Format, ToolChoice};

/// Maximum bytes of a grammar: a schema of hundreds of fields has some ten thousand.
const MAX_GRAMMAR_BYTES: usize = 256 << 10;

/// Grammars cached for later requests with the same schema or tools, most recent first.
const MAX_KEPT: usize = 16;
/// Bytes that they may have taken when they were compiled, all together.
const MAX_KEPT_BYTES: usize = 64 << 20;

/// White space within JSON: enough for indentation, and bounded.
const WHITE_SPACE: &str = r"( |\r?\n[ \t]{0,20})";

/// Whether an answer begins inside its thinking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Thinking {
    /// Inside: the prompt opened it.
    Open,
    /// The answer may begin with thinking.
    Possible,
    /// The answer has no thinking.
    Over,
}

/// Compiles grammars: holds the vocabulary as a trie, built on first use, and a cache of compiled grammars.
#[derive(Default)]
pub(super) struct Grammars {
    factory: OnceLock<Result<Arc<ParserFactory>, String>>,
    /// The `moex` binary, which checks each grammar first; without it, none is checked.
    checker: Option<PathBuf>,
    /// Most recently used first.
    kept: Mutex<VecDeque<(Source, Arc<JsonGrammar>)>>,
}

/// A grammar's source, and the field that asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    lark: String,
    param: &'static str,
}

/// Returns the source of the grammar that a request asks for, if any.
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
    let never_ends = [(request.ignore_eos, "ignore_eos"), (request.min_tokens > 0, "min_tokens")];
    if let Some((_, field)) = never_ends.into_iter().find(|(is_asked, _)| *is_asked) {
        return Err(ApiError::invalid(
            field,
            format!(
                "\"{field}\" cannot be used with \"{param}\": a constrained answer ends where its grammar ends."
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
        // True allows any value; llguidance refuses false, which allows none.
        Value::Bool(true) => json!({}),
        other => json!({ "allOf": [other] }),
    };
    schema["x-guidance"] = options;
    schema.to_string()
}

/// A string literal in Lark, which is the same as in JSON.
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
    pub(super) fn new(checker: Option<PathBuf>) -> Self {
        Self { checker, ..Self::default() }
    }

    /// The cached grammar of a source, if there is one.
    pub(super) fn kept(&self, source: &Source) -> Option<Arc<dyn Grammar>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(made_of, _)| made_of == source)?;
        let found = kept.remove(at).filter(|(_, grammar)| !grammar.is_broken.load(Relaxed))?;
        let grammar = found.1.clone();
        kept.push_front(found);
        Some(grammar)
    }

    /// Compiles the grammar of a source, in milliseconds, and caches it.
    pub(super) fn compile(&self, text: &Text, source: Source) -> Result<Arc<dyn Grammar>, ApiError> {
        let grammar = Arc::new(self.make(text, &source)?);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(made_of, _)| *made_of != source);
        kept.push_front((source, grammar.clone()));
        kept.truncate(MAX_KEPT);
        // The one of this request is kept in any case, by the request.
        while kept.iter().map(|(_, grammar)| grammar.n_bytes).sum::<usize>() > MAX_KEPT_BYTES {
            kept.pop_back();
        }
        Ok(grammar)
    }

    fn make(&self, text: &Text, source: &Source) -> Result<JsonGrammar, ApiError> {
        let factory = self.factory.get_or_init(|| factory(text)).as_ref();
        let factory =
            factory.map_err(|why| ApiError::internal(format!("Grammars cannot be enforced: {why}.")))?;
        let checked = self.checker.as_ref().map_or(Ok(()), |program| check::checked(program, &source.lark));
        let (matcher, n_bytes) =
            checked.and_then(|()| check::compiled(factory, source.lark.clone())).map_err(|why| {
                let param = source.param;
                ApiError::invalid(param, format!("The schema in \"{param}\" cannot be enforced: {why}."))
            })?;
        Ok(JsonGrammar { beginning: Mutex::new(matcher), n_bytes, is_broken: Arc::default() })
    }
}

/// An error of llguidance as part of a sentence, without its dumps and line numbers.
fn one_line(why: &str) -> String {
    const MAX_CHARS: usize = 300;
    let line = why.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let line = line.split_once("failed to compile JSON schema: ").map_or(line, |(_, what)| what);
    line.trim().trim_end_matches(['.', ':']).chars().take(MAX_CHARS).collect()
}

fn factory(text: &Text) -> Result<Arc<ParserFactory>, String> {
    let n_ids = u32::try_from(text.tokenizer.n_ids()).unwrap_or(u32::MAX);
    let word = |id| match (text.tokenizer.bytes(id, Special::Skip), text.tokenizer.bytes(id, Special::Keep)) {
        // A special token is never matched as text.
        ([], written @ [_, ..]) => [&[TokTrie::SPECIAL_TOKEN_MARKER], written].concat(),
        (bytes, _) => bytes.to_vec(),
    };
    factory_of(&(0..n_ids).map(word).collect::<Vec<_>>(), &text.eos).map(Arc::new)
}

/// A factory of grammars for a vocabulary, of which the tokens `eos` end a text.
fn factory_of(words: &[Vec<u8>], eos: &[u32]) -> Result<ParserFactory, String> {
    let (Some(first), n_words) = (eos.first(), u32::try_from(words.len()).unwrap_or(u32::MAX)) else {
        return Err("the model has no token that ends a text".to_owned());
    };
    if eos.iter().any(|id| *id >= n_words) {
        return Err("a token that ends a text is not in the vocabulary".to_owned());
    }
    let trie = TokTrie::from(&TokRxInfo::new(n_words, *first), words).with_eos_tokens(eos);
    let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let slices = llguidance::earley::SlicedBiasComputer::json_slices();
    let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
        .map_err(|error| one_line(&error.to_string()))?;
    factory.quiet();
    factory.limits_mut().verbose_errors = false;
    Ok(factory)
}

/// A compiled grammar at its start. Sequences share its lazily built state, so it is built once.
struct JsonGrammar {
    beginning: Mutex<Matcher>,
    /// Bytes that compiling it has taken.
    n_bytes: usize,
    /// Whether a sequence failed, perhaps in the shared state: later ones compile afresh.
    is_broken: Arc<AtomicBool>,
}

impl fmt::Debug for JsonGrammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JsonGrammar")
    }
}

impl Grammar for JsonGrammar {
    fn begin(&self) -> Box<dyn Constraint> {
        // A matcher that panicked returns an error itself.
        let beginning = self.beginning.lock().unwrap_or_else(PoisonError::into_inner);
        Box::new(Position { matcher: beginning.clone(), is_broken: self.is_broken.clone() })
    }
}

/// A sequence's position in its grammar.
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
        // One bit per token, lowest first.
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
        let get = |n| grammars.kept(&source(n)).map_or_else(|| grammars.compile(&text, source(n)), Ok);
        let kept = || -> Vec<(Source, Arc<JsonGrammar>)> { grammars.kept.lock().unwrap().clone().into() };
        for n in (0..MAX_KEPT + 3).chain([5]) {
            get(n).unwrap();
        }
        assert_eq!((kept().len(), &kept()[0].0, &kept()[1].0), (MAX_KEPT, &source(5), &source(MAX_KEPT + 2)));
        assert!(kept().iter().all(|(made_of, _)| *made_of != source(0)));

        let first = kept()[0].1.clone();
        get(5).unwrap();
        assert!(Arc::ptr_eq(&first, &kept()[0].1), "it is the one made before");
        let mut position = first.begin();
        assert!(position.accept(text.tokenizer.encode("6").unwrap()[0]).is_err());
        get(5).unwrap();
        assert!(!Arc::ptr_eq(&first, &kept()[0].1), "its text came to grief");
        assert_eq!(kept().len(), MAX_KEPT);
    }

    #[test]
    fn only_what_the_grammar_allows_keeps_its_logit() {
        let text = Text::load(&Checkpoint::demo().unwrap()).unwrap();
        let grammars = Grammars::default();
        let source = Source { lark: "start: \"6\" | \"7\"".to_owned(), param: "response_format" };
        let mut position = grammars.compile(&text, source).unwrap().begin();
        // Rows of logits may be longer than the vocabulary.
        let mut logits = vec![1.0; text.tokenizer.n_ids() + 40];
        position.allow(&mut logits).unwrap();
        let allowed: Vec<usize> = (0..logits.len()).filter(|token| logits[*token] == 1.0).collect();
        let digit = |digit: &str| text.tokenizer.encode(digit).unwrap()[0] as usize;
        assert_eq!(allowed, [digit("6"), digit("7")]);
        assert!(logits.iter().all(|logit| *logit == 1.0 || *logit == f32::NEG_INFINITY));
    }
}
