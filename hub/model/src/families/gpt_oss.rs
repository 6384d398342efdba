//! GPT-OSS (20b and 120b): attention sinks, windows in every other layer, biases everywhere, experts with a clamped SwiGLU in
//! mxfp4 (<https://arxiv.org/abs/2508.10925>).

use moex_kernels::{
    ExpertKind,
    cpu::{SWIGLU_ALPHA, SWIGLU_LIMIT},
};

use super::{
    Family, Fields, GgufForm, Raw,
    raw::{FULL, SLIDING, bounded, invalid},
};
use crate::{
    error::ConfigError,
    gguf::Value,
    spec::{FfnSpec, MAX_POSITIONS, ModelSpec},
    text::OutputFormat,
};

/// The family.
pub(super) const GPT_OSS: Family = Family {
    model_types: &["gpt_oss"],
    architecture: "GptOssForCausalLM",
    output: OutputFormat::Harmony,
    spec,
    names: &[(".mlp.gate.", ".mlp.router.")],
    gguf: &[GgufForm {
        keys: &[("sliding_window", "attention.sliding_window")],
        reads: &["expert_gating_func"],
        fields: gguf_fields,
        names: &[
            ("post_attention_layernorm", "post_attention_norm"),
            ("self_attn.sinks", "attn_sinks.weight"),
        ],
        ends: &["<|return|>", "<|call|>", "<|endoftext|>"],
        ..GgufForm::of("gpt-oss", "gpt_oss")
    }],
};

/// Fields that every GPT-OSS has and no key stores.
fn gguf_fields(fields: &mut Fields<'_>) -> Result<(), ConfigError> {
    const SOFTMAX_OF_THE_CHOSEN: usize = 3;
    if let Some(other) = fields.integer("expert_gating_func")?.filter(|kind| *kind != SOFTMAX_OF_THE_CHOSEN) {
        return Err(fields.invalid(
            "expert_gating_func",
            other,
            "but only 3, softmax of the chosen, is supported",
        ));
    }
    fields.set("attention_bias", true);
    fields.windows()?;
    if fields.value("rope.scaling.type").and_then(Value::as_str) == Some("yarn") {
        fields.set("rope_scaling.truncate", false);
    }
    Ok(())
}

fn spec(raw: &Raw) -> Result<ModelSpec, ConfigError> {
    raw.only_silu()?;
    for (field, value, only) in
        [("swiglu_limit", raw.swiglu_limit, SWIGLU_LIMIT), ("swiglu_alpha", raw.swiglu_alpha, SWIGLU_ALPHA)]
    {
        if let Some(value) = value.filter(|value| *value != only) {
            return Err(invalid(field, value, format!("but only {only} is supported")));
        }
    }
    // Softmax over the chosen logits equals softmax over all, renormalised.
    let mut moe = raw.moe(true, raw.intermediate_size)?;
    moe.kind = ExpertKind::ClampedSwiglu;
    moe.has_router_bias = true;
    let window = bounded("sliding_window", raw.sliding_window, MAX_POSITIONS)?;
    let pattern = bounded("sliding_window_pattern", raw.sliding_window_pattern.or(Some(2)), MAX_POSITIONS)?;
    let kinds = raw.layer_kinds(|layer| if (layer + 1).is_multiple_of(pattern) { FULL } else { SLIDING })?;
    let mut spec = raw.spec("gpt_oss", |_| FfnSpec::Sparse, moe)?;
    for (attention, kind) in spec.attentions_mut().zip(&kinds) {
        attention.window = (kind == SLIDING).then_some(window);
        attention.has_sinks = true;
        attention.qkv_bias = raw.attention_bias.unwrap_or(true);
        attention.output_bias = attention.qkv_bias;
    }
    Ok(spec)
}
