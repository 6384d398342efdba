//! Types of responses, used only for the OpenAPI description.
#![expect(dead_code, reason = "read by the derive alone")]

use schemars::JsonSchema;
use serde_json::{Map, Value};

/// A field that is always present and may be null.
#[derive(JsonSchema)]
#[schemars(untagged)]
enum Nullable<T> {
    Value(T),
    Null(()),
}

/// A chat completion.
#[derive(JsonSchema)]
pub(super) struct ChatCompletion {
    id: String,
    object: String,
    created: u64,
    model: String,
    system_fingerprint: String,
    choices: Vec<ChatChoice>,
    usage: Usage,
    /// Timings of the engine, for an answer with one choice.
    timings: Option<Map<String, Value>>,
}

#[derive(JsonSchema)]
struct ChatChoice {
    index: u32,
    message: AssistantMessage,
    logprobs: Nullable<Map<String, Value>>,
    finish_reason: FinishReason,
}

#[derive(JsonSchema)]
struct AssistantMessage {
    role: String,
    content: Nullable<String>,
    reasoning_content: Option<String>,
    tool_calls: Option<Vec<Map<String, Value>>>,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum FinishReason {
    Stop,
    Length,
    ToolCalls,
}

#[derive(JsonSchema)]
struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    completion_tokens_details: CompletionDetails,
}

#[derive(JsonSchema)]
struct CompletionDetails {
    reasoning_tokens: u64,
}

/// Completions of prompts.
#[derive(JsonSchema)]
pub(super) struct Completion {
    id: String,
    object: String,
    created: u64,
    model: String,
    system_fingerprint: String,
    choices: Vec<CompletionChoice>,
    usage: Usage,
}

#[derive(JsonSchema)]
struct CompletionChoice {
    index: u32,
    text: String,
    logprobs: Nullable<Map<String, Value>>,
    finish_reason: FinishReason,
}

/// A response of OpenAI's Responses API.
#[derive(JsonSchema)]
pub(super) struct Response {
    id: String,
    object: String,
    created_at: u64,
    status: String,
    model: String,
    output: Vec<Map<String, Value>>,
    usage: Map<String, Value>,
}

/// A message of Anthropic's Messages API.
#[derive(JsonSchema)]
pub(super) struct Message {
    id: String,
    r#type: String,
    role: String,
    model: String,
    content: Vec<Map<String, Value>>,
    stop_reason: String,
    stop_sequence: Nullable<String>,
    usage: MessageUsage,
}

#[derive(JsonSchema)]
struct MessageUsage {
    /// Prompt tokens that were not cached.
    input_tokens: u64,
    cache_creation_input_tokens: u64,
    cache_read_input_tokens: u64,
    output_tokens: u64,
}

#[derive(JsonSchema)]
pub(super) struct TokenCount {
    input_tokens: u64,
}

/// Token ids, alone or with their pieces.
#[derive(JsonSchema)]
pub(super) struct Tokens {
    tokens: Vec<Value>,
}

#[derive(JsonSchema)]
pub(super) struct Content {
    content: String,
}

#[derive(JsonSchema)]
pub(super) struct Prompt {
    prompt: String,
}

#[derive(JsonSchema)]
pub(super) struct Models {
    object: String,
    data: Vec<Model>,
}

#[derive(JsonSchema)]
struct Model {
    id: String,
    object: String,
    created: u64,
    owned_by: String,
    context_length: u64,
}

#[derive(JsonSchema)]
pub(super) struct Props {
    default_generation_settings: Map<String, Value>,
    total_slots: u64,
    model_alias: String,
    chat_template: String,
}

#[derive(JsonSchema)]
pub(super) struct Slot {
    id: u64,
    n_ctx: u64,
    is_processing: bool,
}

#[derive(JsonSchema)]
pub(super) struct Health {
    status: String,
    model: String,
    workers: u64,
    coverage: Map<String, Value>,
}

/// An error, in one sentence.
#[derive(JsonSchema)]
pub(super) struct Error {
    error: ErrorObject,
}

#[derive(JsonSchema)]
struct ErrorObject {
    message: String,
    r#type: String,
    param: Nullable<String>,
    code: Nullable<String>,
}

/// An error in the format of Anthropic's API.
#[derive(JsonSchema)]
pub(super) struct MessageError {
    r#type: String,
    error: MessageErrorObject,
}

#[derive(JsonSchema)]
struct MessageErrorObject {
    r#type: String,
    message: String,
}
