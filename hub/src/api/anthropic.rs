//! `POST /v1/messages` and `/v1/messages/count_tokens`: the same answers in the format of Anthropic's API.

mod request;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use moex_engine::FinishReason;
use moex_model::text::Special;
use serde_json::{Value, json};

use super::blocks::{Block, Change, NamedEvent, Script, stream, whole};
use super::chat::{Chat, End};
use super::error::ApiError;
use super::headers::with_ignored;
use super::output::ToolCall;
use super::render;
use super::request::{ChatRequest, object};
use super::state::Api;

/// The chat that a body asks for, and the names of its unknown fields.
pub(super) fn parse(body: &[u8]) -> Result<(ChatRequest, Vec<String>), ApiError> {
    let (chat, ignored) = request::chat(&object(body)?)?;
    Ok((ChatRequest::of(&chat)?, ignored))
}

/// `POST /v1/messages`
pub(super) async fn create(
    State(api): State<Arc<Api>>,
    request: axum::extract::Request,
) -> Result<Response, Refusal> {
    let ((request, ignored), room) = api.prompts.read(request, parse).await?;
    let (streams, stops) = (request.stream, request.stop.clone());
    let mut chat = Chat::start(api.clone(), request, room).await?;
    let mut answer = Answer { api, stops, n_blocks: 0, has_calls: false };
    let response = if streams {
        stream(chat, answer).await?
    } else {
        let (blocks, end) = whole(&mut chat).await?;
        answer.has_calls = blocks.iter().any(|block| matches!(block, Block::Call(_)));
        let content = blocks.iter().enumerate().map(|(i, block)| shown(&chat, i, block)).collect();
        let mut message = message(&chat, content);
        let (reason, sequence) = answer.stop(&end);
        message["stop_reason"] = json!(reason);
        message["stop_sequence"] = sequence;
        message["usage"] = usage(&end);
        Json(message).into_response()
    };
    Ok(with_ignored(response, &ignored))
}

/// `POST /v1/messages/count_tokens`
pub(super) async fn count_tokens(
    State(api): State<Arc<Api>>,
    request: axum::extract::Request,
) -> Result<Json<Value>, Refusal> {
    let parse = |body: &[u8]| {
        let mut asked = object(body)?;
        asked.entry("max_tokens").or_insert(json!(1));
        ChatRequest::of(&request::chat(&asked)?.0)
    };
    let (request, room) = api.prompts.read(request, parse).await?;
    api.check_model(request.model.as_deref())?;
    let (_, prompt) = render::prompt(&api, request, &room).await?;
    Ok(Json(json!({ "input_tokens": prompt.ids.len() })))
}

/// An error in the format of Anthropic's API.
pub(super) struct Refusal(ApiError);

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl Refusal {
    fn body(&self) -> Value {
        let kind = match self.0.status() {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            status if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        };
        json!({ "type": "error", "error": { "type": kind, "message": self.0.message() } })
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = self.body();
        let (mut parts, _) = self.0.into_response().into_parts();
        parts.headers.remove(axum::http::header::CONTENT_LENGTH);
        (parts.status, parts.headers, Json(body)).into_response()
    }
}

/// A message being streamed or collected.
struct Answer {
    api: Arc<Api>,
    stops: Vec<String>,
    n_blocks: usize,
    has_calls: bool,
}

impl Answer {
    /// `stop_reason` and `stop_sequence`
    fn stop(&self, end: &End) -> (&'static str, Value) {
        let text = &self.api.text;
        match end.finish.reason {
            FinishReason::Length => return ("max_tokens", Value::Null),
            FinishReason::Stop if self.has_calls => return ("tool_use", Value::Null),
            FinishReason::Stop => {}
        }
        if end.finish.ids.last().is_some_and(|last| text.eos.contains(last)) || self.stops.is_empty() {
            return ("end_turn", Value::Null);
        }
        let written = text.tokenizer.decode(&end.finish.ids, Special::Skip);
        let found = self.stops.iter().filter_map(|stop| Some((written.find(stop)?, stop))).min();
        ("stop_sequence", found.map_or(Value::Null, |(_, stop)| json!(stop)))
    }
}

impl Script for Answer {
    fn begin(&mut self, chat: &Chat) -> Vec<NamedEvent> {
        vec![("message_start", json!({ "type": "message_start", "message": message(chat, Vec::new()) }))]
    }

    fn change(&mut self, chat: &Chat, change: Change) -> Vec<NamedEvent> {
        let index = self.n_blocks;
        let told = |name: &'static str, field: &str, value: Value| {
            (name, json!({ "type": name, "index": index, field: value }))
        };
        match change {
            Change::Opened(block) => {
                self.has_calls |= matches!(block, Block::Call(_));
                vec![told("content_block_start", "content_block", shown(chat, index, &block))]
            }
            Change::Grew(block) => {
                let delta = match block {
                    Block::Reasoning(text) => json!({ "type": "thinking_delta", "thinking": text }),
                    Block::Text(text) => json!({ "type": "text_delta", "text": text }),
                    Block::Call(call) => {
                        json!({ "type": "input_json_delta", "partial_json": call.arguments })
                    }
                };
                vec![told("content_block_delta", "delta", delta)]
            }
            Change::Closed(_) => {
                self.n_blocks += 1;
                vec![("content_block_stop", json!({ "type": "content_block_stop", "index": index }))]
            }
        }
    }

    fn end(&mut self, _: &Chat, end: &End) -> Vec<NamedEvent> {
        let (reason, sequence) = self.stop(end);
        let delta = json!({
            "type": "message_delta",
            "delta": { "stop_reason": reason, "stop_sequence": sequence },
            "usage": usage(end),
        });
        vec![("message_delta", delta), ("message_stop", json!({ "type": "message_stop" }))]
    }

    fn fail(&mut self, error: &ApiError) -> Vec<NamedEvent> {
        vec![("error", Refusal(error.clone()).body())]
    }
}

/// Token counts of a message.
fn usage(end: &End) -> Value {
    tokens(end.usage.prompt_tokens, end.usage.cached_tokens, end.usage.completion_tokens)
}

/// Anthropic's API counts the prompt's cached tokens and the others separately.
fn tokens(n_prompt: usize, n_cached: usize, n_written: usize) -> Value {
    json!({
        "input_tokens": n_prompt - n_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": n_cached,
        "output_tokens": n_written,
    })
}

/// A message with this content so far.
fn message(chat: &Chat, content: Vec<Value>) -> Value {
    json!({
        "id": format!("msg_{}", chat.header.id.trim_start_matches("chatcmpl-")),
        "type": "message", "role": "assistant", "model": chat.header.model, "content": content,
        "stop_reason": null, "stop_sequence": null,
        // The number of cached tokens is reported at the end.
        "usage": tokens(chat.n_prompt, 0, 0),
    })
}

/// A block as Anthropic's API writes it; truncated arguments become an empty object.
fn shown(chat: &Chat, index: usize, block: &Block) -> Value {
    match block {
        Block::Reasoning(text) => json!({ "type": "thinking", "thinking": text, "signature": "" }),
        Block::Text(text) => json!({ "type": "text", "text": text }),
        Block::Call(ToolCall { name, arguments }) => {
            let input: Value = serde_json::from_str(arguments).unwrap_or_else(|_| json!({}));
            let id = format!("toolu_{}_{index}", chat.header.id.trim_start_matches("chatcmpl-"));
            json!({ "type": "tool_use", "id": id, "name": name, "input": input })
        }
    }
}
