//! What the texts of a family look like: where reasoning, calls of tools and the answer stand in them.

use super::Special;

/// The form of a model's texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputFormat {
    /// All of it is the answer.
    #[default]
    Text,
    /// Reasoning and calls stand between tags.
    Tagged(Tags),
    /// Messages with channels: GPT-OSS's.
    Harmony,
}

/// What stands before and after a part of a text.
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

    /// The tags of a text: Qwen's where the family has none of its own, since a template may open them all the same.
    pub fn tags(self) -> Tags {
        match self {
            Self::Tagged(tags) => tags,
            Self::Text | Self::Harmony => Self::TAGS,
        }
    }

    /// What becomes of special tokens in a text: channels are told by them alone.
    pub fn special(self) -> Special {
        match self {
            Self::Harmony => Special::Keep,
            Self::Text | Self::Tagged(_) => Special::Skip,
        }
    }
}
