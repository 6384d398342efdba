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
    /// Around each call, which is JSON: `{"name", "arguments"}`.
    pub call: [&'static str; 2],
}

impl OutputFormat {
    /// Qwen's tags.
    pub const TAGS: Tags = Tags { reasoning: ["<think>", "</think>"], call: ["<tool_call>", "</tool_call>"] };

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
