//! `tools`, `tool_choice` and `parallel_tool_calls`.

use serde_json::Value;

use super::super::error::ApiError;
use super::super::fields::{Fields, wrong};

/// The most tools in a request.
const MAX_TOOLS: usize = 128;

/// Which tools must be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::api) enum ToolChoice {
    /// No tool may be called.
    None,
    /// The model chooses.
    Auto,
    /// At least one tool must be called.
    Required,
    /// This tool must be called.
    Named(String),
}

/// Returns the tools offered, as received (none if `tool_choice` is `none`), and the choice.
pub(super) fn parse(fields: &Fields<'_>) -> Result<(Vec<Value>, ToolChoice), ApiError> {
    let tools = fields.list("tools")?.unwrap_or_default();
    if tools.len() > MAX_TOOLS {
        return Err(ApiError::invalid("tools", format!("\"tools\" may hold {MAX_TOOLS} at most.")));
    }
    for (index, tool) in tools.iter().enumerate() {
        let wrong = |what: &str| Err(ApiError::invalid("tools", format!("tools[{index}]{what}.")));
        let is_other = |field: &str, is: fn(&Value) -> bool| {
            tool["function"].get(field).is_some_and(|value| !is(value) && !value.is_null())
        };
        if name(tool).is_none() {
            return wrong(" must be an object with \"function\": {\"name\": …}");
        }
        if !tool["type"].is_null() && tool["type"] != "function" {
            return wrong(" is not of type \"function\": the client's own functions are the only tools here");
        }
        if is_other("parameters", Value::is_object) {
            return wrong(".function.parameters must be a JSON schema, which is an object");
        }
        if is_other("description", Value::is_string) {
            return wrong(".function.description must be a string");
        }
        if is_other("strict", Value::is_boolean) {
            return wrong(".function.strict must be true or false");
        }
    }
    let choice = choice(fields)?;
    let invalid = |what: String| Err(ApiError::invalid("tool_choice", what));
    match &choice {
        ToolChoice::None => return Ok((Vec::new(), choice)),
        ToolChoice::Required if tools.is_empty() => {
            return invalid("\"tool_choice\" is \"required\", but \"tools\" is empty.".to_owned());
        }
        ToolChoice::Named(named) if !tools.iter().any(|tool| name(tool) == Some(named)) => {
            let named: String = named.chars().take(64).collect();
            return invalid(format!("\"tool_choice\" names {named:?}, which is not among \"tools\"."));
        }
        _ => {}
    }
    Ok((tools.to_vec(), choice))
}

fn choice(fields: &Fields<'_>) -> Result<ToolChoice, ApiError> {
    const WHAT: &str =
        "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": …}}";
    match fields.value("tool_choice") {
        None => Ok(ToolChoice::Auto),
        Some(Value::String(choice)) if choice == "auto" => Ok(ToolChoice::Auto),
        Some(Value::String(choice)) if choice == "none" => Ok(ToolChoice::None),
        Some(Value::String(choice)) if choice == "required" => Ok(ToolChoice::Required),
        Some(other) => match name(other) {
            Some(name) => Ok(ToolChoice::Named(name.to_owned())),
            None => Err(wrong("tool_choice", WHAT, other)),
        },
    }
}

fn name(tool: &Value) -> Option<&str> {
    tool.pointer("/function/name").and_then(Value::as_str)
}
