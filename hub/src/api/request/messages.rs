//! Converts a request's conversation to what chat templates read.
//!
//! Templates read `message.content` as a string, so text parts are joined and missing content becomes "".

use serde_json::{Map, Value, json};

use super::super::error::ApiError;
use super::super::fields::{Fields, shown};
use super::MAX_MESSAGES;

/// Reads `messages`.
pub(super) fn parse(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let Some(list) = fields.list("messages")? else {
        return Err(ApiError::invalid("messages", "\"messages\" is missing: it must be a list of messages."));
    };
    if list.is_empty() {
        return Err(ApiError::invalid(
            "messages",
            "\"messages\" is empty: it must hold at least one message.",
        ));
    }
    if list.len() > MAX_MESSAGES {
        return Err(ApiError::invalid("messages", format!("\"messages\" may hold {MAX_MESSAGES} at most.")));
    }
    list.iter().enumerate().map(|(index, message)| one(index, message)).collect()
}

fn one(index: usize, message: &Value) -> Result<Value, ApiError> {
    let Some(map) = message.as_object() else {
        return Err(at(index, "must be an object with \"role\" and \"content\""));
    };
    let role = match map.get("role") {
        Some(Value::String(role)) => match role.as_str() {
            // Newer clients' name for the system message.
            "developer" => "system",
            known @ ("system" | "user" | "assistant" | "tool") => known,
            other => {
                return Err(at(
                    index,
                    &format!("has the role {:?}; known are system, user, assistant and tool", clipped(other)),
                ));
            }
        },
        _ => return Err(at(index, "must have a \"role\" that is a string")),
    };
    for name in ["name", "tool_call_id", "reasoning_content"] {
        if map.get(name).is_some_and(|value| !value.is_string() && !value.is_null()) {
            return Err(at(index, &format!("must have a string as {name:?}")));
        }
    }
    let mut out = Map::new();
    out.insert("role".to_owned(), json!(role));
    out.insert("content".to_owned(), json!(content(index, role, map)?));
    if role == "assistant" {
        if let Some(Value::String(reasoning)) = map.get("reasoning_content") {
            out.insert("reasoning_content".to_owned(), json!(reasoning));
        }
        if let Some(calls) = map.get("tool_calls").filter(|calls| !calls.is_null()) {
            out.insert("tool_calls".to_owned(), tool_calls(index, calls)?);
        }
    }
    for name in ["name", "tool_call_id"] {
        if let Some(Value::String(text)) = map.get(name) {
            out.insert(name.to_owned(), json!(text));
        }
    }
    Ok(Value::Object(out))
}

/// A string, or the text parts joined.
fn content(index: usize, role: &str, message: &Map<String, Value>) -> Result<String, ApiError> {
    match message.get("content") {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => parts.iter().map(|part| text_part(index, part)).collect(),
        None | Some(Value::Null) if role == "assistant" => Ok(String::new()),
        None | Some(Value::Null) => Err(at(index, "must have a \"content\"")),
        Some(other) => Err(at(
            index,
            &format!("must have a string or a list of parts as \"content\", not {}", shown(other)),
        )),
    }
}

fn text_part(index: usize, part: &Value) -> Result<&str, ApiError> {
    match (part.get("type").and_then(Value::as_str), part.get("text").and_then(Value::as_str)) {
        (Some("text"), Some(text)) => Ok(text),
        (Some("text") | None, _) => {
            Err(at(index, "has a content part that is not {\"type\": \"text\", \"text\": …}"))
        }
        (Some(kind), _) => Err(at(
            index,
            &format!("has a content part of type {:?}; this model reads text only", clipped(kind)),
        )),
    }
}

/// The tool calls of an earlier answer; their arguments are JSON in a string, as in OpenAI's API, or plain JSON.
fn tool_calls(index: usize, calls: &Value) -> Result<Value, ApiError> {
    let well_formed = |call: &Value| {
        call.pointer("/function/name").is_some_and(Value::is_string)
            && call.pointer("/function/arguments").is_some_and(|args| args.is_string() || args.is_object())
            && ["id", "type"].iter().all(|name| call[name].is_null() || call[name].is_string())
    };
    match calls.as_array() {
        Some(list) if list.iter().all(well_formed) => Ok(calls.clone()),
        _ => Err(at(
            index,
            "must have \"tool_calls\" that are a list of {\"function\": {\"name\": …, \"arguments\": …}}",
        )),
    }
}

fn at(index: usize, what: &str) -> ApiError {
    ApiError::invalid("messages", format!("messages[{index}] {what}."))
}

fn clipped(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(value: &Value) -> Result<Vec<Value>, ApiError> {
        let body = json!({ "messages": value });
        parse(&Fields(body.as_object().unwrap()))
    }

    #[test]
    fn text_parts_are_joined_and_an_assistants_missing_content_is_empty() {
        let call = json!([{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
        let read = messages(&json!([
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null, "tool_calls": call, "refusal": null},
            {"role": "tool", "tool_call_id": "c", "content": "42"},
        ]))
        .unwrap();
        assert_eq!(
            json!(read),
            json!([
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "ab"},
                {"role": "assistant", "content": "", "tool_calls": call},
                {"role": "tool", "content": "42", "tool_call_id": "c"},
            ])
        );
    }

    #[test]
    fn what_is_wrong_is_said_with_its_message() {
        for (value, part) in [
            (json!("Hi"), "\"messages\" must be a list"),
            (json!([]), "\"messages\" is empty"),
            (json!([{"role": "user", "content": "a"}, "b"]), "messages[1] must be an object"),
            (json!([{"content": "a"}]), "messages[0] must have a \"role\""),
            (json!([{"role": "robot", "content": "a"}]), "messages[0] has the role \"robot\""),
            (json!([{"role": "user"}]), "messages[0] must have a \"content\""),
            (json!([{"role": "user", "content": 3}]), "not 3"),
            (json!([{"role": "user", "content": [{"type": "image_url"}]}]), "reads text only"),
            (json!([{"role": "user", "content": [{"type": "text"}]}]), "is not {\"type\": \"text\""),
            (json!([{"role": "assistant", "tool_calls": [{"name": "f"}]}]), "\"tool_calls\""),
            (
                json!([{"role": "assistant", "reasoning_content": ["so"]}]),
                "a string as \"reasoning_content\"",
            ),
            (json!([{"role": "tool", "content": "42", "tool_call_id": 7}]), "a string as \"tool_call_id\""),
        ] {
            let error = messages(&value).unwrap_err();
            assert!(error.message().contains(part), "{} does not say {part}", error.message());
        }
        assert!(parse(&Fields(&Map::new())).unwrap_err().message().contains("missing"));
    }
}
