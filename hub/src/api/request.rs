//! Parses and validates the body of `POST /v1/chat/completions`.
//!
//! Tolerant as OpenAI's clients need it: `null` counts as absent, unknown fields are reported and ignored. Known but
//! unsupported features are refused instead of ignored: fields by `parameters`, values (such as images) where they are
//! read.

mod format;
mod messages;
mod prediction;
mod sampling;
mod tools;

use serde_json::{Map, Value};

pub(super) use format::Format;
pub(super) use sampling::{SamplingFields, logit_bias, stop};
pub(super) use tools::ToolChoice;

use super::error::ApiError;
use super::fields::{Fields, wrong};
use super::parameters::{refuse_unsupported, unknown};
use moex_engine::sampler::MAX_LOGPROBS;

/// Maximum messages in a request.
pub(super) const MAX_MESSAGES: usize = 4096;
/// Maximum choices of a request.
pub(super) const MAX_CHOICES: usize = 8;

/// A parsed chat completion request.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ChatRequest {
    /// The model's name, if one was given.
    pub(super) model: Option<String>,
    /// The conversation in the format that chat templates read: `content` is always one string.
    pub(super) messages: Vec<Value>,
    /// The tools offered, as received; empty if `tool_choice` is `none`.
    pub(super) tools: Vec<Value>,
    /// Which tool must be called, if any.
    pub(super) tool_choice: ToolChoice,
    /// Whether several tools may be called at once.
    pub(super) parallel_tool_calls: bool,
    /// Required format of the answer.
    pub(super) format: Format,
    /// Text that the answer probably resembles.
    pub(super) prediction: Option<String>,
    /// `chat_template_kwargs`: variables of the model's chat template.
    pub(super) template: Map<String, Value>,
    /// Reasoning effort, by the template's own names.
    pub(super) reasoning_effort: Option<String>,
    /// Whether the prompt ends with the start of the assistant's message.
    pub(super) add_generation_prompt: bool,
    /// Whether the answer continues the last message.
    pub(super) continue_final_message: bool,
    /// Number of choices.
    pub(super) n: usize,
    /// Return log probabilities of each token and of this many alternatives.
    pub(super) logprobs: Option<u8>,
    /// Sampling parameters in the request; the model's `generation_config.json` gives the others.
    pub(super) sampling: SamplingFields,
    /// Maximum tokens of the answer; by default, as many as fit in the context.
    pub(super) max_tokens: Option<usize>,
    /// Strings that end the answer and are not part of it.
    pub(super) stop: Vec<String>,
    /// Added to the logits of these tokens.
    pub(super) logit_bias: Vec<(u32, f32)>,
    /// Continue after an end token.
    pub(super) ignore_eos: bool,
    /// Tokens before which nothing ends the answer.
    pub(super) min_tokens: u32,
    /// Makes sampling repeatable.
    pub(super) seed: Option<u64>,
    /// Answer as server-sent events.
    pub(super) stream: bool,
    /// Close a stream with a chunk of token counts.
    pub(super) include_usage: bool,
    /// Names of unknown fields.
    pub(super) ignored: Vec<String>,
}

impl ChatRequest {
    /// Parses a body.
    pub(super) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        Self::of(&object(body)?)
    }

    /// Reads a body's fields.
    pub(super) fn of(map: &Map<String, Value>) -> Result<Self, ApiError> {
        let fields = Fields(map);
        refuse_unsupported(&fields)?;
        let (stream, include_usage) = stream(&fields)?;
        let (tools, tool_choice) = tools::parse(&fields)?;
        let (add_generation_prompt, continue_final_message) = end_of_prompt(&fields)?;
        Ok(Self {
            model: fields.string("model")?.map(str::to_owned),
            messages: messages::parse(&fields)?,
            tools,
            tool_choice,
            parallel_tool_calls: fields.boolean("parallel_tool_calls")?.unwrap_or(true),
            format: format::parse(&fields)?,
            prediction: prediction::parse(&fields)?,
            template: template(&fields)?,
            reasoning_effort: reasoning_effort(&fields)?,
            add_generation_prompt,
            continue_final_message,
            n: n(&fields)?,
            logprobs: logprobs(&fields)?,
            sampling: SamplingFields::parse(&fields)?,
            max_tokens: max_tokens(&fields)?,
            stop: stop(&fields)?,
            logit_bias: logit_bias(&fields)?,
            ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
            min_tokens: min_tokens(&fields)?,
            seed: fields.integer("seed", i64::MIN..=i64::MAX)?.map(i64::cast_unsigned),
            stream,
            include_usage,
            ignored: unknown(&fields),
        })
    }
}

/// Parses the body as a JSON object.
pub(super) fn object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    match serde_json::from_slice(body).map_err(|error| malformed(body, &error))? {
        Value::Object(map) => Ok(map),
        _ => Err(ApiError::malformed("The request body must be a JSON object.")),
    }
}

/// One sentence with the position of the error; an empty body has its own.
fn malformed(body: &[u8], error: &serde_json::Error) -> ApiError {
    if body.is_empty() {
        return ApiError::malformed("The request body is empty; it must be a JSON object.");
    }
    ApiError::malformed(format!("The request body is not valid JSON: {error}."))
}

