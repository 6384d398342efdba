//! Parses `response_format`: free text, any JSON object, or JSON by a schema.

use serde_json::Value;

use super::super::error::ApiError;
use super::super::fields::{Fields, wrong};

/// Required format of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::api) enum Format {
    /// Anything.
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON that matches this schema.
    JsonSchema(Value),
}

/// Reads `response_format`.
pub(super) fn parse(fields: &Fields<'_>) -> Result<Format, ApiError> {
    let Some(format) = fields.object("response_format")? else { return Ok(Format::Text) };
    let invalid = |what: &str| ApiError::invalid("response_format", format!("\"response_format\" {what}."));
    match format.value("type").and_then(Value::as_str) {
        Some("text") => Ok(Format::Text),
        // llama.cpp's servers accept a schema here too.
        Some("json_object") => match format.value("schema") {
            None => Ok(Format::JsonObject),
            Some(schema @ (Value::Object(_) | Value::Bool(_))) => Ok(Format::JsonSchema(schema.clone())),
            Some(_) => Err(invalid("must hold an object as its \"schema\"")),
        },
        Some("json_schema") => {
            // `strict` is ignored, since every schema is enforced.
            let named = format.object("json_schema")?;
            if let Some(named) = &named {
                named.string("name")?;
                named.boolean("strict")?;
            }
            match named.and_then(|named| named.value("schema")) {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_schema_is_read_in_openais_form_and_in_llama_cpps() {
        let schema = json!({"const": "42"});
        for (format, read) in [
            (json!({"type": "text"}), Ok(Format::Text)),
            (json!({"type": "json_object"}), Ok(Format::JsonObject)),
            (json!({"type": "json_object", "schema": schema}), Ok(Format::JsonSchema(schema.clone()))),
            (
                json!({"type": "json_schema", "json_schema": {"schema": schema}}),
                Ok(Format::JsonSchema(schema.clone())),
            ),
            (json!({"type": "json_object", "schema": 123}), Err("must hold an object as its \"schema\"")),
            (json!({"type": "json_schema", "schema": schema}), Err("must hold its schema")),
            (json!({"type": "sound"}), Err("\"sound\" is not known")),
        ] {
            let body = json!({ "response_format": format });
            match (parse(&Fields(body.as_object().unwrap())), read) {
                (Ok(found), Ok(read)) => assert_eq!(found, read, "{format}"),
                (Err(error), Err(part)) => assert!(error.message().contains(part), "{}", error.message()),
                (found, _) => panic!("{format}: {found:?}"),
            }
        }
    }
}
