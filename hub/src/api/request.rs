//! The body of `POST /v1/chat/completions`, parsed: what follows can rely on every field.
//!
//! Tolerant as OpenAI's clients need it: `null` is absent, unknown fields are ignored. What is known but not done here
//! is refused instead of silently left out: fields by `parameters`, values (several choices, forced tool calls, images)
//! where they are read.

mod messages;

use serde_json::Value;

use super::error::ApiError;
use super::fields::{Fields, wrong};
use super::parameters::refuse_unsupported;
use moex_engine::sampler::{BIASES, MAX_BIASES};
use moex_engine::{MAX_STOP_BYTES, MAX_STOPS};

/// The most messages in a request.
pub(super) const MAX_MESSAGES: usize = 4096;
/// The most tools in a request.
pub(super) const MAX_TOOLS: usize = 128;

/// A chat completion, as asked for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ChatRequest {
    /// The model's name, if one was given.
    pub(super) model: Option<String>,
    /// The conversation in the form that chat templates read: `content` is always one string.
    pub(super) messages: Vec<Value>,
    /// The tools offered, as they came; empty too when `tool_choice` is `none`.
    pub(super) tools: Vec<Value>,
    /// `chat_template_kwargs.enable_thinking`.
    pub(super) enable_thinking: Option<bool>,
    /// What was said about sampling; the model's `generation_config.json` fills the rest.
    pub(super) sampling: SamplingFields,
    /// The most tokens to answer with; without it, what the context leaves.
    pub(super) max_tokens: Option<usize>,
    /// Strings that end the answer and are not part of it.
    pub(super) stop: Vec<String>,
    /// Added to the logits of these tokens.
    pub(super) logit_bias: Vec<(u32, f32)>,
    /// Go on where the model would end.
    pub(super) ignore_eos: bool,
    /// Makes sampling repeatable.
    pub(super) seed: Option<u64>,
    /// Answer as server-sent events.
    pub(super) stream: bool,
    /// Close a stream with a chunk of token counts.
    pub(super) include_usage: bool,
}

/// The sampling fields of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct SamplingFields {
    /// 0 is greedy.
    pub(super) temperature: Option<f32>,
    /// Nucleus mass.
    pub(super) top_p: Option<f32>,
    /// Candidates kept; 0 keeps all.
    pub(super) top_k: Option<u32>,
    /// Least probability relative to the best.
    pub(super) min_p: Option<f32>,
    /// Divides the logits of tokens seen; 1 is none.
    pub(super) repetition_penalty: Option<f32>,
    /// Subtracted once from a token seen.
    pub(super) presence_penalty: Option<f32>,
    /// Subtracted for each time a token was seen.
    pub(super) frequency_penalty: Option<f32>,
}

impl ChatRequest {
    /// Parses a body.
    pub(super) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let value: Value = serde_json::from_slice(body).map_err(|error| malformed(body, &error))?;
        let Some(map) = value.as_object() else {
            return Err(ApiError::malformed("The request body must be a JSON object."));
        };
        let fields = Fields(map);
        refuse_unsupported(&fields)?;
        refuse_other_answers(&fields)?;
        let (stream, include_usage) = stream(&fields)?;
        Ok(Self {
            model: fields.string("model")?.map(str::to_owned),
            messages: messages::parse(&fields)?,
            tools: tools(&fields)?,
            enable_thinking: match fields.object("chat_template_kwargs")? {
                Some(kwargs) => kwargs.boolean("enable_thinking")?,
                None => None,
            },
            sampling: SamplingFields::parse(&fields)?,
            max_tokens: max_tokens(&fields)?,
            stop: stop(&fields)?,
            logit_bias: logit_bias(&fields)?,
            ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
            seed: fields.integer("seed", i64::MIN..=i64::MAX)?.map(i64::cast_unsigned),
            stream,
            include_usage,
        })
    }
}

