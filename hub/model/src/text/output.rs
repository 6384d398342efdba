//! Output formats of model families: where reasoning, tool calls and the answer are in a text.

use super::Special;

/// The output format of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputFormat {
    /// Plain text: all of it is the answer.
    #[default]
    Text,
    /// Reasoning and calls are between tags.
    Tagged(Tags),
    /// Messages with channels: GPT-OSS's.
    Harmony,
}

/// Tags before and after parts of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tags {
    /// Around the reasoning, which comes first.
    pub reasoning: [&'static str; 2],
    /// Around each call.
    pub call: [&'static str; 2],
    /// What stands inside.
    pub form: CallForm,
}

/// How a call of a tool is written between its tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallForm {
    /// JSON: `{"name", "arguments"}`.
    Json,
    /// DeepSeek's: the name, a separator and the arguments as JSON; before V3.1 "function", the separator, the name, and the
    /// arguments as a block of code.
    Separated {
        /// Between the two.
        separator: &'static str,
        /// Around all calls of an answer.
        list: [&'static str; 2],
    },
}

impl Tags {
    /// What the first call of an answer begins with.
    pub fn opening(&self) -> &'static str {
        match self.form {
            CallForm::Json => self.call[0],
            CallForm::Separated { list, .. } => list[0],
        }
    }
}

impl OutputFormat {
    /// Qwen's tags.
    pub const TAGS: Tags = Tags {
        reasoning: ["<think>", "</think>"],
        call: ["<tool_call>", "</tool_call>"],
        form: CallForm::Json,
    };

    /// DeepSeek's tags (`tokenizer_config.json` of DeepSeek-V3, R1 and V3.1).
    pub const DEEPSEEK_TAGS: Tags = Tags {
        reasoning: ["<think>", "</think>"],
        call: ["<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"],
        form: CallForm::Separated {
            separator: "<｜tool▁sep｜>",
            list: ["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
        },
    };

    /// The tags of a text: Qwen's if the family has none of its own, since a template may still open them.
    pub fn tags(self) -> Tags {
        match self {
            Self::Tagged(tags) => tags,
            Self::Text | Self::Harmony => Self::TAGS,
        }
    }

    /// How special tokens are decoded: channels need them.
    pub fn special(self) -> Special {
        match self {
            Self::Harmony => Special::Keep,
            Self::Text | Self::Tagged(_) => Special::Skip,
        }
    }
}
