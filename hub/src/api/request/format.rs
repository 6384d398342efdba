//! `response_format`: free text, some JSON object, or JSON by a schema.

use serde_json::Value;

use super::super::error::ApiError;
use super::super::fields::{Fields, wrong};

/// What an answer must be.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::api) enum Format {
    /// Anything.
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON that keeps to this schema.
    JsonSchema(Value),
}

/// Reads `response_format`.
pub(super) fn parse(fields: &Fields<'_>) -> Result<Format, ApiError> {
    let Some(format) = fields.object("response_format")? else { return Ok(Format::Text) };
    let invalid = |what: &str| ApiError::invalid("response_format", format!("\"response_format\" {what}."));
    match format.value("type").and_then(Value::as_str) {
        Some("text") => Ok(Format::Text),
        Some("json_object") => Ok(Format::JsonObject),
        Some("json_schema") => {
            // Whether it is to be strict changes nothing: every schema is kept to.
            let named = format.value("json_schema").and_then(Value::as_object);
            let schema = named.and_then(|named| named.get("schema"));
            match schema {
                Some(schema @ (Value::Object(_) | Value::Bool(_))) => Ok(Format::JsonSchema(schema.clone())),
                _ => Err(invalid(
                    "must hold its schema: {\"type\": \"json_schema\", \"json_schema\": {\"schema\": {…}}}",
                )),
            }
        }
        Some(other) => Err(ApiError::unsupported(
            "response_format",
            format!(
                "\"response_format\" of type {:?} is not known here: text, json_object and json_schema are.",
                other.chars().take(40).collect::<String>()
            ),
        )),
        None => match fields.value("response_format") {
            Some(value) => Err(wrong("response_format", "an object with a \"type\"", value)),
            None => Ok(Format::Text),
        },
    }
}