/// `stream`, and whether the stream ends with token counts.
pub(super) fn stream(fields: &Fields<'_>) -> Result<(bool, bool), ApiError> {
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

/// The newer name takes precedence if both are given.
/// Tokens before which nothing ends an answer but `max_tokens`.
pub(super) fn min_tokens(fields: &Fields<'_>) -> Result<u32, ApiError> {
    let tokens = fields.integer("min_tokens", 0..=i64::from(u32::MAX))?;
    Ok(tokens.and_then(|tokens| u32::try_from(tokens).ok()).unwrap_or(0))
}

fn max_tokens(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    let older = fields.integer("max_tokens", 1..=i64::MAX)?;
    let newer = fields.integer("max_completion_tokens", 1..=i64::MAX)?;
    Ok(newer.or(older).map(|tokens| usize::try_from(tokens).unwrap_or(usize::MAX)))
}

/// Number of choices.
pub(super) fn n(fields: &Fields<'_>) -> Result<usize, ApiError> {
    let n = fields.integer("n", 1..=MAX_CHOICES as i64)?;
    Ok(n.and_then(|n| usize::try_from(n).ok()).unwrap_or(1))
}

/// `logprobs` turns them on; `top_logprobs` is the number of alternatives.
fn logprobs(fields: &Fields<'_>) -> Result<Option<u8>, ApiError> {
    let asked = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0..=MAX_LOGPROBS as i64)?;
    if top.is_some_and(|top| top > 0) && !asked {
        return Err(ApiError::invalid(
            "top_logprobs",
            "\"top_logprobs\" may be given only when \"logprobs\" is true.",
        ));
    }
    Ok(asked.then(|| top.and_then(|top| u8::try_from(top).ok()).unwrap_or(0)))
}

fn template(fields: &Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    let Some(kwargs) = fields.object("chat_template_kwargs")? else { return Ok(Map::new()) };
    kwargs.boolean("enable_thinking")?;
    Ok(kwargs.0.iter().filter(|(_, value)| !value.is_null()).map(|(k, v)| (k.clone(), v.clone())).collect())
}

fn reasoning_effort(fields: &Fields<'_>) -> Result<Option<String>, ApiError> {
    const WHAT: &str = "\"none\", \"minimal\", \"low\", \"medium\", \"high\" or \"xhigh\"";
    match fields.value("reasoning_effort") {
        None => Ok(None),
        Some(Value::String(effort))
            if ["none", "minimal", "low", "medium", "high", "xhigh"].contains(&effort.as_str()) =>
        {
            Ok(Some(effort.clone()))
        }
        Some(other) => Err(wrong("reasoning_effort", WHAT, other)),
    }
}

/// `add_generation_prompt` and `continue_final_message`, which exclude each other.
fn end_of_prompt(fields: &Fields<'_>) -> Result<(bool, bool), ApiError> {
    let add = fields.boolean("add_generation_prompt")?;
    let goes_on = fields.boolean("continue_final_message")?.unwrap_or(false);
    if goes_on && add == Some(true) {
        return Err(ApiError::invalid(
            "continue_final_message",
            "\"continue_final_message\" and \"add_generation_prompt\" cannot both be true: one goes on with the last \
             message, the other begins a new one.",
        ));
    }
    Ok((add.unwrap_or(!goes_on), goes_on))
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
        assert_eq!(json!(request.template), json!({"enable_thinking": false, "other": 1}));
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
            (json!({"n": 9}), "n"),
            (json!({"n": 0}), "n"),
            (json!({"stop": 3}), "stop"),
            (json!({"stop": ["a", 3]}), "stop"),
            (json!({"stop": ""}), "stop"),
            (json!({"stop": vec!["x"; 17]}), "stop"),
            (json!({"stream": "yes"}), "stream"),
            (json!({"stream_options": {"include_usage": true}}), "stream_options"),
            (json!({"seed": 1.5}), "seed"),
            (json!({"tools": {}}), "tools"),
            (json!({"tools": [{"name": "f"}]}), "tools"),
            (json!({"tools": [{"type": "web_search", "function": {"name": "f"}}]}), "tools"),
            (json!({"tools": [{"function": {"name": "f", "strict": "yes"}}]}), "tools"),
            (json!({"tools": [{"function": {"name": "f", "description": 3}}]}), "tools"),
            (json!({"tool_choice": "required"}), "tool_choice"),
            (json!({"tool_choice": {"type": "function", "function": {"name": "g"}}}), "tool_choice"),
            (json!({"tool_choice": "some"}), "tool_choice"),
            (json!({"logprobs": 1}), "logprobs"),
            (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
            (json!({"top_logprobs": 2}), "top_logprobs"),
            (
                json!({"continue_final_message": true, "add_generation_prompt": true}),
                "continue_final_message",
            ),
            (json!({"reasoning_effort": "much"}), "reasoning_effort"),
            (json!({"ignore_eos": 1}), "ignore_eos"),
            (json!({"logit_bias": [[7, -1]]}), "logit_bias"),
            (json!({"logit_bias": {"the": 1}}), "logit_bias"),
            (json!({"logit_bias": {"-7": 1}}), "logit_bias"),
            (json!({"logit_bias": {"7": 100.5}}), "logit_bias"),
            (json!({"logit_bias": {"7": "1"}}), "logit_bias"),
            (json!({"response_format": {"type": "grammar"}}), "response_format"),
            (json!({"response_format": {"type": "json_schema"}}), "response_format"),
            (json!({"response_format": {}}), "response_format"),
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
