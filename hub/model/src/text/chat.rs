//! The checkpoint's chat template, rendered as transformers renders it.

use minijinja::{
    Environment, Error, ErrorKind, Value,
    syntax::SyntaxConfig,
    value::{Kwargs, Serde},
};
use serde_json::{Map, Value as Json};

use super::{TextError, clock, json};

/// Instructions a template may run: a long conversation needs thousands, an endless loop all of them.
const FUEL: u64 = 20_000_000;
/// The longest template that is compiled.
const MAX_TEMPLATE_BYTES: usize = 1 << 20;

const NAME: &str = "chat_template";

/// A compiled template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    tokens: Vec<(&'static str, String)>,
}

/// What a template is given.
#[derive(Clone, Copy, Debug)]
pub struct ChatInput<'a> {
    /// The conversation: objects with `role`, `content` and whatever else the template reads.
    pub messages: &'a [Json],
    /// Tools as the API has them, if any.
    pub tools: Option<&'a [Json]>,
    /// Whether the prompt ends where the assistant begins to speak.
    pub generation_prompt: bool,
    /// Further variables, `enable_thinking` for one.
    pub variables: &'a Map<String, Json>,
    /// Seconds since 1970, for templates that write the date.
    pub unix_seconds: u64,
}

impl ChatTemplate {
    /// Compiles `source`; `tokens` are the tokenizer's special tokens by their names in its config.
    ///
    /// # Errors
    /// What makes it no template.
    pub fn new(source: String, tokens: Vec<(&'static str, String)>) -> Result<Self, TextError> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(TextError::Template(format!("{} bytes are too many", source.len())));
        }
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
        Ok(Self { environment, tokens })
    }

    /// The prompt.
    ///
    /// # Errors
    /// [`TextError::Refused`] with the template's words if it raises an exception, [`TextError::Template`] if it fails.
    pub fn render(&self, input: &ChatInput<'_>) -> Result<String, TextError> {
        let mut variables = input.variables.clone();
        for (name, token) in &self.tokens {
            variables.insert((*name).to_owned(), Json::from(token.as_str()));
        }
        variables.insert("messages".to_owned(), Json::from(input.messages));
        variables.insert("tools".to_owned(), input.tools.map_or(Json::Null, Json::from));
        variables.insert("add_generation_prompt".to_owned(), Json::from(input.generation_prompt));
        let context = Value::from(Serde(&variables));

        let now = input.unix_seconds;
        let mut environment = self.environment.clone();
        environment.add_function("strftime_now", move |format: &str| clock::strftime(format, now));
        let template = environment.get_template(NAME).map_err(|error| failed(&error))?;
        template.render(context).map_err(|error| failed(&error))
    }
}

/// `tojson` as transformers has it: Python's separators and nothing escaped for HTML.
fn to_json(value: &Value, indent: Option<usize>, options: Kwargs) -> Result<String, Error> {
    let indent = indent.or(options.get("indent")?);
    // Read, so that templates may pass it: false is what they pass, and what is done anyway.
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
