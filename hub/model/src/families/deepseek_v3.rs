//! DeepSeek-V3 and R1: latent attention, experts chosen by sigmoid within groups, shared experts on the hub
//! (<https://arxiv.org/abs/2412.19437>, section 2.1).

use moex_kernels::cpu::RopeScaling;

use super::{
    Change, Family, Fields, GgufForm, Raw,
    raw::{FULL, bounded, invalid},
};
use crate::{
    error::ConfigError,
    spec::{
        Activation, FfnSpec, MAX_INNER, MAX_LAYERS, MAX_WIDTH, ModelSpec, Projection, RopePairs, RopePlace,
        Scoring, SharedExpertSpec, default_scale,
    },
    text::OutputFormat,
};

/// The family.
pub(super) const DEEPSEEK_V3: Family = Family {
    model_types: &["deepseek_v3"],
    architecture: "DeepseekV3ForCausalLM",
    output: OutputFormat::Tagged(OutputFormat::DEEPSEEK_TAGS),
    spec,
    names: &[(".mlp.shared_expert.", ".mlp.shared_experts.")],
    gguf: &[GgufForm {
        keys: &[
            ("q_lora_rank", "attention.q_lora_rank"),
            ("kv_lora_rank", "attention.kv_lora_rank"),
            ("v_head_dim", "attention.value_length"),
            ("v_head_dim", "attention.value_length_mla"),
            ("qk_rope_head_dim", "rope.dimension_count"),
            ("first_k_dense_replace", "leading_dense_block_count"),
            ("n_shared_experts", "expert_shared_count"),
            ("n_group", "expert_group_count"),
            ("topk_group", "expert_group_used_count"),
            ("routed_scaling_factor", "expert_weights_scale"),
            ("norm_topk_prob", "expert_weights_norm"),
        ],
        reads: &["expert_gating_func"],
        fields: gguf_fields,
        names: &[
            ("self_attn.q_a_proj", "attn_q_a"),
            ("self_attn.q_a_layernorm", "attn_q_a_norm"),
            ("self_attn.q_b_proj", "attn_q_b"),
            ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
            ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
            ("self_attn.kv_b_proj", "attn_kv_b"),
            ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
        ],
        changes: &[("self_attn.kv_b_proj", Change::KeysAndValues(&["attn_k_b", "attn_v_b"]))],
        ends: &["<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>"],
        ..GgufForm::of("deepseek2", "deepseek_v3")
    }],
};

fn gguf_fields(fields: &mut Fields<'_>) -> Result<(), ConfigError> {
    const SIGMOID: usize = 2;
    // A file without the key is a DeepSeek-V2, which uses softmax.
    let scoring = fields.integer("expert_gating_func")?.unwrap_or(1);
    if scoring != SIGMOID {
        return Err(fields.invalid("expert_gating_func", scoring, "but only 2, sigmoid, is supported"));
    }
    // Older files have no key for a head's own width, and store it as that of keys.
    let mla = "attention.key_length_mla";
    let (key, head) = match fields.integer(mla)? {
        Some(head) => (mla, head),
        None => ("attention.key_length", fields.needed("attention.key_length")?),
    };
    let rotated = fields.needed("rope.dimension_count")?;
    let own = head.checked_sub(rotated).filter(|own| *own > 0);
    let own = own.ok_or_else(|| fields.invalid(key, head, "but RoPE needs more columns than that"))?;
    fields.set("qk_nope_head_dim", own);
    // Keys of the latent rows, shared by all heads, are stored as one head.
    fields.set("head_dim", head);
    fields.set("num_key_value_heads", fields.needed("attention.head_count")?);
    fields.set_absent("norm_topk_prob", false);
    if let Some(multiplier) = fields.number("rope.scaling.yarn_log_multiplier")? {
        // llama.cpp stores a tenth of it; cosines and sines are not scaled, which implies that `mscale` is the same.
        let mscale = f64::from(multiplier as f32 * 10.0);
        fields.set("rope_scaling.mscale", mscale);
        fields.set("rope_scaling.mscale_all_dim", mscale);
    }
    Ok(())
}

