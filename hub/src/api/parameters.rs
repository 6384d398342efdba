//! Lists every field that clients of OpenAI, vLLM and llama.cpp send with a chat completion, and whether it is used,
//! ignored or refused.
//!
//! A field that would change the answer and is not supported is refused by name, so that a client does not get a
//! different answer than it asked for. A value that asks for nothing, which some clients send by default, passes.
//! Fields in no list are ignored, as in every server of this API, and named in a response header.

use serde_json::Value;

use super::error::ApiError;
use super::fields::Fields;

/// A field of a request.
pub(super) struct Parameter {
    /// Name in the body.
    pub(super) name: &'static str,
    /// How the field is treated.
    pub(super) fate: FieldUse,
}

/// How a field is treated.
pub(super) enum FieldUse {
    /// It is read.
    Used,
    /// Ignored, since the answer does not depend on it.
    Harmless,
    /// Refused, except with one of these JSON values, which ask for nothing; the text says what to do instead.
    Refused(&'static [&'static str], &'static str),
}

use FieldUse::{Harmless, Refused, Used};

/// All known fields, by their origin.
pub(super) const PARAMETERS: &[Parameter] = &[
    // OpenAI
    of("messages", Used),
    of("model", Used),
    of("frequency_penalty", Used),
    of("logit_bias", Used),
    of("logprobs", Used),
    of("max_completion_tokens", Used),
    of("max_tokens", Used),
    of("n", Used),
    of("parallel_tool_calls", Used),
    of("prediction", Used),
    of("presence_penalty", Used),
    of("reasoning_effort", Used),
    of("response_format", Used),
    of("seed", Used),
    of("stop", Used),
    of("stream", Used),
    of("stream_options", Used),
    of("temperature", Used),
    of("tool_choice", Used),
    of("tools", Used),
    of("top_logprobs", Used),
    of("top_p", Used),
    of("metadata", Harmless),
    of("prompt_cache_key", Harmless),
    of("prompt_cache_retention", Harmless),
    of("safety_identifier", Harmless),
    of("service_tier", Harmless),
    of("store", Harmless),
    of("user", Harmless),
    of("audio", Refused(&[], "it answers in text")),
    of(
        "function_call",
        Refused(&["\"none\"", "\"auto\""], "\"tools\" and \"tool_choice\" have taken its place"),
    ),
    of("functions", Refused(&["[]"], "\"tools\" has taken its place")),
    of("modalities", Refused(&["[\"text\"]"], "it answers in text")),
    of("verbosity", Refused(&["\"medium\""], "")),
    of("web_search_options", Refused(&[], "")),
    // vLLM
    of("add_generation_prompt", Used),
    of("chat_template_kwargs", Used),
    of("continue_final_message", Used),
    of("ignore_eos", Used),
    of("min_p", Used),
    of("min_tokens", Used),
    of("repetition_penalty", Used),
    of("top_k", Used),
    of("cache_salt", Harmless),
    of("guided_decoding_backend", Harmless),
    of("priority", Harmless),
    of("request_id", Harmless),
    of("spaces_between_special_tokens", Harmless),
    of("add_special_tokens", Refused(&["false"], "")),
    of("allowed_token_ids", Refused(&[], "")),
    of("bad_words", Refused(&["[]"], "")),
    of("best_of", Refused(&["1"], "")),
    of("chat_template", Refused(&[], "the model's own is used")),
    of("documents", Refused(&["[]"], "")),
    of("echo", Refused(&["false"], "")),
    of("guided_choice", Refused(&[], "")),
    of("guided_grammar", Refused(&[], "")),
    of("guided_json", Refused(&[], "")),
    of("guided_regex", Refused(&[], "")),
    of("guided_whitespace_pattern", Refused(&[], "")),
    of("include_reasoning", Refused(&["true"], "")),
    of("include_stop_str_in_output", Refused(&["false"], "")),
    of("kv_transfer_params", Refused(&[], "")),
    of("length_penalty", Refused(&["1"], "")),
    of("logits_processors", Refused(&["[]"], "")),
    of("mm_processor_kwargs", Refused(&["{}"], "it reads text only")),
    of("prompt_logprobs", Refused(&["0"], "")),
    of("return_tokens_as_token_ids", Refused(&["false"], "")),
    of("skip_special_tokens", Refused(&["true"], "")),
    of("stop_token_ids", Refused(&["[]"], "\"stop\" takes strings")),
    of("structural_tag", Refused(&[], "")),
    of("structured_outputs", Refused(&[], "")),
    of("thinking_token_budget", Refused(&[], "")),
    of("truncate_prompt_tokens", Refused(&[], "")),
    of("use_beam_search", Refused(&["false"], "")),
    of("vllm_xargs", Refused(&["{}"], "")),
    // llama.cpp
    of("cache_prompt", Harmless),
    of("dry_allowed_length", Harmless),
    of("dry_base", Harmless),
    of("dry_penalty_last_n", Harmless),
    of("dry_sequence_breakers", Harmless),
    of("dynatemp_exponent", Harmless),
    of("id_slot", Harmless),
    of("mirostat_eta", Harmless),
    of("mirostat_tau", Harmless),
    of("n_keep", Harmless),
    of("repeat_last_n", Harmless),
    of("xtc_threshold", Harmless),
    of("dry_multiplier", Refused(&["0"], "")),
    of("dynatemp_range", Refused(&["0"], "")),
    of("grammar", Refused(&["\"\""], "")),
    of("grammar_lazy", Refused(&["false"], "")),
    of("grammar_triggers", Refused(&["[]"], "")),
    of("image_data", Refused(&["[]"], "it reads text only")),
    of("json_schema", Refused(&[], "")),
    of("lora", Refused(&["[]"], "")),
    of("min_keep", Refused(&["0", "1"], "")),
    of("mirostat", Refused(&["0"], "")),
    of("n_indent", Refused(&["0"], "")),
    of("n_predict", Refused(&["-1"], "\"max_tokens\" does the same")),
    of("n_probs", Refused(&["0"], "")),
    of("parse_tool_calls", Refused(&["true"], "")),
    of("post_sampling_probs", Refused(&["false"], "")),
    of("reasoning_format", Refused(&["\"auto\"", "\"deepseek\""], "thinking comes as \"reasoning_content\"")),
    of("repeat_penalty", Refused(&["1"], "\"repetition_penalty\" does the same")),
    of("response_fields", Refused(&["[]"], "")),
    of("return_progress", Refused(&["false"], "")),
    of("return_tokens", Refused(&["false"], "")),
    of("samplers", Refused(&[], "")),
    of("t_max_predict_ms", Refused(&["0", "-1"], "")),
    of("thinking_forced_open", Refused(&["false"], "")),
    of("timings_per_token", Refused(&["false"], "")),
    of("top_n_sigma", Refused(&["-1"], "")),
    of("typ_p", Refused(&["1"], "")),
    of("typical_p", Refused(&["1"], "")),
    of("xtc_probability", Refused(&["0"], "")),
];

