//! Log probabilities as the two APIs write them: chat completions and completions.

use moex_engine::sampler::TokenLogprobs;
use moex_model::text::{Special, Tokenizer};
use serde_json::{Map, Value, json};

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
pub(super) fn of_completion(tokenizer: &Tokenizer, told: &[TokenLogprobs], offset: &mut usize) -> Value {
    let text = |token: u32| shown(tokenizer.bytes(token, Special::Keep));
    let mut offsets = Vec::with_capacity(told.len());
    for one in told {
        offsets.push(*offset);
        *offset += text(one.token).chars().count();
    }
    let top = told.iter().map(|one| {
        let mut top: Map<String, Value> =
            one.top.iter().rev().map(|(token, logprob)| (text(*token), json!(logprob))).collect();
        // OpenAI tells the token itself too, where it is not among the best.
        top.insert(text(one.token), json!(one.logprob));
        Value::Object(top)
    });
    json!({
        "tokens": told.iter().map(|one| text(one.token)).collect::<Vec<_>>(),
        "token_logprobs": told.iter().map(|one| one.logprob).collect::<Vec<_>>(),
        "top_logprobs": top.collect::<Value>(),
        "text_offset": offsets,
    })
}

/// A token's text; bytes that are no characters by themselves are shown as U+FFFD.
fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