fn spec(raw: &Raw) -> Result<ModelSpec, ConfigError> {
    raw.only_silu()?;
    for (field, value, only) in
        [("scoring_func", &raw.scoring_func, "sigmoid"), ("topk_method", &raw.topk_method, "noaux_tc")]
    {
        if let Some(value) = value.as_deref().filter(|value| *value != only) {
            return Err(invalid(field, format!("{value:?}"), format!("but only {only:?} is supported")));
        }
    }
    let mut moe = raw.moe(true, None)?;
    let n_groups = bounded("n_group", raw.n_group, moe.n_experts)?;
    let n_chosen_groups = bounded("topk_group", raw.topk_group, n_groups)?;
    if !moe.n_experts.is_multiple_of(n_groups) {
        return Err(invalid(
            "n_group",
            n_groups,
            format!("which does not divide the {} experts", moe.n_experts),
        ));
    }
    let in_groups = moe.n_experts / n_groups * n_chosen_groups;
    if moe.n_experts / n_groups < 2 || in_groups < moe.n_chosen {
        return Err(invalid("n_group", n_groups, format!("too many for {} experts", moe.n_experts)));
    }
    moe.scoring = Scoring::SigmoidInGroups { n_groups, n_chosen_groups };
    moe.gate_scale = raw.routed_scaling_factor.unwrap_or(1.0);
    let n_shared = bounded("n_shared_experts", Some(raw.n_shared_experts.unwrap_or(1)), MAX_LAYERS)?;
    moe.shared = Some(SharedExpertSpec { inner: n_shared * moe.inner, is_gated: false });

    let n_dense = raw.first_k_dense_replace.unwrap_or(0);
    let step = bounded("moe_layer_freq", Some(raw.moe_layer_freq.unwrap_or(1)), MAX_LAYERS)?;
    let dense = match raw.intermediate_size {
        None if n_dense == 0 && step == 1 => FfnSpec::Sparse,
        _ => raw.dense(Activation::Silu)?,
    };
    let is_sparse = |layer: usize| layer >= n_dense && layer.is_multiple_of(step);
    // Transformers 5 stores the number of rotated columns in the field that elsewhere is a head's width.
    let heads = raw.num_attention_heads;
    let own = bounded("qk_nope_head_dim", raw.qk_nope_head_dim, MAX_WIDTH)?;
    let rotated = bounded("qk_rope_head_dim", raw.qk_rope_head_dim, MAX_WIDTH)?;
    let head_width = bounded("qk_nope_head_dim", Some(own + rotated), MAX_WIDTH)?;
    let value_width = bounded("v_head_dim", raw.v_head_dim, head_width)?;
    if !rotated.is_multiple_of(2) {
        return Err(invalid("qk_rope_head_dim", rotated, "but RoPE needs an even number"));
    }
    if heads.is_some_and(|heads| heads.saturating_mul(head_width) > MAX_INNER) {
        return Err(invalid("num_attention_heads", heads.unwrap_or_default(), "too many"));
    }
    let projection = Projection::Latent {
        q_rank: raw.q_lora_rank.map(|rank| bounded("q_lora_rank", Some(rank), MAX_WIDTH)).transpose()?,
        kv_rank: bounded("kv_lora_rank", raw.kv_lora_rank, MAX_WIDTH)?,
    };
    let mut rope = raw.rope(FULL, rotated)?;
    rope.place = RopePlace::Last;
    if raw.rope_interleave.unwrap_or(true) {
        rope.pairs = RopePairs::Neighbours;
    }
    let scale = default_scale(head_width) * score_factor(rope.scaling.as_ref());
    let family = "deepseek_v3";
    let mut spec = raw.spec(family, |layer| if is_sparse(layer) { FfnSpec::Sparse } else { dense }, moe)?;
    for attention in spec.attentions_mut() {
        attention.n_kv_heads = attention.n_heads;
        (attention.head_width, attention.value_width) = (head_width, value_width);
        (attention.projection, attention.rope, attention.scale) = (projection, rope.clone(), scale);
    }
    Ok(spec)
}

/// The factor of the attention scale from YaRN's `mscale_all_dim`.
fn score_factor(scaling: Option<&RopeScaling>) -> f32 {
    match scaling {
        Some(RopeScaling::Yarn(yarn)) => {
            let mscale = yarn.mscale_all_dim.filter(|m| *m != 0.0).map_or(1.0, |m| yarn.mscale(m));
            (mscale * mscale) as f32
        }
        _ => 1.0,
    }
}
