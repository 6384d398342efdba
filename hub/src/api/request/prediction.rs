//! Parses `prediction`: text that the answer probably resembles.

use serde_json::Value;

use super::super::error::ApiError;
use super::super::fields::{Fields, text};

/// Reads `prediction`: a string, or text parts, which are joined.
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
    let content = prediction.value("content").unwrap_or(&Value::Null);
    text(content, &["text"]).map(Some).ok_or_else(wrong)
}
