//! Llama 2 and 3, and what is built like them: dense, no biases unless the config says so.

use super::{Family, raw::invalid};
use crate::spec::{Activation, MoeSpec};

/// The family.
pub(super) const LLAMA: Family = Family {
    model_types: &["llama"],
    architecture: "LlamaForCausalLM",
    spec: |raw| {
        raw.only_silu()?;
        if raw.mlp_bias == Some(true) {
            return Err(invalid("mlp_bias", true, "and an MLP without biases is supported"));
        }
        let dense = raw.dense(Activation::Silu)?;
        raw.spec("llama", |_| dense, MoeSpec::NONE)
    },
    names: &[],
};
