//! Plans a complete Qwen3-MoE GGUF, its keys and tensors, from a spec. The inverse of opening one.

use crate::{
    checkpoint::names,
    families::QWEN3_MOE_GGUF,
    gguf::{Header, MetaValue},
    spec::{FfnSpec, ModelSpec},
};

/// A tensor of a GGUF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufTensor {
    /// llama.cpp's name.
    pub name: String,
    /// Rows before columns; for all experts together (E, rows, cols).
    pub shape: Vec<usize>,
    /// The tensors of a Hugging Face folder that it is made of, in order.
    pub parts: Vec<String>,
}

impl GgufTensor {
    /// The shape of each part.
    pub fn part_shape(&self) -> &[usize] {
        if self.shape.len() > 2 { &self.shape[1..] } else { &self.shape }
    }
}

/// Every tensor of a model with this config, in the order of llama.cpp's converter.
pub fn tensors(spec: &ModelSpec) -> Vec<GgufTensor> {
    let ModelSpec { hidden, vocab, .. } = *spec;
    let attention = spec.cached();
    let (head_width, q_width, kv_width) = (attention.head_width, attention.q_width(), attention.kv_width());
    let mut tensors = Vec::new();
    let mut add = |parts: Vec<String>, shape: &[usize]| {
        let (name, _) =
            names::of_gguf(&QWEN3_MOE_GGUF, &parts[0]).expect("a GGUF has every tensor of a model");
        tensors.push(GgufTensor { name, shape: shape.to_vec(), parts });
    };
    let one = |name: String| vec![name];
    add(one("model.embed_tokens.weight".to_owned()), &[vocab, hidden]);
    for (layer, of_layer) in spec.layers.iter().enumerate() {
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        add(one(name("input_layernorm")), &[hidden]);
        add(one(name("self_attn.q_proj")), &[q_width, hidden]);
        add(one(name("self_attn.k_proj")), &[kv_width, hidden]);
        add(one(name("self_attn.v_proj")), &[kv_width, hidden]);
        add(one(name("self_attn.o_proj")), &[hidden, q_width]);
        add(one(name("self_attn.q_norm")), &[head_width]);
        add(one(name("self_attn.k_norm")), &[head_width]);
        add(one(name("post_attention_layernorm")), &[hidden]);
        match of_layer.ffn {
            FfnSpec::Dense { inner, .. } => {
                add(one(name("mlp.gate_proj")), &[inner, hidden]);
                add(one(name("mlp.up_proj")), &[inner, hidden]);
                add(one(name("mlp.down_proj")), &[hidden, inner]);
            }
            FfnSpec::Sparse => {
                let (n, inner) = (spec.moe.n_experts, spec.moe.inner);
                let all =
                    |part: &str| (0..n).map(|expert| name(&format!("mlp.experts.{expert}.{part}"))).collect();
                add(one(name("mlp.gate")), &[n, hidden]);
                add(all("gate_proj"), &[n, inner, hidden]);
                add(all("up_proj"), &[n, inner, hidden]);
                add(all("down_proj"), &[n, hidden, inner]);
            }
        }
    }
    add(one("model.norm.weight".to_owned()), &[hidden]);
    if !spec.tied_head {
        add(one("lm_head.weight".to_owned()), &[vocab, hidden]);
    }
    tensors
}

/// Adds the keys of a model with this spec.
pub fn write_keys(spec: &ModelSpec, name: &str, header: &mut Header) {
    let attention = spec.cached();
    let number = |n: usize| MetaValue::U32(u32::try_from(n).unwrap_or(u32::MAX));
    header
        .key("general.architecture", MetaValue::Text("qwen3moe".to_owned()))
        .key("general.name", MetaValue::Text(name.to_owned()))
        .key("general.quantization_version", MetaValue::U32(2));
    for (key, value) in [
        ("block_count", number(spec.layers.len())),
        ("context_length", number(spec.max_positions)),
        ("embedding_length", number(spec.hidden)),
        ("feed_forward_length", number(spec.dense_inner)),
        ("attention.head_count", number(attention.n_heads)),
        ("attention.head_count_kv", number(attention.n_kv_heads)),
        ("attention.key_length", number(attention.head_width)),
        ("attention.value_length", number(attention.head_width)),
        ("attention.layer_norm_rms_epsilon", MetaValue::F32(spec.rms_eps)),
        ("rope.freq_base", MetaValue::F32(attention.rope.theta)),
        ("expert_count", number(spec.moe.n_experts)),
        ("expert_used_count", number(spec.moe.n_chosen)),
        ("expert_feed_forward_length", number(spec.moe.inner)),
    ] {
        header.key(format!("qwen3moe.{key}"), value);
    }
}
