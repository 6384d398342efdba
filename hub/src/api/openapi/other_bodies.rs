//! Types of request bodies of the Responses and the Messages API, used only for the OpenAPI description.
#![expect(dead_code, reason = "read by the derive alone")]

use schemars::JsonSchema;
use serde_json::{Map, Value};

use super::bodies::{AnySchema, ReasoningEffort, StopText, Text, ToolMode};

/// A Responses request.
#[derive(JsonSchema)]
#[schemars(rename = "ResponseBody")]
pub(super) struct Response {
    input: Input,
    model: Option<String>,
    instructions: Option<String>,
    #[schemars(range(min = 1, max = 9223372036854775807_i64))]
    max_output_tokens: Option<i64>,
    parallel_tool_calls: Option<bool>,
    reasoning: Option<Reasoning>,
    stream: Option<bool>,
    #[schemars(range(min = 0, max = 2))]
    temperature: Option<f64>,
    text: Option<TextOptions>,
    tool_choice: Option<FlatToolChoice>,
    #[schemars(length(max = 128))]
    tools: Option<Vec<FlatTool>>,
    #[schemars(range(min = 0, max = 1))]
    top_p: Option<f64>,
}

/// A string, or the history as items: at most one fewer than a chat's 4096 messages, since the instructions are one.
#[derive(JsonSchema)]
#[schemars(untagged)]
enum Input {
    Text(String),
    Items(#[schemars(length(min = 1, max = 4095))] Vec<Item>),
}

/// A message, whose `type` is optional, or another item.
#[derive(JsonSchema)]
#[schemars(untagged)]
enum Item {
    Message { r#type: Option<MessageItem>, role: ItemRole, content: ItemText },
    Other(OtherItem),
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum MessageItem {
    Message,
}

/// A tool call, its result, or thinking.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
enum OtherItem {
    FunctionCall { call_id: String, name: String, arguments: String },
    FunctionCallOutput { call_id: String, output: ItemText },
    Reasoning { content: Option<ItemText> },
}

#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
enum ItemRole {
    System,
    Developer,
    User,
    Assistant,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
enum ItemText {
    One(String),
    Parts(Vec<ItemPart>),
}

#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
enum ItemPart {
    InputText { text: String },
    OutputText { text: String },
    Text { text: String },
    ReasoningText { text: String },
}

#[derive(JsonSchema)]
struct Reasoning {
    /// Only for models whose chat template supports it.
    effort: Option<ReasoningEffort>,
}

#[derive(JsonSchema)]
struct TextOptions {
    format: Option<TextFormat>,
}

#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
enum TextFormat {
    Text,
    JsonObject,
    JsonSchema { name: Option<String>, schema: AnySchema, strict: Option<bool> },
}

#[derive(JsonSchema)]
#[schemars(untagged)]
enum FlatToolChoice {
    Mode(ToolMode),
    Named { name: String },
}

#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
enum FlatTool {
    Function {
        name: String,
        description: Option<String>,
        /// A JSON schema.
        parameters: Option<Map<String, Value>>,
        strict: Option<bool>,
    },
}

/// A messages request.
#[derive(JsonSchema)]
#[schemars(rename = "MessageBody")]
pub(super) struct Message {
    #[schemars(range(min = 1, max = 9223372036854775807_i64))]
    max_tokens: i64,
    #[schemars(length(min = 1, max = 4095))]
    messages: Vec<Turn>,
    model: Option<String>,
    #[schemars(length(max = 16))]
    stop_sequences: Option<Vec<StopText>>,
    stream: Option<bool>,
    system: Option<Text>,
    #[schemars(range(min = 0, max = 2))]
    temperature: Option<f64>,
    thinking: Option<Thinking>,
    tool_choice: Option<Choice>,
    #[schemars(length(max = 128))]
    tools: Option<Vec<ClientTool>>,
    #[schemars(range(min = -1, max = 4294967295_i64))]
    top_k: Option<i64>,
    #[schemars(range(min = 0, max = 1))]
    top_p: Option<f64>,
}

/// A request to count a prompt's tokens.
#[derive(JsonSchema)]
#[schemars(rename = "CountTokensBody")]
pub(super) struct CountTokens {
    #[schemars(length(min = 1, max = 4095))]
    messages: Vec<Turn>,
    model: Option<String>,
    system: Option<Text>,
    thinking: Option<Thinking>,
    #[schemars(length(max = 128))]
    tools: Option<Vec<ClientTool>>,
}

/// A message of a conversation.
#[derive(JsonSchema)]
#[schemars(tag = "role", rename_all = "lowercase")]
enum Turn {
    User { content: UserContent },
    Assistant { content: AssistantContent },
}

#[derive(JsonSchema)]
#[schemars(untagged)]
enum UserContent {
    Text(String),
    Blocks(#[schemars(length(min = 1))] Vec<UserBlock>),
}

#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
enum UserBlock {
    Text { text: String },
    ToolResult { tool_use_id: String, content: Option<Text>, is_error: Option<bool> },
}

#[derive(JsonSchema)]
#[schemars(untagged)]
enum AssistantContent {
    Text(String),
    Blocks(Vec<AssistantBlock>),
}

#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
enum AssistantBlock {
    Text { text: String },
    Thinking { thinking: String, signature: Option<String> },
    ToolUse { id: String, name: String, input: Map<String, Value> },
}

#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "lowercase")]
enum Thinking {
    Enabled {
        #[schemars(range(min = 0, max = 9223372036854775807_i64))]
        budget_tokens: Option<i64>,
    },
    Adaptive,
    Disabled,
}

#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "lowercase")]
enum Choice {
    Auto { disable_parallel_tool_use: Option<bool> },
    Any { disable_parallel_tool_use: Option<bool> },
    Tool { name: String, disable_parallel_tool_use: Option<bool> },
    None,
}

/// A tool that the client runs.
#[derive(JsonSchema)]
struct ClientTool {
    name: String,
    description: Option<String>,
    /// A JSON schema.
    input_schema: Option<Map<String, Value>>,
}
