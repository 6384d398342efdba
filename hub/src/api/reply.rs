//! The bodies of answers: `chat.completion` and its streamed chunks.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::output::{Piece, ToolCall};

/// Why an answer ended, in OpenAI's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FinishReason {
    /// The model ended it, or a stop string came.
    Stop,
    /// `max_tokens`, or the context, was used up.
    Length,
    /// The model called a tool.
    ToolCalls,
}

impl FinishReason {
    fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
        }
    }
}

/// Token counts of one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// The rendered conversation.
    pub(super) prompt_tokens: usize,
    /// The answer: reasoning, content and calls, the end token included.
    pub(super) completion_tokens: usize,
}

impl Usage {
    fn json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        })
    }
}

/// What the engine measured of one request, by the names of llama.cpp's server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timings {
    /// The tokens whose times these are.
    pub(super) usage: Usage,
    /// From the first step of the prompt to the first token.
    pub(super) prompt: Duration,
    /// From the first token to the last.
    pub(super) generation: Duration,
}

impl Timings {
    /// `timings`. A rate is null where no time passed. The first token comes with the prompt's last step, so that
    /// `predicted_per_second` counts those after it: `(predicted_n - 1) / predicted_ms`, a thousand times.
    pub(super) fn json(self) -> Value {
        let Usage { prompt_tokens, completion_tokens } = self.usage;
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let rate = |tokens: usize, time: Duration| {
            (tokens > 0 && !time.is_zero()).then(|| tokens as f64 / time.as_secs_f64())
        };
        json!({
            "prompt_n": prompt_tokens,
            "prompt_ms": millis(self.prompt),
            "prompt_per_second": rate(prompt_tokens, self.prompt),
            "predicted_n": completion_tokens,
            "predicted_ms": millis(self.generation),
            "predicted_per_second": rate(completion_tokens.saturating_sub(1), self.generation),
        })
    }
}

/// What every body of one answer repeats.
#[derive(Debug, Clone)]
pub(super) struct Header {
    /// `chatcmpl-…`.
    pub(super) id: String,
    /// Unix seconds.
    pub(super) created: u64,
    /// The served model's name.
    pub(super) model: String,
}

impl Header {
    fn body(&self, object: &str, rest: Value) -> Value {
        let mut body = json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
        });
        if let (Some(body), Value::Object(rest)) = (body.as_object_mut(), rest) {
            body.extend(rest);
        }
        body
    }

    fn chunk(&self, delta: Value, finish: Option<FinishReason>) -> Value {
        let finish = finish.map(FinishReason::name);
        let choice = json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish });
        self.body("chat.completion.chunk", json!({ "choices": [choice] }))
    }

    /// The first chunk: who speaks.
    pub(super) fn first_chunk(&self) -> Value {
        self.chunk(json!({ "role": "assistant", "content": "" }), None)
    }

    /// A chunk with a piece of the answer. `call_index` counts the calls before this piece.
    pub(super) fn piece_chunk(&self, piece: &Piece, call_index: usize) -> Value {
        let delta = match piece {
            Piece::Reasoning(text) => json!({ "reasoning_content": text }),
            Piece::Content(text) => json!({ "content": text }),
            Piece::Call(call) => {
                let mut call = self.call(call, call_index);
                if let Some(call) = call.as_object_mut() {
                    call.insert("index".to_owned(), json!(call_index));
                }
                json!({ "tool_calls": [call] })
            }
        };
        self.chunk(delta, None)
    }

    /// The last chunk of the answer.
    pub(super) fn last_chunk(&self, finish: FinishReason) -> Value {
        self.chunk(json!({}), Some(finish))
    }

    /// The chunk of token counts that `stream_options.include_usage` asks for.
    pub(super) fn usage_chunk(&self, usage: Usage) -> Value {
        self.body("chat.completion.chunk", json!({ "choices": [], "usage": usage.json() }))
    }

    /// The whole answer.
    pub(super) fn completion(&self, answer: &Answer, finish: FinishReason, usage: Usage) -> Value {
        let choice = json!({
            "index": 0, "message": answer.message(self), "logprobs": null, "finish_reason": finish.name(),
        });
        self.body("chat.completion", json!({ "choices": [choice], "usage": usage.json() }))
    }

    /// A call as the API shows it; its id is made of the answer's, so that it is new in a conversation.
    fn call(&self, call: &ToolCall, index: usize) -> Value {
        let answer = self.id.trim_start_matches("chatcmpl-");
        json!({
            "id": format!("call_{answer}_{index}"),
            "type": "function",
            "function": { "name": call.name, "arguments": call.arguments },
        })
    }
}

/// An answer put together from its pieces.
#[derive(Debug, Clone, Default)]
pub(super) struct Answer {
    reasoning: String,
    content: String,
    calls: Vec<ToolCall>,
}

impl Answer {
    /// Adds a piece.
    pub(super) fn add(&mut self, piece: Piece) {
        match piece {
            Piece::Reasoning(text) => self.reasoning.push_str(&text),
            Piece::Content(text) => self.content.push_str(&text),
            Piece::Call(call) => self.calls.push(call),
        }
    }

    /// Whether a tool was called.
    pub(super) fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    fn message(&self, header: &Header) -> Value {
        let mut message = Map::new();
        message.insert("role".to_owned(), json!("assistant"));
        let content =
            if self.content.is_empty() && !self.calls.is_empty() { Value::Null } else { json!(self.content) };
        message.insert("content".to_owned(), content);
        if !self.reasoning.is_empty() {
            message.insert("reasoning_content".to_owned(), json!(self.reasoning));
        }
        if !self.calls.is_empty() {
            let calls = self.calls.iter().enumerate().map(|(index, call)| header.call(call, index));
            message.insert("tool_calls".to_owned(), calls.collect());
        }
        Value::Object(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timings_are_the_engines_times_and_rates_of_them() {
        let usage = Usage { prompt_tokens: 50, completion_tokens: 21 };
        let timings =
            Timings { usage, prompt: Duration::from_millis(250), generation: Duration::from_millis(500) };
        assert_eq!(
            timings.json(),
            json!({
                "prompt_n": 50, "prompt_ms": 250.0, "prompt_per_second": 200.0,
                "predicted_n": 21, "predicted_ms": 500.0, "predicted_per_second": 40.0,
            })
        );
        let one =
            Timings { usage: Usage { completion_tokens: 1, ..usage }, generation: Duration::ZERO, ..timings };
        assert_eq!(one.json()["predicted_per_second"], Value::Null, "one token has no rate");
    }

    #[test]
    fn a_whole_answer_with_reasoning_and_a_call() {
        let header = Header { id: "chatcmpl-7".to_owned(), created: 1, model: "m".to_owned() };
        let mut answer = Answer::default();
        answer.add(Piece::Reasoning("so".to_owned()));
        let call = ToolCall { name: "f".to_owned(), arguments: "{\"a\": 1}".to_owned() };
        answer.add(Piece::Call(call));
        let usage = Usage { prompt_tokens: 3, completion_tokens: 4 };
        assert_eq!(
            header.completion(&answer, FinishReason::ToolCalls, usage),
            json!({
                "id": "chatcmpl-7", "object": "chat.completion", "created": 1, "model": "m",
                "choices": [{
                    "index": 0, "logprobs": null, "finish_reason": "tool_calls",
                    "message": {
                        "role": "assistant", "content": null, "reasoning_content": "so",
                        "tool_calls": [{
                            "id": "call_7_0", "type": "function",
                            "function": {"name": "f", "arguments": "{\"a\": 1}"},
                        }],
                    },
                }],
                "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
            })
        );
    }
}
