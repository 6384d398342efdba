//! What requests may say, as types for the description alone.
#![expect(dead_code, reason = "read by the derive alone")]

use schemars::JsonSchema;
use serde_json::{Map, Value};

/// A chat completion, as asked for.
#[derive(JsonSchema)]
#[schemars(rename = "ChatCompletionBody")]
pub(super) struct ChatCompletion {
    /// The conversation.
    #[schemars(length(min = 1, max = 4096))]
    messages: Vec<ChatMessage>,
    /// The served model's name, or "default".
    model: Option<String>,
    #[schemars(range(min = -2, max = 2))]
    frequency_penalty: Option<f64>,
    #[schemars(range(min = -2, max = 2))]
    presence_penalty: Option<f64>,
    #[schemars(range(min = 0.01, max = 10))]
    repetition_penalty: Option<f64>,
    /// Numbers from -100 to 100 by token id.
    logit_bias: Option<Map<String, Value>>,
    logprobs: Option<bool>,
    #[schemars(range(min = 0, max = 20))]
    top_logprobs: Option<i64>,
    #[schemars(range(min = 1))]
    max_completion_tokens: Option<i64>,
    #[schemars(range(min = 1))]
    max_tokens: Option<i64>,
    #[schemars(range(min = 1, max = 8))]
    n: Option<i64>,
    /// Whether several tools may be called at once; true where nothing is said.
    parallel_tool_calls: Option<bool>,
    /// What the answer is expected to be much like.
    prediction: Option<Prediction>,
    /// For models whose chat template has it.
    reasoning_effort: Option<ReasoningEffort>,
    response_format: Option<ResponseFormat>,
    seed: Option<i64>,
    stop: Option<Stop>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    #[schemars(range(min = 0, max = 2))]
    temperature: Option<f64>,
    #[schemars(range(min = 0, max = 1))]
    top_p: Option<f64>,
    #[schemars(range(min = 0, max = 1))]
    min_p: Option<f64>,
    #[schemars(range(min = -1, max = 4294967295_i64))]
    top_k: Option<i64>,
    tool_choice: Option<Value>,
    #[schemars(length(max = 128))]
    tools: Option<Vec<Tool>>,
    /// Variables of the model's chat template.
    chat_template_kwargs: Option<Map<String, Value>>,
    add_generation_prompt: Option<bool>,
    /// The answer goes on where the last message ends.
    continue_final_message: Option<bool>,
    ignore_eos: Option<bool>,
}

