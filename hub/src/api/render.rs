//! Turns a conversation into a prompt: rendered by the chat template, tokenised, and with the grammar for its answer.

use std::sync::{Arc, Once};
use std::time::SystemTime;

use moex_engine::sampler::Grammar;
use moex_model::text::{ChatInput, OutputFormat, TextError};
use serde_json::{Value, json};

use super::error::ApiError;
use super::grammar::{self, Source, Thinking};
use super::prompts::{Room, check_length};
use super::request::{ChatRequest, ToolChoice};
use super::state::{Api, unix_seconds};

/// A rendered and tokenised conversation.
pub(super) struct Prompt {
    pub(super) ids: Vec<u32>,
    /// Tokens that the answer probably resembles.
    pub(super) prediction_ids: Vec<u32>,
    /// Whether the model continues inside its thinking.
    pub(super) ends_in_think: bool,
    /// Grammar that constrains the answer.
    pub(super) grammar: Option<Arc<dyn Grammar>>,
}

/// Renders and tokenises once it is this request's turn, since long conversations take time; a new grammar is compiled at the
/// turn of large requests, since that may take as long. Returns the request too.
pub(super) async fn prompt(
    api: &Arc<Api>,
    request: ChatRequest,
    room: &Room,
) -> Result<(ChatRequest, Prompt), ApiError> {
    let own = api.clone();
    let work = move || {
        let (prompt, source) = of(&own, &request)?;
        Ok((request, prompt, source))
    };
    let (request, mut prompt, source) = api.prompts.work(room, work).await?;
    if let Some(source) = source {
        prompt.grammar = match api.grammars.kept(&source) {
            Some(grammar) => Some(grammar),
            None => {
                let own = api.clone();
                let compile = move || own.grammars.compile(&own.text, source);
                Some(api.prompts.work_as_large(room, compile).await?)
            }
        };
    }
    Ok((request, prompt))
}

/// The prompt, still without its grammar, and the grammar's source, if the answer is to have one.
fn of(api: &Api, request: &ChatRequest) -> Result<(Prompt, Option<Source>), ApiError> {
    let (text, ends_in_think) = text(api, request)?;
    check_length(text.len(), api.context_tokens())?;
    let ids = api.text.tokenizer.encode(&text).map_err(|error| no_prompt(&error))?;
    let prediction = request.prediction.as_deref().unwrap_or_default();
    check_length(prediction.len(), api.context_tokens())?;
    let prediction_ids = api.text.tokenizer.encode(prediction).map_err(|error| no_prompt(&error))?;
    let [think, think_end] = api.text.output.tags().reasoning;
    let thinking = match () {
        () if ends_in_think => Thinking::Open,
        () if request.continue_final_message
            || request.template.get("enable_thinking") == Some(&Value::Bool(false))
            || text.trim_end().ends_with(think_end)
            || api.text.tokenizer.id(think).is_none() =>
        {
            Thinking::Over
        }
        () => Thinking::Possible,
    };
    let source = grammar_source(api, request, thinking)?;
    Ok((Prompt { ids, prediction_ids, ends_in_think, grammar: None }, source))
}

/// Source of the grammar that constrains the answer, if any. Grammars support Qwen's tags and plain text; other formats are
/// refused.
fn grammar_source(api: &Api, request: &ChatRequest, thinking: Thinking) -> Result<Option<Source>, ApiError> {
    let Some(source) = grammar::source(request, thinking, api.text.output.tags())? else { return Ok(None) };
    let has_calls = !request.tools.is_empty() && request.tool_choice != ToolChoice::None;
    let field = if has_calls { "tools" } else { "response_format" };
    let refused =
        |why| ApiError::unsupported(field, format!("\"{field}\" cannot be enforced: this model {why}."));
    match api.text.output {
        OutputFormat::Harmony => Err(refused("answers in channels, which grammars do not support here")),
        OutputFormat::Text if has_calls => Err(refused("has no format for tool calls")),
        OutputFormat::Text | OutputFormat::Tagged(_) => Ok(Some(source)),
    }
}

/// The prompt's text, and whether the model continues inside its thinking.
pub(super) fn text(api: &Api, request: &ChatRequest) -> Result<(String, bool), ApiError> {
    let mut variables = request.template.clone();
    if let Some(effort) = &request.reasoning_effort {
        match effort.as_str() {
            _ if api.template_reads("reasoning_effort") => {
                variables.insert("reasoning_effort".to_owned(), json!(effort));
            }
            "none" if api.template_reads("enable_thinking") => {
                variables.insert("enable_thinking".to_owned(), json!(false));
            }
            _ => {
                return Err(ApiError::unsupported(
                    "reasoning_effort",
                    "This model's chat template has no \"reasoning_effort\": \"chat_template_kwargs\": \
                     {\"enable_thinking\": false} ends thinking where the model thinks. Leave it out.",
                ));
            }
        }
    }
    let render = |messages: &[Value], generation_prompt: bool| {
        let tools = (!request.tools.is_empty()).then_some(request.tools.as_slice());
        let unix_seconds = unix_seconds(SystemTime::now());
        let input = ChatInput { messages, tools, generation_prompt, variables: &variables, unix_seconds };
        let template = api.text.template.as_ref().ok_or(TextError::NoTemplate);
        template.and_then(|template| template.render(&input)).map_err(|error| no_prompt(&error))
    };
    if request.continue_final_message
        && let Some((last, before)) = request.messages.split_last()
    {
        if api.text.output == OutputFormat::Harmony {
            return Err(ApiError::unsupported(
                "continue_final_message",
                "\"continue_final_message\" cannot be used: this model answers in channels, which cannot be continued.",
            ));
        }
        return match last["role"] == "assistant" && last["tool_calls"].is_null() {
            // The unfinished answer goes after the prompt that it answers.
            true if !before.is_empty() => {
                resumed(render(before, true)?, last, api.text.output.tags().reasoning)
            }
            _ => unfinished(render(&request.messages, false)?, last),
        };
    }
    let text = render(&request.messages, request.add_generation_prompt)?;
    let ends_in_think = text.trim_end().ends_with(api.text.output.tags().reasoning[0]);
    Ok((text, ends_in_think))
}

