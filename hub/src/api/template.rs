//! Renders the model's chat template within a budget of memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use moex_model::text::{ChatInput, Text, TextError};
use serde_json::{Map, Value};

use crate::budget::{Stopped, within};

/// Bytes that rendering a conversation may hold; the longest prompts take a tenth.
const MAX_BYTES: usize = 512 << 20;

/// A conversation to be rendered.
pub(super) struct Conversation {
    pub(super) messages: Vec<Value>,
    pub(super) tools: Vec<Value>,
    pub(super) generation_prompt: bool,
    /// Further variables.
    pub(super) variables: Map<String, Value>,
    pub(super) unix_seconds: u64,
}

/// Whether the template may be rendered: one that has exceeded the budget may not, since each time costs a thread and the
/// budget.
#[derive(Debug, Default)]
pub(super) struct Templates {
    is_refused: AtomicBool,
}

impl Templates {
    /// Renders a conversation.
    ///
    /// # Errors
    /// As `ChatTemplate::render`, and [`TextError::Template`] if it takes too much memory.
    pub(super) fn render(&self, text: &Arc<Text>, conversation: Conversation) -> Result<String, TextError> {
        let failed = |why: String| Err(TextError::Template(why));
        let too_much = || failed(format!("it takes more than {} MiB of memory", MAX_BYTES >> 20));
        if self.is_refused.load(Ordering::Relaxed) {
            return too_much();
        }
        let text = text.clone();
        let rendered = within(MAX_BYTES, move || {
            let template = text.template.as_ref().ok_or(TextError::NoTemplate)?;
            let Conversation { messages, tools, generation_prompt, variables, unix_seconds } = &conversation;
            template.render(&ChatInput {
                messages,
                tools: (!tools.is_empty()).then_some(tools),
                generation_prompt: *generation_prompt,
                variables,
                unix_seconds: *unix_seconds,
            })
        });
        match rendered {
            Ok(rendered) => rendered,
            Err(Stopped::OverBudget) => {
                self.is_refused.store(true, Ordering::Relaxed);
                tracing::error!(
                    "the chat template takes more than {} MiB of memory: it is not used again",
                    MAX_BYTES >> 20
                );
                too_much()
            }
            Err(Stopped::Failed) => failed("it could not be rendered".to_owned()),
        }
    }
}
