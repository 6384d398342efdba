//! Formats log probabilities for chat completions and completions.

use moex_engine::sampler::TokenLogprobs;
use moex_model::text::{Special, Tokenizer};
use serde_json::{Map, Value, json};

/// Log probabilities of a completion's tokens, those of an echoed prompt first.
#[derive(Debug, Clone, Default)]
pub(super) struct CompletionLogprobs {
    /// First token of the prompt; it has no log probability, since nothing precedes it.
    pub(super) first: Option<u32>,
    /// The tokens after it.
    pub(super) tokens: Vec<TokenLogprobs>,
}

/// `choices[].logprobs` of a chat completion.
pub(super) fn of_chat(tokenizer: &Tokenizer, told: &[TokenLogprobs]) -> Value {
    let entry = |token: u32, logprob: f64| {
        let bytes = tokenizer.bytes(token, Special::Keep);
        json!({ "token": shown(bytes), "logprob": logprob, "bytes": bytes })
    };
    let content = told.iter().map(|one| {
        let mut token = entry(one.token, one.logprob);
        token["top_logprobs"] = one.top.iter().map(|(token, logprob)| entry(*token, *logprob)).collect();
        token
    });
    json!({ "content": content.collect::<Value>(), "refusal": null })
}

/// `choices[].logprobs` of a completion. `offset` is the number of characters before the first token, and is advanced
/// past the last.
pub(super) fn of_completion(tokenizer: &Tokenizer, told: &CompletionLogprobs, offset: &mut usize) -> Value {
    let bytes = |token: u32| tokenizer.bytes(token, Special::Keep);
    let text = |token: u32| shown(bytes(token));
    let ids = || told.first.into_iter().chain(told.tokens.iter().map(|one| one.token));
    let offsets = ids().map(|token| {
        let before = *offset;
        // A character counts for the token that begins it.
        *offset += bytes(token).iter().filter(|byte| !is_continuation(**byte)).count();
        before
    });
    let offsets: Value = offsets.collect();
    let first = || told.first.map(|_| Value::Null);
    let top = told.tokens.iter().map(|one| {
        let mut top: Map<String, Value> =
            one.top.iter().rev().map(|(token, logprob)| (text(*token), json!(logprob))).collect();
        // OpenAI includes the token itself even if it is not among the best.
        top.insert(text(one.token), json!(one.logprob));
        Value::Object(top)
    });
    json!({
        "tokens": ids().map(text).collect::<Value>(),
        "token_logprobs": first().into_iter().chain(told.tokens.iter().map(|one| json!(one.logprob))).collect::<Value>(),
        "top_logprobs": first().into_iter().chain(top).collect::<Value>(),
        "text_offset": offsets,
    })
}

/// Whether a byte continues a UTF-8 character.
fn is_continuation(byte: u8) -> bool {
    byte & 0xC0 == 0x80
}

/// A token's text; bytes that are not valid characters by themselves become U+FFFD.
fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
