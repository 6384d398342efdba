//! Qwen2-MoE (Qwen1.5-MoE, Qwen2-57B-A14B): biases on q, k and v, and a shared expert with a gate of its own.

use super::{Family, GgufForm, qwen3::QWEN_ENDS, raw::bounded};
use crate::{
    spec::{MAX_WIDTH, SharedExpertSpec},
    text::OutputFormat,
};

/// The family.
pub(super) const QWEN2_MOE: Family = Family {
    model_types: &["qwen2_moe"],
    architecture: "Qwen2MoeForCausalLM",
    output: OutputFormat::Tagged(OutputFormat::TAGS),
    spec: |raw| {
        raw.only_silu()?;
        raw.no_window()?;
        let kinds = raw.sparse_or_dense()?;
        let inner =
            bounded("shared_expert_intermediate_size", raw.shared_expert_intermediate_size, MAX_WIDTH)?;
        let mut moe = raw.moe(false, None)?;
        moe.shared = Some(SharedExpertSpec { inner, is_gated: true });
        let mut spec = raw.spec("qwen2_moe", |layer| kinds[layer], moe)?;
        for attention in spec.attentions_mut() {
            attention.qkv_bias = raw.qkv_bias.unwrap_or(true);
            attention.output_bias = false;
        }
        Ok(spec)
    },
    names: &[],
    gguf: &[GgufForm {
        keys: &[("shared_expert_intermediate_size", "expert_shared_feed_forward_length")],
        // Without a key: llama.cpp never renormalises this architecture's gates.
        fields: |fields| {
            fields.set("norm_topk_prob", false);
            Ok(())
        },
        ends: QWEN_ENDS,
        ..GgufForm::of("qwen2moe", "qwen2_moe")
    }],
};
