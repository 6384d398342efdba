//! Fields that chat completions and completions share: sampling parameters, and what ends a text.

use serde_json::Value;

use super::super::error::ApiError;
use super::super::fields::{Fields, wrong};
use moex_engine::sampler::{BIASES, MAX_BIASES};
use moex_engine::{MAX_STOP_BYTES, MAX_STOPS};

/// The sampling fields of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(in crate::api) struct SamplingFields {
    /// 0 is greedy.
    pub(in crate::api) temperature: Option<f32>,
    /// Probability mass of nucleus sampling.
    pub(in crate::api) top_p: Option<f32>,
    /// Candidates kept; 0 keeps all.
    pub(in crate::api) top_k: Option<u32>,
    /// Minimum probability relative to the most likely token.
    pub(in crate::api) min_p: Option<f32>,
    /// Divides the logits of tokens that occurred; 1 does nothing.
    pub(in crate::api) repetition_penalty: Option<f32>,
    /// Subtracted once from a token that occurred.
    pub(in crate::api) presence_penalty: Option<f32>,
    /// Subtracted for each occurrence of a token.
    pub(in crate::api) frequency_penalty: Option<f32>,
}

impl SamplingFields {
    /// Reads the fields.
    pub(in crate::api) fn parse(fields: &Fields<'_>) -> Result<Self, ApiError> {
        Ok(Self {
            temperature: fields.number("temperature", 0.0..=2.0)?,
            top_p: fields.number("top_p", 0.0..=1.0)?,
            // Some clients write "all" as -1.
            top_k: fields.integer("top_k", -1..=i64::from(u32::MAX))?.map(|k| u32::try_from(k).unwrap_or(0)),
            min_p: fields.number("min_p", 0.0..=1.0)?,
            repetition_penalty: fields.number("repetition_penalty", 0.01..=10.0)?,
            presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?,
            frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?,
        })
    }
}

/// `stop`: one string or several.
pub(in crate::api) fn stop(fields: &Fields<'_>) -> Result<Vec<String>, ApiError> {
    const WHAT: &str = "a string or a list of strings";
    let strings = match fields.value("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(one)) => vec![one.clone()],
        Some(list @ Value::Array(values)) => values
            .iter()
            .map(|value| value.as_str().map(str::to_owned))
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| wrong("stop", WHAT, list))?,
        Some(other) => return Err(wrong("stop", WHAT, other)),
    };
    if strings.len() > MAX_STOPS {
        return Err(ApiError::invalid("stop", format!("\"stop\" may hold {MAX_STOPS} strings at most.")));
    }
    if strings.iter().any(|text| text.is_empty() || text.len() > MAX_STOP_BYTES) {
        return Err(ApiError::invalid(
            "stop",
            format!("A stop string must be 1 to {MAX_STOP_BYTES} bytes long."),
        ));
    }
    Ok(strings)
}

/// OpenAI's format: an object from token ids, as strings, to biases.
pub(in crate::api) fn logit_bias(fields: &Fields<'_>) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(Fields(map)) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    if map.len() > MAX_BIASES {
        return Err(ApiError::invalid(
            "logit_bias",
            format!("\"logit_bias\" may name {MAX_BIASES} tokens at most."),
        ));
    }
    let bias = |(id, bias): (&String, &Value)| {
        let bias = bias.as_f64().filter(|bias| BIASES.contains(&(*bias as f32)));
        Some((id.parse().ok()?, bias? as f32))
    };
    map.iter().map(bias).collect::<Option<_>>().ok_or_else(|| {
        ApiError::invalid(
            "logit_bias",
            "\"logit_bias\" must give token ids numbers from -100 to 100, as in {\"15\": -100}.",
        )
    })
}
