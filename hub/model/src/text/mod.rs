//! Text processing of a model: tokenizer, chat template, incremental detokenisation.
//!
//! Everything comes from the checkpoint's own files. `moex-engine` decides what ends a text.

mod alphabet;
mod byte_level;
mod chat;
mod clock;
mod detokenizer;
mod json;
mod merges;
mod namespaces;
mod output;
mod sentence_piece;
mod tokenizer;
mod words;

pub use chat::{ChatInput, ChatTemplate};
pub use detokenizer::Detokenizer;
pub use output::{CallForm, OutputFormat, Tags};
pub use tokenizer::{MAX_TEXT_BYTES, Special, Tokenizer};

use serde::Deserialize;

use crate::{Checkpoint, TextFiles, TokenizerSource};

/// Text processing of a model.
pub struct Text {
    /// Tokenizer.
    pub tokenizer: Tokenizer,
    /// Chat template, if the checkpoint has one.
    pub template: Option<ChatTemplate>,
    /// Tokens that end a text.
    pub eos: Vec<u32>,
    /// The format of the model's output.
    pub output: OutputFormat,
}

impl Text {
    /// Reads the tokenizer, template and generation config of `checkpoint`.
    ///
    /// # Errors
    /// If a file is missing or invalid.
    pub fn load(checkpoint: &Checkpoint) -> Result<Self, TextError> {
        let files = &checkpoint.text;
        let tokenizer = match files.tokenizer.as_ref().ok_or(TextError::NoTokenizer)? {
            TokenizerSource::Json(json) => Tokenizer::from_json(json)?,
            TokenizerSource::Vocabulary(vocabulary) => Tokenizer::from_vocabulary(vocabulary)?,
            TokenizerSource::Unknown(reason) => return Err(TextError::Vocabulary(reason.clone())),
        };
        let config: TokenizerConfig = parse("tokenizer_config.json", files.tokenizer_config.as_deref())?;
        let generation: GenerationConfig =
            parse("generation_config.json", files.generation_config.as_deref())?;

        let tokens = config.special_tokens();
        let eos = match (generation.eos_token_id, checkpoint.spec.eos.as_slice()) {
            (Some(ids), _) => ids.into_vec(),
            (None, ids @ [_, ..]) => ids.to_vec(),
            (None, []) => tokens
                .iter()
                .filter(|(name, _)| *name == "eos_token")
                .filter_map(|(_, token)| tokenizer.id(token))
                .collect(),
        };
        let source = template_source(files.chat_template.as_deref(), config)?;
        let template = source.map(|source| ChatTemplate::new(source, tokens)).transpose()?;
        Ok(Self { tokenizer, template, eos, output: checkpoint.output })
    }

    /// The source of a checkpoint's chat template.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn template_source(files: &TextFiles) -> Result<Option<String>, TextError> {
        let config = parse("tokenizer_config.json", files.tokenizer_config.as_deref())?;
        template_source(files.chat_template.as_deref(), config)
    }

    /// Renders a conversation with the chat template and tokenises it.
    ///
    /// # Errors
    /// If there is no template, or it refuses the messages.
    pub fn prompt(&self, input: &ChatInput<'_>) -> Result<Vec<u32>, TextError> {
        let template = self.template.as_ref().ok_or(TextError::NoTemplate)?;
        self.tokenizer.encode(&template.render(input)?)
    }
}

/// Why text processing failed.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The checkpoint has no `tokenizer.json`, or no vocabulary in its metadata.
    #[error(
        "the model has no tokenizer: a folder has it in tokenizer.json, a GGUF under tokenizer.ggml.model"
    )]
    NoTokenizer,
    /// `tokenizer.json` is invalid or not supported.
    #[error("tokenizer.json: {0}")]
    Tokenizer(String),
    /// A GGUF's vocabulary is inconsistent.
    #[error("the GGUF's tokenizer: {0}")]
    Vocabulary(String),
    /// Another JSON file is invalid.
    #[error("{file}: {source}")]
    Json {
        /// Its name.
        file: &'static str,
        /// The reason.
        source: serde_json::Error,
    },
    /// The checkpoint has no chat template.
    #[error("the model has no chat template")]
    NoTemplate,
    /// The chat template is invalid Jinja, or exceeds a limit.
    #[error("the chat template failed: {0}")]
    Template(String),
    /// The chat template exceeds the budget of so many MiB, and is not used again.
    #[error(
        "the chat template failed: it takes more than {0} MiB of memory, or all of the stack, and is not used again"
    )]
    TemplateTakesTooMuch(usize),
    /// The chat template refuses the messages, with its own message.
    #[error("{0}")]
    Refused(String),
}

#[derive(Default, Deserialize)]
struct GenerationConfig {
    eos_token_id: Option<crate::one_or_many::OneOrMany>,
}

#[derive(Default, Deserialize)]
struct TokenizerConfig {
    chat_template: Option<Templates>,
    bos_token: Option<SpecialToken>,
    eos_token: Option<SpecialToken>,
    pad_token: Option<SpecialToken>,
    unk_token: Option<SpecialToken>,
}

/// One template, or several by name.
#[derive(Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

/// A token as text, or as an object with its flags.
#[derive(Deserialize)]
#[serde(untagged)]
enum SpecialToken {
    Text(String),
    Object { content: String },
}

impl TokenizerConfig {
    fn special_tokens(&self) -> Vec<(&'static str, String)> {
        let tokens = [
            ("bos_token", &self.bos_token),
            ("eos_token", &self.eos_token),
            ("pad_token", &self.pad_token),
            ("unk_token", &self.unk_token),
        ];
        let text = |token: &SpecialToken| match token {
            SpecialToken::Text(content) | SpecialToken::Object { content } => content.clone(),
        };
        tokens.into_iter().filter_map(|(name, token)| Some((name, text(token.as_ref()?)))).collect()
    }

    fn template(self) -> Option<String> {
        match self.chat_template? {
            Templates::One(template) => Some(template),
            Templates::Named(templates) => templates
                .into_iter()
                .find(|template| template.name == "default")
                .map(|template| template.template),
        }
    }
}

/// The file's template, or the config's.
fn template_source(file: Option<&[u8]>, config: TokenizerConfig) -> Result<Option<String>, TextError> {
    let not_text = |_| TextError::Template("not UTF-8".to_owned());
    match file {
        Some(file) => String::from_utf8(file.to_vec()).map(Some).map_err(not_text),
        None => Ok(config.template()),
    }
}

fn parse<T: Default + serde::de::DeserializeOwned>(
    file: &'static str,
    json: Option<&[u8]>,
) -> Result<T, TextError> {
    match json {
        None => Ok(T::default()),
        Some(json) => serde_json::from_slice(json).map_err(|source| TextError::Json { file, source }),
    }
}

#[cfg(test)]
mod tests;