const fn of(name: &'static str, fate: FieldUse) -> Parameter {
    Parameter { name, fate }
}

/// Differences for completions, which have a prompt instead of messages.
const OF_COMPLETIONS: &[Parameter] = &[
    of("prompt", Used),
    of("best_of", Used),
    of("echo", Used),
    of("suffix", Refused(&["\"\""], "text can only be added after a prompt")),
    of("messages", Refused(&["[]"], "\"prompt\" is what is continued; /v1/chat/completions takes messages")),
    of("max_completion_tokens", Refused(&[], "\"max_tokens\" does the same")),
    of("response_format", Refused(&["{\"type\":\"text\"}"], "/v1/chat/completions has it")),
    of("tools", Refused(&["[]"], "/v1/chat/completions has it")),
    of("tool_choice", Refused(&["\"none\"", "\"auto\""], "/v1/chat/completions has it")),
    of("top_logprobs", Refused(&["0"], "\"logprobs\" says how many")),
    of("parallel_tool_calls", Refused(&["true"], "/v1/chat/completions has it")),
    of("reasoning_effort", Refused(&[], "/v1/chat/completions has it")),
    of("chat_template_kwargs", Refused(&["{}"], "/v1/chat/completions has it")),
    of("add_generation_prompt", Refused(&["false"], "/v1/chat/completions has it")),
    of("continue_final_message", Refused(&["false"], "every prompt is continued as it is")),
];

/// Refuses the first field that asks for an unsupported feature.
pub(super) fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), ApiError> {
    refuse(fields, PARAMETERS.iter())
}

