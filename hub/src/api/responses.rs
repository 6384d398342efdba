//! `POST /v1/responses`: the same answers in the format of OpenAI's Responses API. Nothing is stored: every request
//! brings its history.

mod request;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::blocks::{Block, Change, NamedEvent, Script, stream, whole};
use super::chat::{Chat, End};
use super::error::ApiError;
use super::headers::with_ignored;
use super::reply::Usage;
use super::request::{ChatRequest, object};
use super::state::Api;
use moex_engine::FinishReason;

/// The chat that a body asks for, the body, and the names of its unknown fields.
type ParsedBody = (ChatRequest, Map<String, Value>, Vec<String>);

/// Parses a body.
pub(super) fn parse(body: &[u8]) -> Result<ParsedBody, ApiError> {
    let asked = object(body)?;
    let (chat, ignored) = request::chat(&asked)?;
    Ok((ChatRequest::of(&chat)?, asked, ignored))
}

/// The handler.
pub(super) async fn respond(
    State(api): State<Arc<Api>>,
    request: axum::extract::Request,
) -> Result<Response, ApiError> {
    let ((request, asked, ignored), room) = api.prompts.read(request, parse).await?;
    let streams = request.stream;
    let mut chat = Chat::start(api, request, room).await?;
    let mut answer = Answer::new(&asked, &chat);
    let response = if streams {
        stream(chat, answer).await?
    } else {
        let (blocks, end) = whole(&mut chat).await?;
        answer.items =
            blocks.iter().enumerate().map(|(i, block)| answer.item(i, block, "completed")).collect();
        Json(answer.body(Some(&end))).into_response()
    };
    Ok(with_ignored(response, &ignored))
}

/// A response being streamed or collected.
struct Answer {
    /// The part that all its ids share.
    id: String,
    created: u64,
    model: String,
    /// Fields of the request that the response repeats.
    repeated: Map<String, Value>,
    /// Completed items.
    items: Vec<Value>,
    /// The current item, as it began.
    open: Value,
    n_events: u64,
}

impl Answer {
    fn new(asked: &Map<String, Value>, chat: &Chat) -> Self {
        let defaults = [
            ("instructions", Value::Null),
            ("metadata", json!({})),
            ("max_output_tokens", Value::Null),
            ("parallel_tool_calls", json!(true)),
            ("reasoning", json!({ "effort": null, "summary": null })),
            ("temperature", Value::Null),
            ("text", json!({ "format": { "type": "text" } })),
            ("tool_choice", json!("auto")),
            ("tools", json!([])),
            ("top_p", Value::Null),
            ("truncation", json!("disabled")),
            ("user", Value::Null),
        ];
        let repeated = defaults.into_iter().map(|(name, default)| {
            let said = asked.get(name).filter(|value| !value.is_null()).cloned();
            (name.to_owned(), said.unwrap_or(default))
        });
        Self {
            id: chat.header.id.trim_start_matches("chatcmpl-").to_owned(),
            created: chat.header.created,
            model: chat.header.model.clone(),
            repeated: repeated.collect(),
            items: Vec::new(),
            open: Value::Null,
            n_events: 0,
        }
    }

    /// The response object; without `end`, of an unfinished response.
    fn body(&self, end: Option<&End>) -> Value {
        let is_cut = end.is_some_and(|end| end.finish.reason == FinishReason::Length);
        let status = match end {
            None => "in_progress",
            Some(_) if is_cut => "incomplete",
            Some(_) => "completed",
        };
        let mut body = json!({
            "id": format!("resp_{}", self.id), "object": "response", "created_at": self.created, "status": status,
            "background": false, "error": null,
            "incomplete_details": if is_cut { json!({ "reason": "max_output_tokens" }) } else { Value::Null },
            "model": self.model, "output": self.items, "previous_response_id": null, "store": false,
            "usage": end.map(|end| usage(end.usage)),
        });
        if let Some(body) = body.as_object_mut() {
            body.extend(self.repeated.clone());
        }
        body
    }

    /// One item of the output.
    fn item(&self, index: usize, block: &Block, status: &str) -> Value {
        let id = |kind: &str| format!("{kind}_{}_{index}", self.id);
        match block {
            Block::Reasoning(text) => json!({
                "type": "reasoning", "id": id("rs"), "summary": [], "status": status,
                "content": if text.is_empty() { json!([]) } else { json!([part(block)]) },
            }),
            Block::Text(text) => json!({
                "type": "message", "id": id("msg"), "role": "assistant", "status": status,
                "content": if text.is_empty() { json!([]) } else { json!([part(block)]) },
            }),
            Block::Call(call) => json!({
                "type": "function_call", "id": id("fc"), "call_id": id("call"), "name": call.name,
                "arguments": call.arguments, "status": status,
            }),
        }
    }

