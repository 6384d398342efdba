//! Converts the body of a Responses request to that of a chat completion.

use serde_json::{Map, Value, json};

use super::super::error::ApiError;
use super::super::fields::{Fields, text, wrong};
use super::super::parameters::is;
use super::super::request::MAX_MESSAGES;

/// The types of parts that are text.
const TEXT: &[&str] = &["input_text", "output_text", "text", "reasoning_text"];

/// Fields that are read unchanged, by the same name or another.
const SAME: [(&str, &str); 10] = [
    ("model", "model"),
    ("max_output_tokens", "max_completion_tokens"),
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    ("min_p", "min_p"),
    ("seed", "seed"),
    ("stream", "stream"),
    ("parallel_tool_calls", "parallel_tool_calls"),
    ("chat_template_kwargs", "chat_template_kwargs"),
];
/// Fields that this file reads.
const READ: [&str; 6] = ["input", "instructions", "tools", "tool_choice", "text", "reasoning"];
/// Fields that do not change the answer.
const HARMLESS: [&str; 9] = [
    "metadata",
    "store",
    "user",
    "include",
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "stream_options",
];
/// Fields whose feature does not exist here, and their values that ask for nothing.
const REFUSED: [(&str, &str, &str); 8] = [
    ("previous_response_id", "null", "nothing is stored here: send the whole history as \"input\""),
    ("conversation", "null", "nothing is stored here: send the whole history as \"input\""),
    ("background", "false", "every answer is generated while its client waits"),
    ("prompt", "null", "no templates are stored here"),
    ("truncation", "\"disabled\"", "nothing is cut from the history"),
    ("max_tool_calls", "null", "tools are called by the client"),
    ("top_logprobs", "0", "/v1/chat/completions returns log probabilities"),
    ("stop", "null", "/v1/chat/completions has it"),
];

/// Returns the body of a chat completion, and the names of unknown fields.
pub(super) fn chat(asked: &Map<String, Value>) -> Result<(Map<String, Value>, Vec<String>), ApiError> {
    let fields = Fields(asked);
    for (name, neutral, why) in REFUSED {
        if fields.value(name).is_some_and(|value| !is(value, neutral)) {
            return Err(ApiError::unsupported(
                name,
                format!("This server does not do what \"{name}\" asks for: {why}. Leave it out."),
            ));
        }
    }
    let mut chat = Map::new();
    for (theirs, ours) in SAME {
        if let Some(value) = fields.value(theirs) {
            chat.insert(ours.to_owned(), value.clone());
        }
    }
    chat.insert("messages".to_owned(), Value::Array(messages(&fields)?));
    if let Some(tools) = fields.list("tools")? {
        chat.insert("tools".to_owned(), tools.iter().enumerate().map(tool).collect::<Result<_, _>>()?);
    }
    if let Some(choice) = fields.value("tool_choice") {
        let named =
            choice.get("name").map(|name| json!({ "type": "function", "function": { "name": name } }));
        chat.insert("tool_choice".to_owned(), named.unwrap_or_else(|| choice.clone()));
    }
    if let Some(format) = fields.object("text")?.and_then(|text| text.value("format").cloned()) {
        let format = match format["type"].as_str() {
            Some("json_schema") => json!({ "type": "json_schema", "json_schema": format }),
            _ => format,
        };
        chat.insert("response_format".to_owned(), format);
    }
    if let Some(effort) = fields.object("reasoning")?.and_then(|reasoning| reasoning.value("effort").cloned())
    {
        chat.insert("reasoning_effort".to_owned(), effort);
    }
    let is_known = |name: &str| {
        SAME.iter().any(|(theirs, _)| *theirs == name)
            || READ.contains(&name)
            || HARMLESS.contains(&name)
            || REFUSED.iter().any(|(refused, ..)| *refused == name)
    };
    Ok((chat, asked.keys().filter(|name| !is_known(name)).cloned().collect()))
}

/// Functions are flat objects in this API; other tools run on OpenAI's machines.
fn tool((index, tool): (usize, &Value)) -> Result<Value, ApiError> {
    if tool["type"] != "function" {
        return Err(ApiError::unsupported(
            "tools",
            format!(
                "tools[{index}] is not of type \"function\": this server has no tools of its own. Leave it out."
            ),
        ));
    }
    let mut function = Map::new();
    for name in ["name", "description", "parameters", "strict"] {
        if let Some(value) = tool.get(name).filter(|value| !value.is_null()) {
            function.insert(name.to_owned(), value.clone());
        }
    }
    Ok(json!({ "type": "function", "function": function }))
}

