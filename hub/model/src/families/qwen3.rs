//! Qwen3, with experts and without: RMSNorm of each query and key head.

use super::{Family, Raw};
use crate::{
    error::ConfigError,
    spec::{Activation, ModelSpec, MoeSpec, QkNorm},
};

/// Qwen3-30B-A3B and its kin.
pub(super) const QWEN3_MOE: Family = Family {
    model_types: &["qwen3_moe"],
    architecture: "Qwen3MoeForCausalLM",
    spec: |raw| {
        let kinds = raw.sparse_or_dense()?;
        // `norm_topk_prob` is false where it is absent: transformers' default.
        with_head_norms(raw, raw.spec("qwen3_moe", |layer| kinds[layer], raw.moe(false, None)?))
    },
    names: &[],
};

/// Qwen3-0.6B and its kin.
pub(super) const QWEN3: Family = Family {
    model_types: &["qwen3"],
    architecture: "Qwen3ForCausalLM",
    spec: |raw| {
        let dense = raw.dense(Activation::Silu)?;
        with_head_norms(raw, raw.spec("qwen3", |_| dense, MoeSpec::NONE))
    },
    names: &[],
};

fn with_head_norms(raw: &Raw, spec: Result<ModelSpec, ConfigError>) -> Result<ModelSpec, ConfigError> {
    raw.only_silu()?;
    raw.no_window()?;
    let mut spec = spec?;
    spec.attentions_mut().for_each(|attention| attention.qk_norm = QkNorm::Head);
    Ok(spec)
}
