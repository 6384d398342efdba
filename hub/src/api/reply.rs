//! Bodies of answers: `chat.completion` and its streamed chunks.

use std::time::Duration;

use serde_json::{Map, Value, json};

use moex_engine::sampler::TokenLogprobs;

use super::output::{Piece, ToolCall};

/// Why an answer ended, by OpenAI's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FinishReason {
    /// The model ended it, or a stop string occurred.
    Stop,
    /// `max_tokens` or the context was used up.
    Length,
    /// The model called a tool.
    ToolCalls,
}

impl FinishReason {
    /// Converts the engine's reason, depending on whether the answer calls tools.
    pub(super) fn of(reason: moex_engine::FinishReason, has_calls: bool) -> Self {
        match reason {
            moex_engine::FinishReason::Length => Self::Length,
            moex_engine::FinishReason::Stop if has_calls => Self::ToolCalls,
            moex_engine::FinishReason::Stop => Self::Stop,
        }
    }

    pub(super) fn name(self) -> &'static str {
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
    /// Tokens of the rendered conversation.
    pub(super) prompt_tokens: usize,
    /// Leading prompt tokens that were in the prefix cache.
    pub(super) cached_tokens: usize,
    /// Tokens of the answer: reasoning, content and calls, including the end token.
    pub(super) completion_tokens: usize,
    /// Tokens of the answer that are thinking.
    pub(super) reasoning_tokens: usize,
    /// Drafted tokens that were accepted.
    pub(super) accepted_tokens: usize,
    /// Drafted tokens that were rejected.
    pub(super) rejected_tokens: usize,
}

impl Usage {
    /// Converts the engine's counts and adds the thinking tokens.
    pub(super) fn of(usage: moex_engine::Usage, reasoning_tokens: usize) -> Self {
        let moex_engine::Usage {
            prompt_tokens,
            cached_tokens,
            completion_tokens,
            guessed_tokens,
            accepted_tokens,
        } = usage;
        let rejected_tokens = guessed_tokens - accepted_tokens;
        Self {
            prompt_tokens,
            cached_tokens,
            completion_tokens,
            reasoning_tokens,
            accepted_tokens,
            rejected_tokens,
        }
    }

    /// Without the prompt's tokens, which are counted elsewhere.
    pub(super) fn of_answer(self) -> Self {
        Self { prompt_tokens: 0, cached_tokens: 0, ..self }
    }

    /// Sum over several completions of one prompt, which counts once.
    pub(super) fn sum(texts: impl Iterator<Item = Self>) -> Self {
        let sum = texts.reduce(|sum, text| Self {
            prompt_tokens: sum.prompt_tokens.max(text.prompt_tokens),
            // Only the first computes the prompt; the others reuse it.
            cached_tokens: sum.cached_tokens.min(text.cached_tokens),
            accepted_tokens: sum.accepted_tokens + text.accepted_tokens,
            rejected_tokens: sum.rejected_tokens + text.rejected_tokens,
            completion_tokens: sum.completion_tokens + text.completion_tokens,
            reasoning_tokens: sum.reasoning_tokens + text.reasoning_tokens,
        });
        sum.unwrap_or_default()
    }

    /// `usage`
    pub(super) fn json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": { "cached_tokens": self.cached_tokens },
            "completion_tokens_details": {
                "reasoning_tokens": self.reasoning_tokens,
                "accepted_prediction_tokens": self.accepted_tokens,
                "rejected_prediction_tokens": self.rejected_tokens,
            },
        })
    }
}

/// Timings of one request, by the names of llama.cpp's server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timings {
    /// The token counts.
    pub(super) usage: Usage,
    /// Time from the first step of the prompt to the first token.
    pub(super) prompt: Duration,
    /// Time from the first token to the last.
    pub(super) generation: Duration,
}

impl Timings {
    /// `timings`. A rate is null if no time passed. The first token comes from the prompt's last step, so
    /// `predicted_per_second` counts the tokens after it: `1000 * (predicted_n - 1) / predicted_ms`.
    pub(super) fn json(self) -> Value {
        let Usage { prompt_tokens, completion_tokens, .. } = self.usage;
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

/// Fields repeated in every body of one answer.
#[derive(Debug, Clone)]
pub(super) struct Header {
    /// `chatcmpl-…`.
    pub(super) id: String,
    /// Unix seconds.
    pub(super) created: u64,
    /// The served model's name.
    pub(super) model: String,
    /// Identifies the computation: the same for the same model, hub and arithmetic.
    pub(super) fingerprint: String,
}

impl Header {
    /// A body of this kind.
    pub(super) fn body(&self, object: &str, rest: Value) -> Value {
        let mut body = json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "system_fingerprint": self.fingerprint,
        });
        if let (Some(body), Value::Object(rest)) = (body.as_object_mut(), rest) {
            body.extend(rest);
        }
        body
    }