fn messages(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let mut messages = Vec::new();
    if let Some(instructions) = fields.string("instructions")? {
        messages.push(json!({ "role": "system", "content": instructions }));
    }
    match fields.value("input") {
        Some(Value::String(text)) => messages.push(json!({ "role": "user", "content": text })),
        Some(Value::Array(items)) if items.is_empty() => {
            return Err(ApiError::invalid("input", "\"input\" is empty: it must hold at least one item."));
        }
        // The instructions take one of a chat's messages.
        Some(Value::Array(items)) if items.len() >= MAX_MESSAGES => {
            return Err(ApiError::invalid(
                "input",
                format!("\"input\" may hold {} at most.", MAX_MESSAGES - 1),
            ));
        }
        Some(Value::Array(items)) => {
            for (index, one) in items.iter().enumerate() {
                item(index, one, &mut messages)?;
            }
        }
        Some(other) => return Err(wrong("input", "a string or a list of items", other)),
        None => {
            return Err(ApiError::invalid(
                "input",
                "\"input\" is missing: it must be a string or a list of items.",
            ));
        }
    }
    if messages.is_empty() {
        return Err(ApiError::invalid("input", "\"input\" is empty: it must hold at least one item."));
    }
    Ok(messages)
}

/// Adds one item of the history. Thinking and calls belong to the assistant's message around them.
fn item(index: usize, item: &Value, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    let bad = |what: &str| ApiError::invalid("input", format!("input[{index}] {what}."));
    let kind = match &item["type"] {
        Value::Null => "message",
        kind => kind.as_str().unwrap_or_default(),
    };
    match kind {
        "message" if item["role"].is_string() => {
            let said = text(&item["content"], TEXT)
                .ok_or_else(|| bad("must have text as its \"content\": this model reads text only"))?;
            if item["role"] == "assistant" {
                assistant(messages)["content"] = json!(said);
            } else {
                messages.push(json!({ "role": item["role"], "content": said }));
            }
        }
        "reasoning" => {
            let thought = match &item["content"] {
                Value::Null => String::new(),
                content => text(content, TEXT).ok_or_else(|| bad("must have text as its \"content\""))?,
            };
            if !thought.is_empty() {
                messages.push(json!({ "role": "assistant", "content": "", "reasoning_content": thought }));
            }
        }
        "function_call" => {
            let call = json!({
                "id": item["call_id"], "type": "function",
                "function": { "name": item["name"], "arguments": item["arguments"] },
            });
            if !["call_id", "name", "arguments"].iter().all(|name| item[name].is_string()) {
                return Err(bad("must have a \"call_id\", a \"name\" and \"arguments\" that are strings"));
            }
            let message = assistant(messages);
            match message["tool_calls"].as_array_mut() {
                Some(calls) => calls.push(call),
                None => message["tool_calls"] = json!([call]),
            }
        }
        "function_call_output" => {
            let output =
                text(&item["output"], TEXT).ok_or_else(|| bad("must have text as its \"output\""))?;
            if !item["call_id"].is_string() {
                return Err(bad("must have a \"call_id\" that is a string"));
            }
            messages.push(json!({ "role": "tool", "tool_call_id": item["call_id"], "content": output }));
        }
        _ => return Err(bad("must be a message, a function_call, a function_call_output or reasoning")),
    }
    Ok(())
}

/// The assistant's message being assembled, or a new one.
fn assistant(messages: &mut Vec<Value>) -> &mut Value {
    let is_open = messages.last().is_some_and(|last| {
        last["role"] == "assistant" && (last["content"] == "" || last["tool_calls"].is_array())
    });
    if !is_open {
        messages.push(json!({ "role": "assistant", "content": "" }));
    }
    let last = messages.len() - 1;
    &mut messages[last]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: &Value) -> Result<Value, ApiError> {
        chat(body.as_object().unwrap()).map(|(chat, _)| Value::Object(chat))
    }

    #[test]
    fn a_history_of_items_is_one_of_messages() {
        let read = of(&json!({"instructions": "Be brief.", "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "so"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "42"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "42."}]},
        ], "max_output_tokens": 5}))
        .unwrap();
        assert_eq!(read["max_completion_tokens"], 5);
        assert_eq!(
            read["messages"],
            json!([
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "", "reasoning_content": "so", "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "c", "content": "42"},
                {"role": "assistant", "content": "42."},
            ])
        );
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_its_field() {
        for (extra, param) in [
            (json!({"previous_response_id": "resp_1"}), "previous_response_id"),
            (json!({"background": true}), "background"),
            (json!({"truncation": "auto"}), "truncation"),
            (json!({"tools": [{"type": "web_search"}]}), "tools"),
            (json!({"input": null}), "input"),
            (json!({"input": []}), "input"),
            (json!({"input": [], "instructions": "Be brief."}), "input"),
            (json!({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}), "input"),
            (json!({"input": [{"type": "function_call_output", "output": "42"}]}), "input"),
            (json!({"input": [{"type": "item_reference", "id": "x"}]}), "input"),
            (json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}), "input"),
            (json!({"text": "json"}), "text"),
        ] {
            let mut body = json!({"input": "Hi"});
            for (name, value) in extra.as_object().unwrap() {
                body[name] = value.clone();
            }
            assert_eq!(of(&body).unwrap_err().body()["error"]["param"], param, "{extra}");
        }
    }
}
