//! Types of request bodies of OpenAI's older APIs and of llama.cpp's, used only for the OpenAPI description.
#![expect(dead_code, reason = "read by the derive alone")]

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde_json::{Map, Value};

/// A chat completion request.
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
    /// Bias from -100 to 100 per token id.
    logit_bias: Option<Biases>,
    logprobs: Option<bool>,
    #[schemars(range(min = 0, max = 20))]
    top_logprobs: Option<i64>,
    #[schemars(range(min = 1, max = 9223372036854775807_i64))]
    max_completion_tokens: Option<i64>,
    #[schemars(range(min = 1, max = 9223372036854775807_i64))]
    max_tokens: Option<i64>,
    #[schemars(range(min = 1, max = 8))]
    n: Option<i64>,
    /// Whether several tools may be called at once; true by default.
    parallel_tool_calls: Option<bool>,
    /// Text that the answer probably resembles.
    prediction: Option<Prediction>,
    /// Only for models whose chat template supports it.
    reasoning_effort: Option<ReasoningEffort>,
    response_format: Option<ResponseFormat>,
    #[schemars(range(min = -9223372036854775808_i64, max = 9223372036854775807_i64))]
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
    tool_choice: Option<ToolChoice>,
    #[schemars(length(max = 128))]
    tools: Option<Vec<Tool>>,
    /// Variables of the model's chat template.
    chat_template_kwargs: Option<TemplateVariables>,
    add_generation_prompt: Option<bool>,
    /// Whether the answer continues the last message.
    continue_final_message: Option<bool>,
    ignore_eos: Option<bool>,
    /// Tokens before which nothing ends the answer.
    #[schemars(range(min = 0, max = 4294967295_i64))]
    min_tokens: Option<i64>,
}

/// A message of a conversation.
#[derive(JsonSchema)]
#[schemars(tag = "role", rename_all = "lowercase")]
enum ChatMessage {
    System { content: Text, name: Option<String> },
    Developer { content: Text, name: Option<String> },
    User { content: Text, name: Option<String> },
    Assistant { content: Option<Text>, reasoning_content: Option<String>, tool_calls: Option<Vec<Call>> },
    Tool { content: Text, tool_call_id: Option<String> },
}

/// A string, or text parts.
#[derive(JsonSchema)]
#[schemars(untagged)]
pub(super) enum Text {
    One(String),
    Parts(Vec<TextPart>),
}

#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub(super) enum TextPart {
    Text { text: String },
}

/// A tool call of an earlier answer.
#[derive(JsonSchema)]
struct Call {
    id: Option<String>,
    r#type: Option<String>,
    function: CalledFunction,
}

#[derive(JsonSchema)]
struct CalledFunction {
    name: String,
    arguments: Arguments,
}

/// JSON in a string, or a JSON object.
#[derive(JsonSchema)]
#[schemars(untagged)]
enum Arguments {
    Text(String),
    Plain(Map<String, Value>),
}

/// Whether tools are called, or which tool.
#[derive(JsonSchema)]
#[schemars(untagged)]
enum ToolChoice {
    Mode(ToolMode),
    Named { function: NamedFunction },
}

#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
pub(super) enum ToolMode {
    None,
    Auto,
    Required,
}

