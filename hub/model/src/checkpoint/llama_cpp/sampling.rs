//! How the model's publisher has it sampled, `general.sampling.*`, as a folder's `generation_config.json` says it.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::gguf::{Gguf, GgufError};

/// A key after `general.sampling.`, its field of `generation_config.json`, its range, and that in words.
type Parameter = (&'static str, &'static str, RangeInclusive<f64>, &'static str);

const PENALTY: &str = "repetition_penalty";
const POSITIVE: f64 = f32::MIN_POSITIVE as f64;
const PARAMETERS: [Parameter; 4] = [
    ("temp", "temperature", 0.0..=100.0, "a number from 0 to 100"),
    ("top_p", "top_p", POSITIVE..=1.0, "a number above 0 and at most 1"),
    ("min_p", "min_p", 0.0..=1.0, "a number from 0 to 1"),
    ("penalty_repeat", PENALTY, POSITIVE..=1e6, "a number above 0"),
];

/// The `generation_config.json` of these keys; none if the file has none of them. A penalty alone leaves a text greedy. Where the
/// others name no temperature it is 1, as transformers takes it, from whose file llama.cpp's converter copies them.
///
/// # Errors
/// If a value is no number, or out of its range.
pub(super) fn generation_config(gguf: &Gguf<'_>) -> Result<Option<Vec<u8>>, GgufError> {
    let mut fields = Map::new();
    for (name, field, range, expected) in PARAMETERS {
        let key = format!("general.sampling.{name}");
        match gguf.number(&key)? {
            Some(value) if range.contains(&value) => fields.insert(field.into(), value.into()),
            Some(_) => return Err(GgufError::WrongValue { key, expected }),
            None => None,
        };
    }
    if let Some(top_k) = gguf.number("general.sampling.top_k")? {
        // Not above 0, it is all tokens.
        fields.insert("top_k".into(), (top_k as u32).into());
    }
    if fields.keys().any(|field| field != PENALTY) {
        fields.insert("do_sample".into(), true.into());
    }
    Ok((!fields.is_empty()).then(|| Value::Object(fields).to_string().into_bytes()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::gguf::{Header, MetaValue};

    fn config(keys: &[(&str, MetaValue)]) -> Result<Option<Value>, GgufError> {
        let mut header = Header::default();
        for (name, value) in keys {
            header.key(format!("general.sampling.{name}"), value.clone());
        }
        let bytes = header.encode();
        let json = generation_config(&Gguf::parse(&bytes)?)?;
        Ok(json.map(|json| serde_json::from_slice(&json).unwrap()))
    }

    #[test]
    fn a_file_says_how_its_model_is_sampled() {
        use MetaValue::{F32, U32};
        let qwen = [("temp", F32(0.6)), ("top_k", U32(20)), ("top_p", F32(0.95)), ("min_p", F32(0.0))];
        let read = config(&qwen).unwrap().unwrap();
        assert_eq!((read["do_sample"].clone(), read["top_k"].clone()), (json!(true), json!(20)));
        for (field, value) in [("temperature", 0.6_f32), ("top_p", 0.95), ("min_p", 0.0)] {
            assert_eq!(read[field].as_f64().unwrap() as f32, value, "{field}");
        }
        let penalised = config(&[("penalty_repeat", F32(1.25))]).unwrap();
        assert_eq!(penalised, Some(json!({"repetition_penalty": 1.25})));
        let all_tokens = config(&[("top_k", F32(-1.0))]).unwrap();
        assert_eq!(all_tokens, Some(json!({"do_sample": true, "top_k": 0})));
        assert_eq!(config(&[("mirostat", U32(1))]).unwrap(), None);
    }

    #[test]
    fn a_value_out_of_its_range_is_named() {
        use MetaValue::{F32, Text};
        for value in [F32(0.0), F32(1.5), F32(f32::NAN), Text("most".into())] {
            let error = config(&[("top_p", value)]).unwrap_err().to_string();
            assert!(error.starts_with("the key general.sampling.top_p is not a number"), "{error}");
        }
    }
}
