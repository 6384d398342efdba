//! DeepSeek-V3 and R1: latent attention, experts chosen by sigmoid within groups, shared experts on the hub
//! (<https://arxiv.org/abs/2412.19437>, section 2.1).

use moex_kernels::cpu::RopeScaling;

use super::{
    Family, Raw,
    raw::{FULL, bounded, invalid},
};
use crate::{
    error::ConfigError,
    spec::{
        Activation, FfnSpec, MAX_INNER, MAX_LAYERS, MAX_WIDTH, ModelSpec, Projection, RopePairs, RopePlace,
        Scoring, SharedExpertSpec, default_scale,
    },
};

/// The family.
pub(super) const DEEPSEEK_V3: Family = Family {
    model_types: &["deepseek_v3"],
    architecture: "DeepseekV3ForCausalLM",
    spec,
    names: &[(".mlp.shared_expert.", ".mlp.shared_experts.")],
};

fn spec(raw: &Raw) -> Result<ModelSpec, ConfigError> {
    raw.only_silu()?;
    for (field, value, only) in
        [("scoring_func", &raw.scoring_func, "sigmoid"), ("topk_method", &raw.topk_method, "noaux_tc")]
    {
        if let Some(value) = value.as_deref().filter(|value| *value != only) {
            return Err(invalid(field, format!("{value:?}"), format!("and {only:?} is supported")));
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
    // Transformers 5 says the rotated columns' count where others say a head's.
    let heads = raw.num_attention_heads;
    let own = bounded("qk_nope_head_dim", raw.qk_nope_head_dim, MAX_WIDTH)?;
    let rotated = bounded("qk_rope_head_dim", raw.qk_rope_head_dim, MAX_WIDTH)?;
    let head_width = bounded("qk_nope_head_dim", Some(own + rotated), MAX_WIDTH)?;
    let value_width = bounded("v_head_dim", raw.v_head_dim, head_width)?;
    if !rotated.is_multiple_of(2) {
        return Err(invalid("qk_rope_head_dim", rotated, "and RoPE rotates pairs"));
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

/// What YaRN's `mscale_all_dim` makes of the scores' scale.
fn score_factor(scaling: Option<&RopeScaling>) -> f32 {
    match scaling {
        Some(RopeScaling::Yarn(yarn)) => {
            let mscale = yarn.mscale_all_dim.filter(|m| *m != 0.0).map_or(1.0, |m| yarn.mscale(m));
            (mscale * mscale) as f32
        }
        _ => 1.0,
    }
}
