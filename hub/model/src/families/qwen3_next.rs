//! Qwen3-Next: three layers of gated delta nets to one of attention with an output gate; norms multiply by one plus
//! their weights; a gated shared expert.

use moex_kernels::cpu::DeltaNetShape;

use super::{
    Change, Family, Fields, GgufForm, Raw,
    qwen3::QWEN_ENDS,
    raw::{FULL, LINEAR, bounded, invalid},
};
use crate::{
    error::ConfigError,
    spec::{MAX_INNER, MAX_LAYERS, MAX_WIDTH, Mixer, ModelSpec, NormWeights, QkNorm, SharedExpertSpec},
    text::OutputFormat,
};

/// The family.
pub(super) const QWEN3_NEXT: Family = Family {
    model_types: &["qwen3_next"],
    architecture: "Qwen3NextForCausalLM",
    output: OutputFormat::Tagged(OutputFormat::TAGS),
    spec,
    names: &[],
    gguf: &[GgufForm {
        keys: &[
            ("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
            ("full_attention_interval", "full_attention_interval"),
            ("linear_conv_kernel_dim", "ssm.conv_kernel"),
            ("linear_key_head_dim", "ssm.state_size"),
            ("linear_num_key_heads", "ssm.group_count"),
            ("linear_num_value_heads", "ssm.time_step_rank"),
        ],
        fields: gguf_fields,
        names: &[
            ("post_attention_layernorm", "post_attention_norm"),
            ("linear_attn.in_proj_qkvz", "ssm_in"),
            ("linear_attn.in_proj_ba", "ssm_ba"),
            ("linear_attn.conv1d", "ssm_conv1d"),
            ("linear_attn.A_log", "ssm_a"),
            ("linear_attn.dt_bias", "ssm_dt.bias"),
            ("linear_attn.norm", "ssm_norm"),
            ("linear_attn.out_proj", "ssm_out"),
        ],
        changes: &[
            ("linear_attn.in_proj_qkvz", Change::ByKind(&["attn_qkv", "attn_gate"])),
            ("linear_attn.A_log", Change::MinusExp),
        ],
        ends: QWEN_ENDS,
        ..GgufForm::of("qwen3next", "qwen3_next")
    }],
};

/// The width of a value head: `ssm.inner_size` is that of all heads together.
fn gguf_fields(fields: &mut Fields<'_>) -> Result<(), ConfigError> {
    let (inner, heads) = (fields.needed("ssm.inner_size")?, fields.needed("ssm.time_step_rank")?);
    match inner.checked_div(heads) {
        Some(width) if width * heads == inner => fields.set("linear_value_head_dim", width),
        _ => return Err(fields.invalid("ssm.inner_size", inner, &format!("of {heads} heads"))),
    }
    fields.set("norm_topk_prob", true);
    Ok(())
}

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
        return Err(invalid("layer_types", LINEAR, "but at least one layer must have full attention"));
    }
    let shape = delta_net(raw)?;
    for (layer, kind) in spec.layers.iter_mut().zip(&kinds) {
        match kind.as_str() {
            FULL => {}
            LINEAR => layer.mixer = Mixer::DeltaNet(shape),
            other => {
                return Err(invalid(
                    "layer_types",
                    format!("{other:?}"),
                    "which this family does not support",
                ));
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