/// The same for completions.
pub(super) fn refuse_for_completions(fields: &Fields<'_>) -> Result<(), ApiError> {
    let is_own = |name: &str| OF_COMPLETIONS.iter().any(|own| own.name == name);
    refuse(fields, OF_COMPLETIONS.iter().chain(PARAMETERS.iter().filter(|shared| !is_own(shared.name))))
}

fn refuse<'a>(fields: &Fields<'_>, parameters: impl Iterator<Item = &'a Parameter>) -> Result<(), ApiError> {
    for Parameter { name, fate } in parameters {
        let (Refused(neutral, instead), Some(value)) = (fate, fields.value(name)) else { continue };
        if !neutral.iter().any(|neutral| is(value, neutral)) {
            let instead = if instead.is_empty() { String::new() } else { format!(": {instead}") };
            return Err(ApiError::unsupported(
                name,
                format!("This server does not do what \"{name}\" asks for{instead}. Leave it out."),
            ));
        }
    }
    Ok(())
}

/// Names of fields that are in no list.
pub(super) fn unknown(fields: &Fields<'_>) -> Vec<String> {
    unknown_to(fields, &[PARAMETERS])
}

/// The same for completions.
pub(super) fn unknown_to_completions(fields: &Fields<'_>) -> Vec<String> {
    unknown_to(fields, &[OF_COMPLETIONS, PARAMETERS])
}

fn unknown_to(fields: &Fields<'_>, lists: &[&[Parameter]]) -> Vec<String> {
    let is_known = |name: &str| lists.iter().any(|list| list.iter().any(|known| known.name == name));
    fields.0.keys().filter(|name| !is_known(name)).cloned().collect()
}

/// Whether `value` equals this JSON; 1 and 1.0 are equal.
pub(super) fn is(value: &Value, json: &str) -> bool {
    match (value.as_f64(), json.parse::<f64>()) {
        (Some(value), Ok(number)) => value == number,
        _ => serde_json::from_str::<Value>(json).is_ok_and(|neutral| neutral == *value),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::super::request::ChatRequest;
    use super::*;

    fn with(name: &str, value: &Value) -> Result<ChatRequest, ApiError> {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}]});
        body[name] = value.clone();
        ChatRequest::parse(body.to_string().as_bytes())
    }

    /// What no field takes all of.
    fn odd() -> [Value; 4] {
        [json!(7e30), json!({"odd": {"odd": []}}), json!("odd"), json!([[]])]
    }

    #[test]
    fn each_parameter_stands_in_the_table_once() {
        let names: BTreeSet<&str> = PARAMETERS.iter().map(|parameter| parameter.name).collect();
        assert_eq!(names.len(), PARAMETERS.len());
    }

    #[test]
    fn what_is_used_is_read_and_what_is_harmless_is_not() {
        for Parameter { name, fate } in PARAMETERS {
            match fate {
                Used => {
                    let read = odd().iter().any(|value| {
                        with(name, value).is_err_and(|error| {
                            error.body()["error"]["message"].as_str().is_some_and(|said| said.contains(name))
                        })
                    });
                    assert!(read, "nobody reads {name}");
                }
                Harmless => assert!(odd().iter().all(|value| with(name, value).is_ok()), "{name}"),
                Refused(..) => {}
            }
        }
    }

    #[test]
    fn what_is_refused_is_named_and_passes_where_it_asks_for_nothing() {
        for Parameter { name, fate } in PARAMETERS {
            let Refused(neutral, _) = fate else { continue };
            for value in odd() {
                let error = with(name, &value).unwrap_err();
                let body = error.body();
                assert_eq!(error.status(), 400, "{name}");
                assert_eq!(body["error"]["param"], *name);
                assert_eq!(body["error"]["code"], "unsupported_parameter");
                assert_eq!(body["error"]["type"], "invalid_request_error");
                assert!(body["error"]["message"].as_str().unwrap().contains(name));
            }
            assert!(with(name, &Value::Null).is_ok(), "{name}");
            for value in *neutral {
                assert!(with(name, &serde_json::from_str(value).unwrap()).is_ok(), "{name}: {value}");
            }
        }
        assert!(with("typical_p", &json!(1.0)).is_ok());
    }

    #[test]
    fn a_name_that_nobody_knows_is_ignored() {
        assert!(with("something_new", &json!({"deep": [1]})).is_ok());
    }
}
