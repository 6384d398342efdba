//! Qwen3-Next: three layers of gated delta nets to one of attention with an output gate, norms that multiply by one plus their
//! weights, a gated shared expert.

use moex_kernels::cpu::DeltaNetShape;

use super::{
    Family, Raw,
    raw::{FULL, LINEAR, bounded, invalid},
};
use crate::{
    error::ConfigError,
    spec::{MAX_INNER, MAX_LAYERS, MAX_WIDTH, Mixer, ModelSpec, NormWeights, QkNorm, SharedExpertSpec},
};

/// The family.
pub(super) const QWEN3_NEXT: Family =
    Family { model_types: &["qwen3_next"], architecture: "Qwen3NextForCausalLM", spec, names: &[] };

fn spec(raw: &Raw) -> Result<ModelSpec, ConfigError> {
    raw.only_silu()?;
    raw.no_window()?;
    let ffns = raw.sparse_or_dense()?;
    let mut moe = raw.moe(true, None)?;
    let inner = bounded("shared_expert_intermediate_size", raw.shared_expert_intermediate_size, MAX_WIDTH)?;
    moe.shared = Some(SharedExpertSpec { inner, is_gated: true });
    let mut spec = raw.spec("qwen3_next", |layer| ffns[layer], moe)?;
    spec.norm_weights = NormWeights::OnePlus;
    for attention in spec.attentions_mut() {
        attention.qk_norm = QkNorm::Head;
        attention.has_output_gate = true;
    }
    let interval = bounded("full_attention_interval", raw.full_attention_interval.or(Some(4)), MAX_LAYERS)?;
    let kinds = raw.layer_kinds(|layer| if (layer + 1).is_multiple_of(interval) { FULL } else { LINEAR })?;
    if !kinds.iter().any(|kind| kind == FULL) {
        return Err(invalid("layer_types", LINEAR, "and at least one layer must have full attention"));
    }
    let shape = delta_net(raw)?;
    for (layer, kind) in spec.layers.iter_mut().zip(&kinds) {
        match kind.as_str() {
            FULL => {}
            LINEAR => layer.mixer = Mixer::DeltaNet(shape),
            other => {
                return Err(invalid("layer_types", format!("{other:?}"), "which this family does not have"));
            }
        }
    }
    Ok(spec)
}

fn delta_net(raw: &Raw) -> Result<DeltaNetShape, ConfigError> {
    let n_key_heads = bounded("linear_num_key_heads", raw.linear_num_key_heads, MAX_WIDTH)?;
    let n_value_heads = bounded("linear_num_value_heads", raw.linear_num_value_heads, MAX_WIDTH)?;
    if !n_value_heads.is_multiple_of(n_key_heads) {
        let reason = format!("which the {n_key_heads} key heads do not divide");
        return Err(invalid("linear_num_value_heads", n_value_heads, reason));
    }
    let shape = DeltaNetShape {
        n_key_heads,
        n_value_heads,
        key_width: bounded("linear_key_head_dim", raw.linear_key_head_dim, MAX_WIDTH)?,
        value_width: bounded("linear_value_head_dim", raw.linear_value_head_dim, MAX_WIDTH)?,
        kernel: bounded("linear_conv_kernel_dim", raw.linear_conv_kernel_dim, 64)?,
    };
    let widest =
        n_key_heads.saturating_mul(shape.key_width).max(n_value_heads.saturating_mul(shape.value_width));
    match widest.saturating_mul(4) > MAX_INNER {
        true => Err(invalid("linear_value_head_dim", shape.value_width, "too wide for so many heads")),
        false => Ok(shape),
    }
}
