//! Converts the body of a messages request to that of a chat completion.

use serde_json::{Map, Value, json};

use super::super::error::ApiError;
use super::super::fields::{Fields, shown, text, wrong};

/// The type of blocks that are text.
const TEXT: &[&str] = &["text"];

/// Fields that are read unchanged, by the same name or another.
const SAME: [(&str, &str); 8] = [
    ("model", "model"),
    ("max_tokens", "max_tokens"),
    ("stop_sequences", "stop"),
    ("stream", "stream"),
    ("temperature", "temperature"),
    ("top_k", "top_k"),
    ("top_p", "top_p"),
    ("seed", "seed"),
];
/// Fields that this file reads.
const READ: [&str; 5] = ["messages", "system", "thinking", "tool_choice", "tools"];
/// Fields that do not change the answer.
const HARMLESS: [&str; 4] = ["metadata", "service_tier", "cache_control", "inference_geo"];
/// Fields whose feature does not exist here.
const REFUSED: [(&str, &str); 3] = [
    ("mcp_servers", "tools are called by the client"),
    ("container", "nothing is run here"),
    ("output_config", "/v1/chat/completions has \"response_format\""),
];

/// Returns the body of a chat completion, and the names of unknown fields.
pub(super) fn chat(asked: &Map<String, Value>) -> Result<(Map<String, Value>, Vec<String>), ApiError> {
    let fields = Fields(asked);
    for (name, why) in REFUSED {
        if fields.value(name).is_some() {
            return Err(ApiError::unsupported(
                name,
                format!("This server does not do what \"{name}\" asks for: {why}. Leave it out."),
            ));
        }
    }
    if fields.value("max_tokens").is_none() {
        return Err(ApiError::invalid(
            "max_tokens",
            "\"max_tokens\" is missing: it must be a whole number of at least 1.",
        ));
    }
    fields.list("stop_sequences")?;
    let mut chat = Map::new();
    for (theirs, ours) in SAME {
        if let Some(value) = fields.value(theirs) {
            chat.insert(ours.to_owned(), value.clone());
        }
    }
    let is_known = |name: &str| {
        SAME.iter().any(|(theirs, _)| *theirs == name) || READ.contains(&name) || HARMLESS.contains(&name)
    };
    let mut ignored: Vec<String> = asked.keys().filter(|name| !is_known(name)).cloned().collect();
    let thinks = match fields.object("thinking")? {
        None => false,
        Some(thinking) => {
            if thinking.integer("budget_tokens", 0..=i64::MAX)?.is_some() {
                ignored.push("thinking.budget_tokens".to_owned());
            }
            match thinking.string("type")? {
                Some("enabled" | "adaptive") => true,
                Some("disabled") => false,
                _ => {
                    return Err(ApiError::invalid(
                        "thinking",
                        "\"thinking\" must have the \"type\" enabled, adaptive or disabled.",
                    ));
                }
            }
        }
    };
    chat.insert("chat_template_kwargs".to_owned(), json!({ "enable_thinking": thinks }));
    chat.insert("messages".to_owned(), Value::Array(messages(&fields)?));
    if let Some(tools) = fields.list("tools")? {
        chat.insert("tools".to_owned(), tools.iter().enumerate().map(tool).collect::<Result<_, _>>()?);
    }
    if let Some(choice) = fields.object("tool_choice")? {
        let ours = match choice.string("type")? {
            Some("auto") => json!("auto"),
            Some("any") => json!("required"),
            Some("none") => json!("none"),
            Some("tool") => json!({ "type": "function", "function": { "name": choice.value("name") } }),
            _ => {
                return Err(ApiError::invalid(
                    "tool_choice",
                    "\"tool_choice\" must have the \"type\" auto, any, tool or none.",
                ));
            }
        };
        chat.insert("tool_choice".to_owned(), ours);
        if choice.boolean("disable_parallel_tool_use")? == Some(true) {
            chat.insert("parallel_tool_calls".to_owned(), json!(false));
        }
    }
    // As in Anthropic's API, an answer that the client began is continued.
    let begun =
        chat["messages"].as_array().and_then(|m| m.last()).is_some_and(|last| last["role"] == "assistant");
    if begun {
        chat.insert("continue_final_message".to_owned(), json!(true));
    }
    Ok((chat, ignored))
}

fn tool((index, tool): (usize, &Value)) -> Result<Value, ApiError> {
    let kind = tool.get("type").and_then(Value::as_str).unwrap_or("custom");
    if kind != "custom" {
        return Err(ApiError::unsupported(
            "tools",
            format!("tools[{index}] is not the client's own: this server has no tools. Leave it out."),
        ));
    }
    let mut function = json!({ "name": tool["name"], "parameters": tool["input_schema"] });
    for name in ["description", "strict"] {
        if let Some(value) = tool.get(name).filter(|value| !value.is_null()) {
            function[name] = value.clone();
        }
    }
    Ok(json!({ "type": "function", "function": function }))
}

