//! Mixtral: experts in every layer, gates that sum to one.

use super::{
    Family, GgufForm,
    llama::{LLAMA_ENDS, PAIRED_ROWS, llama_fields},
};
use crate::{spec::FfnSpec, text::OutputFormat};

/// The family.
pub(super) const MIXTRAL: Family = Family {
    model_types: &["mixtral"],
    architecture: "MixtralForCausalLM",
    output: OutputFormat::Text,
    spec: |raw| {
        raw.only_silu()?;
        let mut spec = raw.spec("mixtral", |_| FfnSpec::Sparse, raw.moe(true, raw.intermediate_size)?)?;
        for attention in spec.attentions_mut() {
            // Null in the published configs, a number in some derived ones.
            attention.window = raw.sliding_window.filter(|window| *window > 0);
        }
        Ok(spec)
    },
    names: &[
        (".mlp.", ".block_sparse_moe."),
        (".gate_proj.", ".w1."),
        (".down_proj.", ".w2."),
        (".up_proj.", ".w3."),
    ],
    gguf: &[GgufForm {
        has_experts: Some(true),
        keys: &[("sliding_window", "attention.sliding_window")],
        fields: llama_fields,
        changes: PAIRED_ROWS,
        ends: LLAMA_ENDS,
        ..GgufForm::of("llama", "mixtral")
    }],
};
