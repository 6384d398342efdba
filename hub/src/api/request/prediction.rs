//! `prediction`: what the answer is expected to be much like.

use serde_json::Value;

use super::super::error::ApiError;
use super::super::fields::Fields;

/// Reads `prediction`: a text, or text parts, which are one text.
pub(super) fn parse(fields: &Fields<'_>) -> Result<Option<String>, ApiError> {
    let Some(prediction) = fields.object("prediction")? else { return Ok(None) };
    let wrong = || {
        ApiError::invalid(
            "prediction",
            "\"prediction\" must be {\"type\": \"content\", \"content\": a text or text parts}.",
        )
    };
    if prediction.value("type").and_then(Value::as_str) != Some("content") {
        return Err(wrong());
    }
    let part = |part: &Value| match part["type"].as_str() {
        Some("text") => part["text"].as_str().map(str::to_owned),
        _ => None,
    };
    match prediction.value("content") {
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(parts)) => {
            parts.iter().map(part).collect::<Option<String>>().map(Some).ok_or_else(wrong)
        }
        _ => Err(wrong()),
    }
}
