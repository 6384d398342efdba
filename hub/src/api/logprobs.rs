//! Log probabilities as the two APIs write them: chat completions and completions.

use moex_engine::sampler::TokenLogprobs;
use moex_model::text::{Special, Tokenizer};
use serde_json::{Map, Value, json};

/// What a completion tells of its tokens, those of an echoed prompt first.
#[derive(Debug, Clone, Default)]
pub(super) struct Told {
    /// The first token of the prompt, which is no more or less probable than any other: nothing stands before it.
    pub(super) first: Option<u32>,
    /// Those behind it.
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

/// `choices[].logprobs` of a completion. `offset` counts the characters before the first token, and is moved behind the
/// last.
pub(super) fn of_completion(tokenizer: &Tokenizer, told: &Told, offset: &mut usize) -> Value {
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
        // OpenAI tells the token itself too, where it is not among the best.
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

/// Whether a byte of UTF-8 goes on with a character.
fn is_continuation(byte: u8) -> bool {
    byte & 0xC0 == 0x80
}

/// A token's text; bytes that are no characters by themselves are shown as U+FFFD.
fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