    fn chunk(&self, index: usize, delta: Value, logprobs: Value, finish: Option<FinishReason>) -> Value {
        let finish = finish.map(FinishReason::name);
        let choice = json!({ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish });
        self.body("chat.completion.chunk", json!({ "choices": [choice] }))
    }

    /// The first chunk of a choice: the role.
    pub(super) fn first_chunk(&self, index: usize) -> Value {
        self.chunk(index, json!({ "role": "assistant", "content": "" }), Value::Null, None)
    }

    /// A chunk with a piece of a choice. `call_index` counts the calls before this piece.
    pub(super) fn piece_chunk(
        &self,
        index: usize,
        piece: &Piece,
        call_index: usize,
        logprobs: Value,
    ) -> Value {
        let delta = match piece {
            Piece::Reasoning(text) => json!({ "reasoning_content": text }),
            Piece::Content(text) => json!({ "content": text }),
            Piece::Call(call) => {
                let mut call = self.call(call, index, call_index);
                if let Some(call) = call.as_object_mut() {
                    call.insert("index".to_owned(), json!(call_index));
                }
                json!({ "tool_calls": [call] })
            }
        };
        self.chunk(index, delta, logprobs, None)
    }

    /// The last chunk of a choice.
    pub(super) fn last_chunk(&self, index: usize, finish: FinishReason, logprobs: Value) -> Value {
        self.chunk(index, json!({}), logprobs, Some(finish))
    }

    /// The chunk with token counts that `stream_options.include_usage` asks for.
    pub(super) fn usage_chunk(&self, usage: Usage) -> Value {
        self.body("chat.completion.chunk", json!({ "choices": [], "usage": usage.json() }))
    }

    /// The whole answer.
    pub(super) fn completion(&self, choices: Vec<Value>, usage: Usage) -> Value {
        self.body("chat.completion", json!({ "choices": choices, "usage": usage.json() }))
    }

    /// One choice of a whole answer.
    pub(super) fn choice(
        &self,
        index: usize,
        answer: &Answer,
        logprobs: Value,
        finish: FinishReason,
    ) -> Value {
        json!({
            "index": index, "message": answer.message(self, index), "logprobs": logprobs,
            "finish_reason": finish.name(),
        })
    }

    /// A call in the API's format; its id is derived from the answer's, so that it is unique in a conversation.
    fn call(&self, call: &ToolCall, choice: usize, index: usize) -> Value {
        json!({
            "id": self.call_id(choice, index),
            "type": "function",
            "function": { "name": call.name, "arguments": call.arguments },
        })
    }
}

impl Header {
    /// Id of one of a choice's calls.
    pub(super) fn call_id(&self, choice: usize, index: usize) -> String {
        let answer = self.id.trim_start_matches("chatcmpl-");
        match choice {
            0 => format!("call_{answer}_{index}"),
            choice => format!("call_{answer}_{choice}_{index}"),
        }
    }
}

/// A choice assembled from its pieces.
#[derive(Debug, Clone, Default)]
pub(super) struct Answer {
    pub(super) reasoning: String,
    pub(super) content: String,
    pub(super) calls: Vec<ToolCall>,
    pub(super) logprobs: Vec<TokenLogprobs>,
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

    fn message(&self, header: &Header, choice: usize) -> Value {
        let mut message = Map::new();
        message.insert("role".to_owned(), json!("assistant"));
        let content =
            if self.content.is_empty() && !self.calls.is_empty() { Value::Null } else { json!(self.content) };
        message.insert("content".to_owned(), content);
        if !self.reasoning.is_empty() {
            message.insert("reasoning_content".to_owned(), json!(self.reasoning));
        }
        if !self.calls.is_empty() {
            let calls = self.calls.iter().enumerate().map(|(index, call)| header.call(call, choice, index));
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
        let usage = Usage { prompt_tokens: 50, completion_tokens: 21, ..Usage::default() };
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
        let header = Header {
            id: "chatcmpl-7".to_owned(),
            created: 1,
            model: "m".to_owned(),
            fingerprint: "fp_1".to_owned(),
        };
        let mut answer = Answer::default();
        answer.add(Piece::Reasoning("so".to_owned()));
        let call = ToolCall { name: "f".to_owned(), arguments: "{\"a\": 1}".to_owned() };
        answer.add(Piece::Call(call));
        let usage = Usage {
            prompt_tokens: 3,
            cached_tokens: 2,
            completion_tokens: 4,
            reasoning_tokens: 1,
            ..Usage::default()
        };
        let choice = header.choice(0, &answer, Value::Null, FinishReason::ToolCalls);
        assert_eq!(
            header.completion(vec![choice], usage),
            json!({
                "id": "chatcmpl-7", "object": "chat.completion", "created": 1, "model": "m",
                "system_fingerprint": "fp_1",
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
                "usage": {
                    "prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7,
                    "prompt_tokens_details": {"cached_tokens": 2},
                    "completion_tokens_details": {
                        "reasoning_tokens": 1, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0,
                    },
                },
            })
        );
    }
}