    fn event(&mut self, name: &'static str, mut data: Value) -> NamedEvent {
        data["type"] = json!(name);
        data["sequence_number"] = json!(self.n_events);
        self.n_events += 1;
        (name, data)
    }
}

impl Script for Answer {
    fn begin(&mut self, _: &Chat) -> Vec<NamedEvent> {
        let body = self.body(None);
        ["response.created", "response.in_progress"]
            .into_iter()
            .map(|name| self.event(name, json!({ "response": body })))
            .collect()
    }

    fn change(&mut self, _: &Chat, change: Change) -> Vec<NamedEvent> {
        let index = self.items.len();
        let at = |item: &Value| json!({ "item_id": item["id"], "output_index": index, "content_index": 0 });
        let mut told = Vec::new();
        match change {
            Change::Opened(block) => {
                let item = self.item(index, &block, "in_progress");
                told.push(
                    self.event("response.output_item.added", json!({ "output_index": index, "item": item })),
                );
                if !matches!(block, Block::Call(_)) {
                    let mut data = at(&item);
                    data["part"] = part(&block);
                    told.push(self.event("response.content_part.added", data));
                }
                self.open = item;
            }
            Change::Grew(block) => {
                let mut data = at(&self.open);
                told.push(match block {
                    Block::Reasoning(text) => {
                        data["delta"] = json!(text);
                        self.event("response.reasoning_text.delta", data)
                    }
                    Block::Text(text) => {
                        data["delta"] = json!(text);
                        data["logprobs"] = json!([]);
                        self.event("response.output_text.delta", data)
                    }
                    Block::Call(call) => {
                        data["delta"] = json!(call.arguments);
                        self.event("response.function_call_arguments.delta", without_part(data))
                    }
                });
            }
            Change::Closed(block) => {
                let item = self.item(index, &block, "completed");
                let mut data = at(&item);
                match &block {
                    Block::Reasoning(text) => {
                        data["text"] = json!(text);
                        told.push(self.event("response.reasoning_text.done", data));
                    }
                    Block::Text(text) => {
                        data["text"] = json!(text);
                        data["logprobs"] = json!([]);
                        told.push(self.event("response.output_text.done", data));
                    }
                    Block::Call(call) => {
                        data["arguments"] = json!(call.arguments);
                        data["name"] = json!(call.name);
                        let data = without_part(data);
                        told.push(self.event("response.function_call_arguments.done", data));
                    }
                }
                if !matches!(block, Block::Call(_)) {
                    let mut data = at(&item);
                    data["part"] = part(&block);
                    told.push(self.event("response.content_part.done", data));
                }
                told.push(
                    self.event("response.output_item.done", json!({ "output_index": index, "item": item })),
                );
                self.items.push(item);
            }
        }
        told
    }

    fn end(&mut self, _: &Chat, end: &End) -> Vec<NamedEvent> {
        let body = self.body(Some(end));
        let name = match end.finish.reason {
            FinishReason::Length => "response.incomplete",
            FinishReason::Stop => "response.completed",
        };
        vec![self.event(name, json!({ "response": body }))]
    }

    fn fail(&mut self, error: &ApiError) -> Vec<NamedEvent> {
        let mut body = self.body(None);
        let said = &error.body()["error"];
        body["status"] = json!("failed");
        body["error"] = json!({ "code": said["code"], "message": said["message"] });
        vec![self.event("response.failed", json!({ "response": body }))]
    }
}

/// The content of a message or of thinking.
fn part(block: &Block) -> Value {
    match block {
        Block::Reasoning(text) => json!({ "type": "reasoning_text", "text": text }),
        Block::Text(text) => {
            json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
        }
        Block::Call(_) => Value::Null,
    }
}

/// A call has no content parts.
fn without_part(mut data: Value) -> Value {
    if let Some(map) = data.as_object_mut() {
        map.shift_remove("content_index");
    }
    data
}

fn usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": { "cached_tokens": usage.cached_tokens },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": { "reasoning_tokens": usage.reasoning_tokens },
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    })
}