/// A message of a conversation.
#[derive(JsonSchema)]
struct ChatMessage {
    role: Role,
    /// A string, or a list of text parts.
    content: Option<Value>,
    reasoning_content: Option<String>,
    tool_calls: Option<Vec<Value>>,
    tool_call_id: Option<String>,
    name: Option<String>,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
enum ReasoningEffort {
    None,
    Minimal,
    Low,
    Medium,
    High,
    Xhigh,
}

/// What an answer is expected to be much like.
#[derive(JsonSchema)]
struct Prediction {
    r#type: PredictionKind,
    /// A string, or a list of text parts.
    content: Value,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum PredictionKind {
    Content,
}

/// What an answer must be.
#[derive(JsonSchema)]
struct ResponseFormat {
    r#type: FormatKind,
    json_schema: Option<NamedSchema>,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum FormatKind {
    Text,
    JsonObject,
    JsonSchema,
}

#[derive(JsonSchema)]
struct NamedSchema {
    name: Option<String>,
    schema: Map<String, Value>,
    strict: Option<bool>,
}

/// A string or several.
#[derive(JsonSchema)]
#[schemars(untagged)]
enum Stop {
    One(#[schemars(length(min = 1, max = 1024))] String),
    Several(#[schemars(length(max = 16))] Vec<String>),
}

#[derive(JsonSchema)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(JsonSchema)]
struct Tool {
    r#type: Option<String>,
    function: Function,
}

#[derive(JsonSchema)]
struct Function {
    name: String,
    description: Option<String>,
    /// A JSON schema.
    parameters: Option<Map<String, Value>>,
    strict: Option<bool>,
}

/// A completion, as asked for.
#[derive(JsonSchema)]
#[schemars(rename = "CompletionBody")]
pub(super) struct Completion {
    prompt: PromptInput,
    model: Option<String>,
    echo: Option<bool>,
    #[schemars(range(min = 0, max = 20))]
    logprobs: Option<i64>,
    /// 0 tells of the prompt alone, with `echo`; 16 where nothing is said.
    #[schemars(range(min = 0))]
    max_tokens: Option<i64>,
    #[schemars(range(min = 1, max = 8))]
    n: Option<i64>,
    seed: Option<i64>,
    stop: Option<Stop>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    #[schemars(range(min = 0, max = 2))]
    temperature: Option<f64>,
    #[schemars(range(min = 0, max = 1))]
    top_p: Option<f64>,
    #[schemars(range(min = -1, max = 4294967295_i64))]
    top_k: Option<i64>,
    #[schemars(range(min = 0, max = 1))]
    min_p: Option<f64>,
    ignore_eos: Option<bool>,
    logit_bias: Option<Map<String, Value>>,
    #[schemars(range(min = -2, max = 2))]
    frequency_penalty: Option<f64>,
    #[schemars(range(min = -2, max = 2))]
    presence_penalty: Option<f64>,
    #[schemars(range(min = 0.01, max = 10))]
    repetition_penalty: Option<f64>,
}

/// What is continued.
#[derive(JsonSchema)]
#[schemars(untagged)]
enum PromptInput {
    Text(#[schemars(length(min = 1))] String),
    Texts(#[schemars(length(min = 1))] Vec<String>),
    Ids(#[schemars(length(min = 1))] Vec<u32>),
    SeveralIds(#[schemars(length(min = 1))] Vec<Vec<u32>>),
}

/// A response, as asked for.
#[derive(JsonSchema)]
#[schemars(rename = "ResponseBody")]
pub(super) struct Response {
    /// A string, or the history as items.
    input: Input,
    model: Option<String>,
    instructions: Option<String>,
    #[schemars(range(min = 1))]
    max_output_tokens: Option<i64>,
    parallel_tool_calls: Option<bool>,
    reasoning: Option<Map<String, Value>>,
    stream: Option<bool>,
    #[schemars(range(min = 0, max = 2))]
    temperature: Option<f64>,
    /// `format`: text, json_object or json_schema.
    text: Option<Map<String, Value>>,
    tool_choice: Option<Value>,
    tools: Option<Vec<Map<String, Value>>>,
    #[schemars(range(min = 0, max = 1))]
    top_p: Option<f64>,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
enum Input {
    Text(String),
    Items(Vec<Map<String, Value>>),
}

/// A message, as asked for.
#[derive(JsonSchema)]
#[schemars(rename = "MessageBody")]
pub(super) struct Message {
    #[schemars(range(min = 1))]
    max_tokens: i64,
    messages: Vec<Map<String, Value>>,
    model: Option<String>,
    stop_sequences: Option<Vec<String>>,
    stream: Option<bool>,
    /// A string, or text blocks.
    system: Option<Value>,
    #[schemars(range(min = 0, max = 1))]
    temperature: Option<f64>,
    thinking: Option<Map<String, Value>>,
    tool_choice: Option<Map<String, Value>>,
    tools: Option<Vec<Map<String, Value>>>,
    top_k: Option<i64>,
    #[schemars(range(min = 0, max = 1))]
    top_p: Option<f64>,
}

/// A message whose prompt is counted.
#[derive(JsonSchema)]
#[schemars(rename = "CountTokensBody")]
pub(super) struct CountTokens {
    messages: Vec<Map<String, Value>>,
    model: Option<String>,
    system: Option<Value>,
    thinking: Option<Map<String, Value>>,
    tools: Option<Vec<Map<String, Value>>>,
}

/// A text.
#[derive(JsonSchema)]
#[schemars(rename = "TokenizeBody")]
pub(super) struct Tokenize {
    content: String,
    with_pieces: Option<bool>,
}

/// Tokens.
#[derive(JsonSchema)]
#[schemars(rename = "DetokenizeBody")]
pub(super) struct Detokenize {
    tokens: Vec<u32>,
}
