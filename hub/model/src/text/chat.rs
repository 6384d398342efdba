//! The checkpoint's chat template, rendered as transformers renders it.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use minijinja::{
    Environment, Error, ErrorKind, Value,
    syntax::SyntaxConfig,
    value::{Kwargs, Serde},
};
use serde_json::{Map, Value as Json};

use super::{MAX_TEXT_BYTES, TextError, clock, json, namespaces::Namespaces};
use crate::budget::{Stopped, within};

/// Maximum instructions of a template: a long conversation needs thousands, and an endless loop hits the limit.
const FUEL: u64 = 20_000_000;
/// Maximum bytes of a template; the longest in use has thirty thousand.
const MAX_TEMPLATE_BYTES: usize = 1 << 20;
/// Bytes that rendering a conversation may hold; the longest prompts take a tenth.
const MAX_HELD_BYTES: usize = 512 << 20;

const NAME: &str = "chat_template";

/// A compiled template.
pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    tokens: Vec<(&'static str, String)>,
    /// Whether it has exceeded its budget: each time costs a thread and what it holds.
    is_refused: AtomicBool,
}

/// Inputs of a template.
#[derive(Clone, Copy, Debug)]
pub struct ChatInput<'a> {
    /// The conversation: objects with `role`, `content` and whatever else the template reads.
    pub messages: &'a [Json],
    /// Tools in the API's format, if any.
    pub tools: Option<&'a [Json]>,
    /// Whether the prompt ends with the start of the assistant's message.
    pub generation_prompt: bool,
    /// Further variables, such as `enable_thinking`.
    pub variables: &'a Map<String, Json>,
    /// Seconds since 1970, for templates that write the date.
    pub unix_seconds: u64,
}

impl ChatTemplate {
    /// Compiles `source`; `tokens` are the tokenizer's special tokens by their names in its config.
    ///
    /// # Errors
    /// If the template is invalid, or takes too much memory or stack.
    pub fn new(source: String, tokens: Vec<(&'static str, String)>) -> Result<Self, TextError> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(TextError::Template(format!("{} bytes are too many", source.len())));
        }
        let environment = contained(move || compiled(source))?;
        Ok(Self { environment: Arc::new(environment), tokens, is_refused: AtomicBool::new(false) })
    }

    /// Renders the prompt.
    ///
    /// # Errors
    /// [`TextError::Refused`] with the template's message if it raises an exception, [`TextError::Template`] if it
    /// fails, if the prompt is longer than [`MAX_TEXT_BYTES`], or if it takes too much memory or stack, now or before.
    pub fn render(&self, input: &ChatInput<'_>) -> Result<String, TextError> {
        if self.is_refused.load(Ordering::Relaxed) {
            return Err(too_much());
        }
        let mut variables = input.variables.clone();
        for (name, token) in &self.tokens {
            variables.insert((*name).to_owned(), Json::from(token.as_str()));
        }
        variables.insert("messages".to_owned(), Json::from(input.messages));
        variables.insert("tools".to_owned(), input.tools.map_or(Json::Null, Json::from));
        variables.insert("add_generation_prompt".to_owned(), Json::from(input.generation_prompt));
        let (environment, context) = (self.environment.clone(), Value::from(Serde(&variables)));
        let now = input.unix_seconds;
        let rendered = contained(move || rendered((*environment).clone(), context, now));
        if matches!(&rendered, Err(TextError::TemplateTakesTooMuch(_))) {
            self.is_refused.store(true, Ordering::Relaxed);
        }
        rendered
    }
}

/// Runs `work` within the budget of a template.
fn contained<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, TextError> + Send + 'static,
) -> Result<T, TextError> {
    match within(MAX_HELD_BYTES, work) {
        Ok((result, _)) => result,
        Err(Stopped::OverBudget) => Err(too_much()),
        Err(Stopped::Failed) => Err(TextError::Template("no thread was left for it".to_owned())),
    }
}

fn too_much() -> TextError {
    TextError::TemplateTakesTooMuch(MAX_HELD_BYTES >> 20)
}

fn compiled(source: String) -> Result<Environment<'static>, TextError> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(FUEL));
    environment.set_syntax(
        SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .expect("the standard delimiters are distinct"),
    );
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", to_json);
    environment.add_function("raise_exception", raise_exception);
    environment.add_template_owned(NAME, source).map_err(|error| failed(&error))?;
    Ok(environment)
}

fn rendered(
    mut environment: Environment<'static>,
    context: Value,
    unix_seconds: u64,
) -> Result<String, TextError> {
    environment.add_function("strftime_now", move |format: &str| clock::strftime(format, unix_seconds));
    let namespaces = Namespaces::default();
    namespaces.observe(&mut environment);
    let template = environment.get_template(NAME).map_err(|error| failed(&error))?;
    let mut prompt = Bounded(Vec::new());
    let rendered = template.render_captured_to(context, &mut prompt).map(drop);
    namespaces.release(&environment);
    rendered.map_err(|error| match error.kind() {
        ErrorKind::WriteFailure => {
            TextError::Template(format!("the prompt is longer than {MAX_TEXT_BYTES} bytes"))
        }
        _ => failed(&error),
    })?;
    Ok(String::from_utf8(prompt.0).expect("a template writes text"))
}

/// Up to [`MAX_TEXT_BYTES`].
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > MAX_TEXT_BYTES - self.0.len() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `tojson` as in transformers: Python's separators, without HTML escapes.
fn to_json(value: &Value, indent: Option<usize>, options: Kwargs) -> Result<String, Error> {
    let indent = indent.or(options.get("indent")?);
    // Templates may pass `ensure_ascii=false`, which is the behaviour anyway.
    options.get::<Option<bool>>("ensure_ascii")?;
    options.assert_all_used()?;
    let value = serde_json::to_value(value)
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, "not a JSON value").with_source(error))?;
    Ok(json::python_dumps(&value, indent))
}

const RAISED: &str = "raised by the chat template: ";

fn raise_exception(message: &str) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}")))
}

fn failed(error: &Error) -> TextError {
    match error.detail().and_then(|detail| detail.strip_prefix(RAISED)) {
        Some(message) => TextError::Refused(message.to_owned()),
        None => TextError::Template(error.to_string()),
    }
}