#[derive(JsonSchema)]
struct NamedFunction {
    name: String,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
pub(super) enum ReasoningEffort {
    None,
    Minimal,
    Low,
    Medium,
    High,
    Xhigh,
}

/// Text that the answer probably resembles.
#[derive(JsonSchema)]
struct Prediction {
    r#type: PredictionKind,
    content: Text,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum PredictionKind {
    Content,
}

/// Required format of the answer.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
enum ResponseFormat {
    Text,
    JsonObject { schema: Option<AnySchema> },
    JsonSchema { json_schema: NamedSchema },
}

#[derive(JsonSchema)]
struct NamedSchema {
    name: Option<String>,
    schema: AnySchema,
    strict: Option<bool>,
}

/// A JSON schema.
#[derive(JsonSchema)]
#[schemars(untagged)]
pub(super) enum AnySchema {
    Object(Map<String, Value>),
    Any(bool),
}

/// One string or several.
#[derive(JsonSchema)]
#[schemars(untagged)]
enum Stop {
    One(StopText),
    Several(#[schemars(length(max = 16))] Vec<StopText>),
}

/// 1 to 1024 bytes.
#[derive(JsonSchema)]
#[schemars(transparent)]
pub(super) struct StopText(#[schemars(length(min = 1, max = 1024))] String);

/// Bias from -100 to 100 per token id.
#[derive(JsonSchema)]
#[schemars(extend("maxProperties" = 1024, "propertyNames" = { "pattern": "^[0-9]{1,9}$" }))]
struct Biases {
    #[schemars(flatten)]
    biases: BTreeMap<String, Bias>,
}

#[derive(JsonSchema)]
#[schemars(transparent)]
struct Bias(#[schemars(range(min = -100, max = 100))] f64);

/// Variables of the model's chat template.
#[derive(JsonSchema)]
struct TemplateVariables {
    enable_thinking: Option<bool>,
    #[schemars(flatten)]
    others: Map<String, Value>,
}

#[derive(JsonSchema)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(JsonSchema)]
struct Tool {
    r#type: Option<ToolKind>,
    function: Function,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
enum ToolKind {
    Function,
}

#[derive(JsonSchema)]
struct Function {
    name: String,
    description: Option<String>,
    /// A JSON schema.
    parameters: Option<Map<String, Value>>,
    strict: Option<bool>,
}

/// A completion request.
#[derive(JsonSchema)]
#[schemars(rename = "CompletionBody")]
pub(super) struct Completion {
    prompt: PromptInput,
    model: Option<String>,
    echo: Option<bool>,
    logprobs: Option<Alternatives>,
    /// Default 16; with `echo`, 0 returns only the prompt.
    #[schemars(range(min = 0, max = 9223372036854775807_i64))]
    max_tokens: Option<i64>,
    #[schemars(range(min = 1, max = 8))]
    n: Option<i64>,
    #[schemars(range(min = -9223372036854775808_i64, max = 9223372036854775807_i64))]
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
    /// Tokens before which nothing ends the answer.
    #[schemars(range(min = 0, max = 4294967295_i64))]
    min_tokens: Option<i64>,
    logit_bias: Option<Biases>,
    #[schemars(range(min = -2, max = 2))]
    frequency_penalty: Option<f64>,
    #[schemars(range(min = -2, max = 2))]
    presence_penalty: Option<f64>,
    #[schemars(range(min = 0.01, max = 10))]
    repetition_penalty: Option<f64>,
}

/// Number of alternatives per token; true means none.
#[derive(JsonSchema)]
#[schemars(untagged)]
enum Alternatives {
    Count(#[schemars(range(min = 0, max = 20))] i64),
    Any(bool),
}

/// The prompt to continue.
#[derive(JsonSchema)]
#[schemars(untagged)]
enum PromptInput {
    Text(PromptText),
    Texts(#[schemars(length(min = 1, max = 64))] Vec<PromptText>),
    Ids(PromptIds),
    SeveralIds(#[schemars(length(min = 1, max = 64))] Vec<PromptIds>),
}

#[derive(JsonSchema)]
#[schemars(transparent)]
struct PromptText(#[schemars(length(min = 1))] String);

#[derive(JsonSchema)]
#[schemars(transparent)]
struct PromptIds(#[schemars(length(min = 1))] Vec<TokenId>);

#[derive(JsonSchema)]
#[schemars(transparent)]
struct TokenId(#[schemars(range(max = 4294967295_u64))] u32);

/// A text to tokenise.
#[derive(JsonSchema)]
#[schemars(rename = "TokenizeBody")]
pub(super) struct Tokenize {
    content: String,
    with_pieces: Option<bool>,
}

/// Tokens to convert to text.
#[derive(JsonSchema)]
#[schemars(rename = "DetokenizeBody")]
pub(super) struct Detokenize {
    tokens: Vec<TokenId>,
}
