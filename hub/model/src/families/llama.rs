//! Llama 2 and 3 and models with the same structure: dense, without biases unless the config sets them.

use super::{Change, Family, Fields, GgufForm, raw::invalid};
use crate::{
    error::ConfigError,
    spec::{Activation, MoeSpec},
    text::OutputFormat,
};

/// The family.
pub(super) const LLAMA: Family = Family {
    model_types: &["llama"],
    architecture: "LlamaForCausalLM",
    output: OutputFormat::Text,
    spec: |raw| {
        raw.only_silu()?;
        if raw.mlp_bias == Some(true) {
            return Err(invalid("mlp_bias", true, "but only MLPs without biases are supported"));
        }
        let dense = raw.dense(Activation::Silu)?;
        raw.spec("llama", |_| dense, MoeSpec::NONE)
    },
    names: &[],
    gguf: &[GgufForm {
        has_experts: Some(false),
        fields: llama_fields,
        changes: PAIRED_ROWS,
        ends: LLAMA_ENDS,
        ..GgufForm::of("llama", "llama")
    }],
};

/// A GGUF of the architecture "llama" stores the rows of queries and keys for RoPE of adjacent columns.
pub(super) const PAIRED_ROWS: &[(&str, Change)] =
    &[("self_attn.q_proj", Change::PairedRows), ("self_attn.k_proj", Change::PairedRows)];

/// The tokens that end an answer of Llama 2 and 3 and of Mistral's models.
pub(super) const LLAMA_ENDS: &[&str] = &["<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "</s>"];

/// Biases exist or not; no key tells.
pub(super) fn llama_fields(fields: &mut Fields<'_>) -> Result<(), ConfigError> {
    fields.set("attention_bias", fields.tensors.has_attention_bias);
    Ok(())
}
