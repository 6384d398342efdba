//! Reads single fields of a JSON object, with an error that names the field and what it should be.
//!
//! `null` counts as absent everywhere, as the OpenAI SDKs send it. Other fields are ignored.

use serde_json::{Map, Value};

use super::error::ApiError;

/// A JSON object being read.
pub(super) struct Fields<'a>(pub(super) &'a Map<String, Value>);

impl<'a> Fields<'a> {
    /// The field, unless it is absent or null.
    pub(super) fn value(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// A number within `range`, ends included.
    pub(super) fn number(
        &self,
        name: &'static str,
        range: std::ops::RangeInclusive<f64>,
    ) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        match value.as_f64().filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number as f32)),
            None => {
                let (low, high) = (range.start(), range.end());
                Err(wrong(name, &format!("a number from {low} to {high}"), value))
            }
        }
    }

    /// A whole number within `range`, ends included.
    pub(super) fn integer(
        &self,
        name: &'static str,
        range: std::ops::RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        match whole(value).filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                let what = match (*range.start(), *range.end()) {
                    (i64::MIN, i64::MAX) => "a whole number".to_owned(),
                    (low, i64::MAX) => format!("a whole number of at least {low}"),
                    (low, high) if low == high => format!("{low}"),
                    (low, high) => format!("a whole number from {low} to {high}"),
                };
                Err(wrong(name, &what, value))
            }
        }
    }

    /// `true` or `false`.
    pub(super) fn boolean(&self, name: &'static str) -> Result<Option<bool>, ApiError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| wrong(name, "true or false", value))
    }

    /// A string.
    pub(super) fn string(&self, name: &'static str) -> Result<Option<&'a str>, ApiError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| wrong(name, "a string", value))
    }

    /// An object.
    pub(super) fn object(&self, name: &'static str) -> Result<Option<Fields<'a>>, ApiError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        value.as_object().map(|map| Some(Fields(map))).ok_or_else(|| wrong(name, "an object", value))
    }

    /// A list.
    pub(super) fn list(&self, name: &'static str) -> Result<Option<&'a [Value]>, ApiError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        value.as_array().map(|list| Some(list.as_slice())).ok_or_else(|| wrong(name, "a list", value))
    }
}

/// An integer: both 3 and 3.0 are one, as in JSON schemas.
pub(super) fn whole(value: &Value) -> Option<i64> {
    /// Every integer up to here is exact in f64.
    const MAX_EXACT: f64 = (1_i64 << 53) as f64;
    let of_float = || value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() <= MAX_EXACT);
    value.as_i64().or_else(|| of_float().map(|number| number as i64))
}

/// A token id.
pub(super) fn token_id(value: &Value) -> Option<u32> {
    u32::try_from(whole(value)?).ok()
}

/// "`name` must be X, not Y."
pub(super) fn wrong(name: &'static str, what: &str, value: &Value) -> ApiError {
    ApiError::invalid(name, format!("\"{name}\" must be {what}, not {}.", shown(value)))
}

/// A string, or the joined parts of these types; none for anything else.
pub(super) fn text(content: &Value, types: &[&str]) -> Option<String> {
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let is_text = |part: &&Value| part["type"].as_str().is_some_and(|name| types.contains(&name));
            parts.iter().map(|part| Some(part).filter(is_text)?["text"].as_str()).collect()
        }
        _ => None,
    }
}

/// A value as errors show it: short values in full, others by their kind.
pub(super) fn shown(value: &Value) -> String {
    /// Longer values are shown by their kind, so that an error stays one sentence and does not echo the request.
    const MAX_SHOWN_BYTES: usize = 40;
    let text = value.to_string();
    match value {
        _ if text.len() <= MAX_SHOWN_BYTES => text,
        Value::String(_) => "a longer string".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        _ => "a longer number".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message<T: std::fmt::Debug>(result: Result<T, ApiError>) -> String {
        result.unwrap_err().message().to_owned()
    }

    #[test]
    fn a_wrong_type_is_named_with_the_field() {
        let value = json!({"a": "hot", "b": 3, "c": [1], "d": 1.5, "e": null});
        let fields = Fields(value.as_object().unwrap());
        assert_eq!(message(fields.number("a", 0.0..=2.0)), r#""a" must be a number from 0 to 2, not "hot"."#);
        assert_eq!(message(fields.number("b", 0.0..=2.0)), r#""b" must be a number from 0 to 2, not 3."#);
        assert_eq!(message(fields.boolean("c")), r#""c" must be true or false, not [1]."#);
        assert_eq!(
            message(fields.integer("d", 1..=i64::MAX)),
            r#""d" must be a whole number of at least 1, not 1.5."#
        );
        assert_eq!(fields.string("e").unwrap(), None);
        assert_eq!(fields.string("absent").unwrap(), None);
    }

    #[test]
    fn a_long_value_is_not_echoed() {
        let long = json!("x".repeat(10_000));
        assert_eq!(shown(&long), "a longer string");
    }

    #[test]
    fn a_whole_number_may_have_a_point() {
        for (value, number) in [
            (json!(3), Some(3)),
            (json!(3.0), Some(3)),
            (json!(-0.0), Some(0)),
            (json!(i64::MIN), Some(i64::MIN)),
            (json!(3.5), None),
            (json!(1e30), None),
            (json!(u64::MAX), None),
            (json!("3"), None),
        ] {
            assert_eq!(whole(&value), number, "{value}");
        }
        assert_eq!(
            (token_id(&json!(7.0)), token_id(&json!(-1)), token_id(&json!(1_u64 << 32))),
            (Some(7), None, None)
        );
    }
}