impl SamplingFields {
    fn parse(fields: &Fields<'_>) -> Result<Self, ApiError> {
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

/// One sentence with the place, and the likeliest cause for an empty body.
fn malformed(body: &[u8], error: &serde_json::Error) -> ApiError {
    if body.is_empty() {
        return ApiError::malformed("The request body is empty; it must be a JSON object.");
    }
    ApiError::malformed(format!("The request body is not valid JSON: {error}."))
}

/// Several choices, or one that is not free text.
fn refuse_other_answers(fields: &Fields<'_>) -> Result<(), ApiError> {
    if fields.integer("n", 1..=i64::MAX)?.is_some_and(|n| n != 1) {
        return Err(ApiError::unsupported("n", "This server gives one choice a request: \"n\" must be 1."));
    }
    if let Some(format) = fields.object("response_format")?
        && format.string("type")?.is_some_and(|kind| kind != "text")
    {
        return Err(ApiError::unsupported(
            "response_format",
            "This server answers in free text: \"response_format\" must be of type \"text\".",
        ));
    }
    Ok(())
}

fn stream(fields: &Fields<'_>) -> Result<(bool, bool), ApiError> {
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let include_usage = match fields.object("stream_options")? {
        Some(_) if !stream => {
            return Err(ApiError::invalid(
                "stream_options",
                "\"stream_options\" may be given only when \"stream\" is true.",
            ));
        }
        Some(options) => options.boolean("include_usage")?.unwrap_or(false),
        None => false,
    };
    Ok((stream, include_usage))
}

/// The newer name wins over the older one when both are given.
fn max_tokens(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    let older = fields.integer("max_tokens", 1..=i64::MAX)?;
    let newer = fields.integer("max_completion_tokens", 1..=i64::MAX)?;
    Ok(newer.or(older).map(|tokens| usize::try_from(tokens).unwrap_or(usize::MAX)))
}

fn stop(fields: &Fields<'_>) -> Result<Vec<String>, ApiError> {
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

/// OpenAI's form: an object of token ids, as strings, and what each gets.
fn logit_bias(fields: &Fields<'_>) -> Result<Vec<(u32, f32)>, ApiError> {
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

fn tools(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let offered = match fields.value("tool_choice") {
        None => true,
        Some(Value::String(choice)) if choice == "auto" => true,
        Some(Value::String(choice)) if choice == "none" => false,
        Some(_) => {
            return Err(ApiError::unsupported(
                "tool_choice",
                "This server cannot force a tool call: \"tool_choice\" must be \"auto\" or \"none\".",
            ));
        }
    };
    let tools = fields.list("tools")?.unwrap_or_default();
    if tools.len() > MAX_TOOLS {
        return Err(ApiError::invalid("tools", format!("\"tools\" may hold {MAX_TOOLS} at most.")));
    }
    for (index, tool) in tools.iter().enumerate() {
        if tool.pointer("/function/name").and_then(Value::as_str).is_none() {
            return Err(ApiError::invalid(
                "tools",
                format!("tools[{index}] must be an object with \"function\": {{\"name\": …}}."),
            ));
        }
    }
    Ok(if offered { tools.to_vec() } else { Vec::new() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(body: &Value) -> Result<ChatRequest, ApiError> {
        ChatRequest::parse(body.to_string().as_bytes())
    }

    fn with(extra: Value) -> Result<ChatRequest, ApiError> {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}]});
        let Value::Object(extra) = extra else { unreachable!("tests pass objects") };
        body.as_object_mut().unwrap().extend(extra);
        parse(&body)
    }

    #[test]
    fn the_least_request_and_null_fields() {
        let least = with(json!({})).unwrap();
        assert_eq!(least.max_tokens, None);
        assert!(!least.stream && least.stop.is_empty() && least.tools.is_empty());
        let nulls = with(json!({
            "model": null, "temperature": null, "stop": null, "n": null, "tools": null, "stream": null,
            "stream_options": null, "seed": null, "max_tokens": null, "chat_template_kwargs": null,
        }));
        assert_eq!(nulls.unwrap(), least);
    }

    #[test]
    fn every_field_arrives() {
        let request = with(json!({
            "model": "m", "max_tokens": 5, "max_completion_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": -1,
            "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": -1, "frequency_penalty": 1, "seed": -3,
            "stop": ["a", "b"], "stream": true, "stream_options": {"include_usage": true}, "n": 1,
            "chat_template_kwargs": {"enable_thinking": false, "other": 1}, "ignore_eos": true,
            "logit_bias": {"7": -100, "12": 0.5},
        }))
        .unwrap();
        assert_eq!(request.max_tokens, Some(7));
        assert_eq!(request.seed, Some((-3i64).cast_unsigned()));
        assert_eq!(request.stop, ["a", "b"]);
        assert!(request.stream && request.include_usage);
        assert_eq!(request.enable_thinking, Some(false));
        assert!(request.ignore_eos);
        let mut biases = request.logit_bias;
        biases.sort_by_key(|(id, _)| *id);
        assert_eq!(biases, [(7, -100.0), (12, 0.5)]);
        assert_eq!(
            request.sampling,
            SamplingFields {
                temperature: Some(0.5),
                top_p: Some(0.9),
                top_k: Some(0),
                min_p: Some(0.1),
                repetition_penalty: Some(1.1),
                presence_penalty: Some(-1.0),
                frequency_penalty: Some(1.0),
            }
        );
    }

    #[test]
    fn tool_choice_none_hides_the_tools() {
        let tools = json!([{"type": "function", "function": {"name": "f"}}]);
        assert_eq!(with(json!({"tools": tools})).unwrap().tools.len(), 1);
        assert_eq!(with(json!({"tools": tools, "tool_choice": "none"})).unwrap().tools.len(), 0);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_field() {
        let cases = [
            (json!({"temperature": "hot"}), "temperature"),
            (json!({"temperature": -0.1}), "temperature"),
            (json!({"top_p": 1.5}), "top_p"),
            (json!({"top_k": 1.5}), "top_k"),
            (json!({"max_tokens": 0}), "max_tokens"),
            (json!({"max_completion_tokens": "9"}), "max_completion_tokens"),
            (json!({"n": 2}), "n"),
            (json!({"stop": 3}), "stop"),
            (json!({"stop": ["a", 3]}), "stop"),
            (json!({"stop": ""}), "stop"),
            (json!({"stop": vec!["x"; 17]}), "stop"),
            (json!({"stream": "yes"}), "stream"),
            (json!({"stream_options": {"include_usage": true}}), "stream_options"),
            (json!({"seed": 1.5}), "seed"),
            (json!({"tools": {}}), "tools"),
            (json!({"tools": [{"name": "f"}]}), "tools"),
            (json!({"tool_choice": "required"}), "tool_choice"),
            (json!({"logprobs": true}), "logprobs"),
            (json!({"ignore_eos": 1}), "ignore_eos"),
            (json!({"logit_bias": [[7, -1]]}), "logit_bias"),
            (json!({"logit_bias": {"the": 1}}), "logit_bias"),
            (json!({"logit_bias": {"-7": 1}}), "logit_bias"),
            (json!({"logit_bias": {"7": 100.5}}), "logit_bias"),
            (json!({"logit_bias": {"7": "1"}}), "logit_bias"),
            (json!({"response_format": {"type": "json_object"}}), "response_format"),
            (json!({"chat_template_kwargs": {"enable_thinking": "no"}}), "enable_thinking"),
            (json!({"model": 3}), "model"),
        ];
        for (extra, param) in cases {
            let error = with(extra.clone()).unwrap_err();
            assert_eq!(error.status(), 400, "{extra}");
            assert_eq!(error.body()["error"]["param"], param, "{extra}");
        }
    }

    #[test]
    fn malformed_json_is_one_sentence_with_its_place() {
        for (body, sentence) in [
            ("", "The request body is empty; it must be a JSON object."),
            ("[]", "The request body must be a JSON object."),
            ("{\"messages\": [}", "The request body is not valid JSON: expected value at line 1 column 15."),
        ] {
            assert_eq!(ChatRequest::parse(body.as_bytes()).unwrap_err().message(), sentence);
        }
        let deep = "[".repeat(100_000);
        assert_eq!(ChatRequest::parse(deep.as_bytes()).unwrap_err().status(), 400);
    }
}
