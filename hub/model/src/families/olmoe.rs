//! OLMoE: RMSNorm of all query heads and of all key heads together, then q, k and v clipped.

use super::{Family, GgufForm, raw::invalid};
use crate::{
    spec::{FfnSpec, QkNorm},
    text::OutputFormat,
};

/// The family.
pub(super) const OLMOE: Family = Family {
    model_types: &["olmoe"],
    architecture: "OlmoeForCausalLM",
    output: OutputFormat::Text,
    spec: |raw| {
        raw.only_silu()?;
        if let Some(clip) = raw.clip_qkv.filter(|clip| !(clip.is_finite() && *clip > 0.0)) {
            return Err(invalid("clip_qkv", clip, "but must be more than 0"));
        }
        let mut spec = raw.spec("olmoe", |_| FfnSpec::Sparse, raw.moe(false, raw.intermediate_size)?)?;
        for attention in spec.attentions_mut() {
            attention.qk_norm = QkNorm::Row;
            attention.clip = raw.clip_qkv;
        }
        Ok(spec)
    },
    names: &[],
    gguf: &[GgufForm {
        keys: &[("clip_qkv", "attention.clamp_kqv")],
        // Without a key: llama.cpp never renormalises this architecture's gates.
        fields: |fields| {
            fields.set("norm_topk_prob", false);
            Ok(())
        },
        ends: &["<|endoftext|>"],
        ..GgufForm::of("olmoe", "olmoe")
    }],
};
