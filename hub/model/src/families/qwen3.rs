//! Qwen3, with experts and without: RMSNorm of each query and key head.

use super::{Family, GgufForm, Raw};
use crate::{
    error::ConfigError,
    spec::{Activation, ModelSpec, MoeSpec, QkNorm},
    text::OutputFormat,
};

/// Qwen3-30B-A3B and its kin.
pub(super) const QWEN3_MOE: Family = Family {
    model_types: &["qwen3_moe"],
    architecture: "Qwen3MoeForCausalLM",
    output: OutputFormat::Tagged(OutputFormat::TAGS),
    spec: |raw| {
        let kinds = raw.sparse_or_dense()?;
        // `norm_topk_prob` is false if absent, transformers' default.
        with_head_norms(raw, raw.spec("qwen3_moe", |layer| kinds[layer], raw.moe(false, None)?))
    },
    names: &[],
    gguf: &[QWEN3_MOE_GGUF],
};

/// The form that this crate writes as well.
pub(crate) const QWEN3_MOE_GGUF: GgufForm = GgufForm {
    // Without a key: llama.cpp always renormalises this architecture's gates.
    fields: |fields| {
        fields.set("norm_topk_prob", true);
        Ok(())
    },
    ends: QWEN_ENDS,
    ..GgufForm::of("qwen3moe", "qwen3_moe")
};

/// Qwen3-0.6B and its kin.
pub(super) const QWEN3: Family = Family {
    model_types: &["qwen3"],
    architecture: "Qwen3ForCausalLM",
    output: OutputFormat::Tagged(OutputFormat::TAGS),
    spec: |raw| {
        let dense = raw.dense(Activation::Silu)?;
        with_head_norms(raw, raw.spec("qwen3", |_| dense, MoeSpec::NONE))
    },
    names: &[],
    gguf: &[GgufForm { ends: QWEN_ENDS, ..GgufForm::of("qwen3", "qwen3") }],
};

/// The tokens that end an answer of any Qwen.
pub(super) const QWEN_ENDS: &[&str] = &["<|im_end|>", "<|endoftext|>"];

fn with_head_norms(raw: &Raw, spec: Result<ModelSpec, ConfigError>) -> Result<ModelSpec, ConfigError> {
    raw.only_silu()?;
    raw.no_window()?;
    let mut spec = spec?;
    spec.attentions_mut().for_each(|attention| attention.qk_norm = QkNorm::Head);
    Ok(spec)
}
