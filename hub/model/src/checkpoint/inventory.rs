//! Lists every tensor that the forward pass of a spec uses, by its shared name. The first expert of a layer stands for
//! all.

use crate::spec::{AttentionSpec, FfnSpec, Mixer, ModelSpec, NormPlaces, Projection, QkNorm, Scoring};

/// The names, layer by layer.
pub(crate) fn names(spec: &ModelSpec) -> Vec<String> {
    let mut names = vec!["model.embed_tokens.weight".to_owned()];
    for (index, layer) in spec.layers.iter().enumerate() {
        let mut add = |part: &str| names.push(format!("model.layers.{index}.{part}"));
        add("input_layernorm.weight");
        match &layer.mixer {
            Mixer::Attention(attention) => attention_names(attention, &mut add),
            Mixer::DeltaNet(_) => DELTA_NET.iter().for_each(|part| add(part)),
        }
        if layer.norms == NormPlaces::BeforeAndAfter {
            add("attention_output_layernorm.weight");
        }
        add("post_attention_layernorm.weight");
        match layer.ffn {
            FfnSpec::Dense { .. } => mlp("mlp", &mut add),
            FfnSpec::Sparse => expert_names(spec, &mut add),
        }
        if layer.norms == NormPlaces::BeforeAndAfter {
            add("feedforward_output_layernorm.weight");
        }
    }
    names.push("model.norm.weight".to_owned());
    if !spec.tied_head {
        names.push("lm_head.weight".to_owned());
    }
    names
}

const DELTA_NET: [&str; 7] = [
    "linear_attn.in_proj_qkvz.weight",
    "linear_attn.in_proj_ba.weight",
    "linear_attn.conv1d.weight",
    "linear_attn.A_log",
    "linear_attn.dt_bias",
    "linear_attn.norm.weight",
    "linear_attn.out_proj.weight",
];

fn attention_names(spec: &AttentionSpec, add: &mut impl FnMut(&str)) {
    let projections: &[&str] = match spec.projection {
        Projection::Separate => &["q_proj", "k_proj", "v_proj"],
        Projection::Latent { q_rank: None, .. } => &["q_proj", "kv_a_proj_with_mqa", "kv_b_proj"],
        Projection::Latent { q_rank: Some(_), .. } => {
            &["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"]
        }
    };
    for projection in projections {
        add(&format!("self_attn.{projection}.weight"));
        if spec.qkv_bias {
            add(&format!("self_attn.{projection}.bias"));
        }
    }
    if let Projection::Latent { q_rank, .. } = spec.projection {
        if q_rank.is_some() {
            add("self_attn.q_a_layernorm.weight");
        }
        add("self_attn.kv_a_layernorm.weight");
    }
    if spec.qk_norm != QkNorm::None {
        add("self_attn.q_norm.weight");
        add("self_attn.k_norm.weight");
    }
    if spec.has_sinks {
        add("self_attn.sinks");
    }
    add("self_attn.o_proj.weight");
    if spec.output_bias {
        add("self_attn.o_proj.bias");
    }
}

fn expert_names(spec: &ModelSpec, add: &mut impl FnMut(&str)) {
    let moe = &spec.moe;
    add("mlp.gate.weight");
    if moe.has_router_bias {
        add("mlp.gate.bias");
    }
    if moe.scoring != Scoring::Softmax {
        add("mlp.gate.e_score_correction_bias");
    }
    mlp("mlp.experts.0", add);
    if moe.kind.has_biases() {
        ["gate_proj", "up_proj", "down_proj"]
            .iter()
            .for_each(|part| add(&format!("mlp.experts.0.{part}.bias")));
    }
    if let Some(shared) = moe.shared {
        mlp("mlp.shared_expert", add);
        if shared.is_gated {
            add("mlp.shared_expert_gate.weight");
        }
    }
}

fn mlp(name: &str, add: &mut impl FnMut(&str)) {
    ["gate_proj", "up_proj", "down_proj"].iter().for_each(|part| add(&format!("{name}.{part}.weight")));
}
