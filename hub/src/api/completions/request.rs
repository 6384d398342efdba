//! Parses the body of `POST /v1/completions`.

use serde_json::Value;

use super::super::error::ApiError;
use super::super::fields::{Fields, token_id, wrong};
use super::super::generate::MAX_TEXTS;
use super::super::parameters::{refuse_for_completions, unknown_to_completions};
use super::super::request::{SamplingFields, logit_bias, min_tokens, n, object, stop, stream};

/// Maximum alternatives per token.
const MAX_LOGPROBS: i64 = 20;
/// Default of `max_tokens`, as in OpenAI's API.
const DEFAULT_TOKENS: u32 = 16;

/// A parsed completion request.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::api) struct CompletionRequest {
    pub(super) model: Option<String>,
    pub(super) prompts: Vec<Prompt>,
    pub(super) sampling: SamplingFields,
    pub(super) max_tokens: u32,
    pub(super) stop: Vec<String>,
    pub(super) logit_bias: Vec<(u32, f32)>,
    pub(super) ignore_eos: bool,
    pub(super) min_tokens: u32,
    pub(super) seed: Option<u64>,
    /// Completions per prompt.
    pub(super) n: usize,
    /// Whether to repeat the prompt before each completion.
    pub(super) echo: bool,
    /// Return log probabilities of each token (with `echo`, of the prompt too) and of this many alternatives.
    pub(super) logprobs: Option<u8>,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    /// Names of unknown fields.
    pub(super) ignored: Vec<String>,
}

/// The prompt to continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

impl CompletionRequest {
    /// Parses the body.
    pub(in crate::api) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let map = object(body)?;
        let fields = Fields(&map);
        refuse_for_completions(&fields)?;
        let (prompts, n) = (prompts(&fields)?, n(&fields)?);
        if prompts.len() * n > MAX_TEXTS {
            return Err(ApiError::invalid(
                "prompt",
                format!(
                    "\"prompt\" and \"n\" together ask for more than {MAX_TEXTS} texts: send several requests."
                ),
            ));
        }
        if let Some(best_of) = fields.integer("best_of", 1..=i64::MAX)?
            && best_of != n as i64
        {
            return Err(ApiError::unsupported(
                "best_of",
                "\"best_of\" must equal \"n\" here, since every completion is returned. Leave it out.",
            ));
        }
        let echo = fields.boolean("echo")?.unwrap_or(false);
        let logprobs = logprobs(&fields)?;
        let (stream, include_usage) = stream(&fields)?;
        let max_tokens = fields.integer("max_tokens", 0..=i64::MAX)?;
        Ok(Self {
            model: fields.string("model")?.map(str::to_owned),
            prompts,
            sampling: SamplingFields::parse(&fields)?,
            max_tokens: max_tokens.map_or(DEFAULT_TOKENS, |n| u32::try_from(n).unwrap_or(u32::MAX)),
            stop: stop(&fields)?,
            logit_bias: logit_bias(&fields)?,
            ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
            min_tokens: min_tokens(&fields)?,
            seed: fields.integer("seed", i64::MIN..=i64::MAX)?.map(i64::cast_unsigned),
            n,
            echo,
            logprobs,
            stream,
            include_usage,
            ignored: unknown_to_completions(&fields),
        })
    }
}

/// A string, token ids, or a list of either.
fn prompts(fields: &Fields<'_>) -> Result<Vec<Prompt>, ApiError> {
    const WHAT: &str = "a string, a list of token ids, or a list of either";
    let value = fields
        .value("prompt")
        .ok_or_else(|| ApiError::invalid("prompt", format!("\"prompt\" is missing: it must be {WHAT}.")))?;
    let no = || wrong("prompt", WHAT, value);
    let ids = |value: &Value| -> Option<Vec<u32>> { value.as_array()?.iter().map(token_id).collect() };
    let prompts = match value {
        Value::String(text) => vec![Prompt::Text(text.clone())],
        Value::Array(list) if list.first().is_some_and(Value::is_number) => {
            vec![Prompt::Ids(ids(value).ok_or_else(no)?)]
        }
        Value::Array(list) => {
            let one = |value: &Value| match value {
                Value::String(text) => Some(Prompt::Text(text.clone())),
                other => ids(other).map(Prompt::Ids),
            };
            list.iter().map(one).collect::<Option<_>>().ok_or_else(no)?
        }
        _ => return Err(no()),
    };
    let is_empty = |prompt: &Prompt| match prompt {
        Prompt::Text(text) => text.is_empty(),
        Prompt::Ids(ids) => ids.is_empty(),
    };
    if prompts.is_empty() || prompts.iter().any(is_empty) {
        return Err(ApiError::invalid(
            "prompt",
            "\"prompt\" is empty: every prompt must have at least one token.",
        ));
    }
    Ok(prompts)
}

/// Number of alternatives; newer clients send `true` or `false`.
fn logprobs(fields: &Fields<'_>) -> Result<Option<u8>, ApiError> {
    match fields.value("logprobs") {
        Some(Value::Bool(false)) => Ok(None),
        Some(Value::Bool(true)) => Ok(Some(0)),
        _ => Ok(fields.integer("logprobs", 0..=MAX_LOGPROBS)?.and_then(|n| u8::try_from(n).ok())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(body: &Value) -> Result<CompletionRequest, ApiError> {
        CompletionRequest::parse(body.to_string().as_bytes())
    }

    #[test]
    fn prompts_come_in_four_forms() {
        let text = |text: &str| Prompt::Text(text.to_owned());
        for (prompt, read) in [
            (json!("a"), vec![text("a")]),
            (json!(["a", "b"]), vec![text("a"), text("b")]),
            (json!([1, 2]), vec![Prompt::Ids(vec![1, 2])]),
            (json!([[1], [2, 3]]), vec![Prompt::Ids(vec![1]), Prompt::Ids(vec![2, 3])]),
        ] {
            assert_eq!(parse(&json!({"prompt": prompt})).unwrap().prompts, read);
        }
        assert_eq!(parse(&json!({"prompt": "a"})).unwrap().max_tokens, 16);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_field() {
        for (extra, param) in [
            (json!({"prompt": null}), "prompt"),
            (json!({"prompt": ""}), "prompt"),
            (json!({"prompt": []}), "prompt"),
            (json!({"prompt": [[]]}), "prompt"),
            (json!({"prompt": [1, "a"]}), "prompt"),
            (json!({"prompt": [-1]}), "prompt"),
            (json!({"prompt": {"a": 1}}), "prompt"),
            (json!({"prompt": vec!["a"; 33], "n": 2}), "prompt"),
            (json!({"suffix": "end"}), "suffix"),
            (json!({"n": 2, "best_of": 3}), "best_of"),
            (json!({"logprobs": 21}), "logprobs"),
            (json!({"messages": [1]}), "messages"),
            (json!({"max_tokens": -1}), "max_tokens"),
            (json!({"min_tokens": -1}), "min_tokens"),
        ] {
            let mut body = json!({"prompt": "a"});
            for (name, value) in extra.as_object().unwrap() {
                body[name] = value.clone();
            }
            let error = parse(&body).unwrap_err();
            assert_eq!(
                (error.status().as_u16(), &error.body()["error"]["param"]),
                (400, &json!(param)),
                "{extra}"
            );
        }
    }
}