fn messages(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let mut messages = Vec::new();
    if let Some(system) = fields.value("system") {
        let text =
            text(system, TEXT).ok_or_else(|| wrong("system", "a string or a list of text blocks", system))?;
        messages.push(json!({ "role": "system", "content": text }));
    }
    let list = fields.list("messages")?.ok_or_else(|| {
        ApiError::invalid("messages", "\"messages\" is missing: it must be a list of messages.")
    })?;
    for (index, message) in list.iter().enumerate() {
        let bad = |what: String| ApiError::invalid("messages", format!("messages[{index}] {what}."));
        match message["role"].as_str() {
            Some("user") => user(&message["content"], &mut messages).map_err(bad)?,
            Some("assistant") => messages.push(assistant(&message["content"]).map_err(bad)?),
            _ => return Err(bad("must have the \"role\" user or assistant".to_owned())),
        }
    }
    Ok(messages)
}

/// Adds a user's message, and before it the results of tools.
fn user(content: &Value, messages: &mut Vec<Value>) -> Result<(), String> {
    let Value::Array(blocks) = content else {
        let text = content.as_str().ok_or("must have a string or a list of blocks as \"content\"")?;
        messages.push(json!({ "role": "user", "content": text }));
        return Ok(());
    };
    let mut said = Vec::new();
    for block in blocks {
        match block["type"].as_str() {
            Some("text") => said.push(block["text"].as_str().ok_or("has a text block without \"text\"")?),
            Some("tool_result") => {
                let result = match &block["content"] {
                    Value::Null => String::new(),
                    content => text(content, TEXT).ok_or("has a tool_result that is not text")?,
                };
                if !block["is_error"].is_null() && !block["is_error"].is_boolean() {
                    return Err("has a tool_result whose \"is_error\" is not true or false".to_owned());
                }
                let id = block["tool_use_id"].as_str().ok_or("has a tool_result without \"tool_use_id\"")?;
                messages.push(json!({ "role": "tool", "tool_call_id": id, "content": result }));
            }
            _ => {
                return Err(format!(
                    "has a block of type {}; this model reads text only",
                    shown(&block["type"])
                ));
            }
        }
    }
    if !said.is_empty() {
        messages.push(json!({ "role": "user", "content": said.concat() }));
    }
    Ok(())
}

fn assistant(content: &Value) -> Result<Value, String> {
    let Value::Array(blocks) = content else {
        let text = content.as_str().ok_or("must have a string or a list of blocks as \"content\"")?;
        return Ok(json!({ "role": "assistant", "content": text }));
    };
    let (mut text, mut thought, mut calls) = (String::new(), String::new(), Vec::new());
    for block in blocks {
        let part = |name: &str| block[name].as_str().unwrap_or_default();
        match block["type"].as_str() {
            Some("text") => text.push_str(part("text")),
            Some("thinking") => thought.push_str(part("thinking")),
            Some("tool_use")
                if !(block["id"].is_string() && block["name"].is_string() && block["input"].is_object()) =>
            {
                return Err("has a tool_use without \"id\", \"name\" and \"input\"".to_owned());
            }
            Some("tool_use") => calls.push(json!({
                "id": block["id"], "type": "function",
                "function": { "name": block["name"], "arguments": block["input"].to_string() },
            })),
            _ => {
                return Err(format!(
                    "has a block of type {}, which this server does not support in an answer",
                    shown(&block["type"])
                ));
            }
        }
    }
    let mut message = json!({ "role": "assistant", "content": text });
    if !thought.is_empty() {
        message["reasoning_content"] = json!(thought);
    }
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: &Value) -> Result<Value, ApiError> {
        chat(body.as_object().unwrap()).map(|(chat, _)| Value::Object(chat))
    }

    #[test]
    fn blocks_become_messages() {
        let read =
            of(&json!({"max_tokens": 9, "system": [{"type": "text", "text": "Be brief."}], "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "so", "signature": ""}, {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "42"}]},
                {"type": "text", "text": "And?"}]},
        ], "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
           "tools": [{"name": "f", "input_schema": {"type": "object"}}]}))
            .unwrap();
        assert_eq!(
            read["messages"],
            json!([
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "I look.", "reasoning_content": "so", "tool_calls": [
                    {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}}]},
                {"role": "tool", "tool_call_id": "t", "content": "42"},
                {"role": "user", "content": "And?"},
            ])
        );
        assert_eq!((&read["tool_choice"], &read["parallel_tool_calls"]), (&json!("required"), &json!(false)));
        assert_eq!(read["chat_template_kwargs"], json!({"enable_thinking": false}));
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_its_field() {
        for (extra, param) in [
            (json!({"max_tokens": null}), "max_tokens"),
            (json!({"messages": null}), "messages"),
            (json!({"messages": [{"role": "system", "content": "a"}]}), "messages"),
            (json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]}), "messages"),
            (json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}), "tools"),
            (json!({"tool_choice": {"type": "some"}}), "tool_choice"),
            (json!({"thinking": {"type": "much"}}), "thinking"),
            (json!({"thinking": {"type": "enabled", "budget_tokens": "all"}}), "budget_tokens"),
            (json!({"stop_sequences": "a"}), "stop_sequences"),
            (json!({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}), "messages"),
            (json!({"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]}), "messages"),
            (json!({"mcp_servers": [1]}), "mcp_servers"),
        ] {
            let mut body = json!({"max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]});
            for (name, value) in extra.as_object().unwrap() {
                body[name] = value.clone();
            }
            assert_eq!(of(&body).unwrap_err().body()["error"]["param"], param, "{extra}");
        }
    }
}
