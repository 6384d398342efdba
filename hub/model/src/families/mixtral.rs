//! Mixtral: experts in every layer, gates that sum to one.

use super::Family;
use crate::spec::FfnSpec;

/// The family.
pub(super) const MIXTRAL: Family = Family {
    model_types: &["mixtral"],
    architecture: "MixtralForCausalLM",
    spec: |raw| {
        raw.only_silu()?;
        let mut spec = raw.spec("mixtral", |_| FfnSpec::Sparse, raw.moe(true, raw.intermediate_size)?)?;
        for attention in spec.attentions_mut() {
            // Null as published, a number in some that others trained.
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
};