/// Appends the unfinished answer to its prompt, so that the model continues it. An answer without content is still
/// inside its thinking.
fn resumed(
    mut text: String,
    answer: &Value,
    [think, think_end]: [&str; 2],
) -> Result<(String, bool), ApiError> {
    let said = |field: &str| answer[field].as_str().unwrap_or_default();
    let (content, reasoning) = (said("content"), said("reasoning_content"));
    if content.is_empty() && reasoning.is_empty() {
        return Err(nothing_to_continue());
    }
    let is_open = text.trim_end().ends_with(think);
    if !reasoning.is_empty() {
        if !is_open {
            text += &format!("{think}\n");
        }
        text += reasoning;
        if content.is_empty() {
            return Ok((text, true));
        }
        text += &format!("\n{think_end}\n\n");
    } else if is_open {
        text += &format!("\n{think_end}\n\n");
    }
    text += content;
    Ok((text, false))
}

/// Cuts a rendered conversation where its last message's text ends, so that the model continues there, as transformers
/// does.
fn unfinished(mut text: String, last: &Value) -> Result<(String, bool), ApiError> {
    let content = last["content"].as_str().unwrap_or_default();
    let bare = content.trim();
    let at = text.rfind(bare).filter(|_| !bare.is_empty()).ok_or_else(nothing_to_continue)?;
    let whole = content.trim_start();
    let end = at + if text[at..].starts_with(whole) { whole.len() } else { bare.len() };
    text.truncate(end);
    Ok((text, false))
}

fn nothing_to_continue() -> ApiError {
    ApiError::invalid(
        "continue_final_message",
        "\"continue_final_message\" needs a last message with text that the model's chat template writes out.",
    )
}

pub(super) fn no_prompt(error: &TextError) -> ApiError {
    match error {
        TextError::Refused(words) => {
            ApiError::invalid("messages", format!("The model's chat template refuses the messages: {words}"))
        }
        // Templates fail on histories they were not written for.
        TextError::Template(_) | TextError::TemplateTakesTooMuch(_) => {
            if matches!(error, TextError::TemplateTakesTooMuch(_)) {
                static TOLD: Once = Once::new();
                TOLD.call_once(|| tracing::error!("{error}"));
            }
            ApiError::invalid("messages", format!("The messages make no prompt: {error}."))
        }
        other => ApiError::internal(format!("The prompt could not be made: {other}.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str, last: &Value) -> Option<(String, bool)> {
        unfinished(text.to_owned(), last).ok()
    }

    #[test]
    fn a_message_to_go_on_with_is_cut_where_its_text_ends() {
        let message = |content: &str| json!({"role": "assistant", "content": content});
        let said = |text: &str| Some((text.to_owned(), false));
        assert_eq!(cut("<u>a b<e><a>a b<e>\n", &message("a b")), said("<u>a b<e><a>a b"));
        assert_eq!(cut("<a>a b <e>", &message("a b ")), said("<a>a b "), "a space at the end is kept");
        assert_eq!(cut("<a>a b<e>", &message("a b \n")), said("<a>a b"), "unless the template drops it");
        assert_eq!(cut("<a>other", &message("a b")), None);
        assert_eq!(cut("<a>", &message(" ")), None);
    }

    #[test]
    fn an_answer_goes_on_behind_its_prompt_in_the_models_own_layout() {
        let after = |prompt: &str, content: &str, reasoning: &str| {
            resumed(
                prompt.to_owned(),
                &json!({"content": content, "reasoning_content": reasoning}),
                OutputFormat::TAGS.reasoning,
            )
            .ok()
        };
        let said = |text: &str, thinks| Some((text.to_owned(), thinks));
        assert_eq!(after("<a>", " b ", ""), said("<a> b ", false));
        assert_eq!(after("<a>", "", "so"), said("<a><think>\nso", true));
        assert_eq!(after("<a>", "b", "so"), said("<a><think>\nso\n</think>\n\nb", false));
        assert_eq!(after("<a><think>\n", "", "so"), said("<a><think>\nso", true));
        assert_eq!(after("<a>", "", ""), None);
    }
}
