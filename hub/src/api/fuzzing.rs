//! The body of a fuzz target in `hub/fuzz`, here so that ordinary tests run it too.

use moex_model::text::OutputFormat;

use super::completions::CompletionRequest;
use super::grammar::{Thinking, source};
use super::prompts::check_values;
use super::request::ChatRequest;
use super::{anthropic, responses};

/// A route, by the first byte, and any bytes as a body to it: reading it ends without a panic, and so does the grammar of what
/// it asks for.
pub fn body(bytes: &[u8]) {
    let Some((route, body)) = bytes.split_first() else { return };
    if check_values(body).is_err() {
        return;
    }
    let chat = match route % 4 {
        0 => ChatRequest::parse(body),
        1 => responses::parse(body).map(|(chat, ..)| chat),
        2 => anthropic::parse(body).map(|(chat, _)| chat),
        _ => return drop(CompletionRequest::parse(body)),
    };
    if let Ok(chat) = chat {
        drop(source(&chat, Thinking::Possible, OutputFormat::TAGS));
    }
}
