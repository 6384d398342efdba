//! What llama.cpp calls the tensors of a GGUF.

pub(super) const TOKEN_EMBEDDING: &str = "token_embd.weight";
pub(super) const HEAD: &str = "output.weight";

/// The tensor's name in a GGUF, and the expert whose part of it is meant; none if a GGUF has no such tensor.
pub(super) fn of_gguf(name: &str) -> Option<(String, Option<usize>)> {
    let Some(rest) = name.strip_prefix("model.layers.") else {
        let name = match name {
            "model.embed_tokens.weight" => TOKEN_EMBEDDING,
            "model.norm.weight" => "output_norm.weight",
            "lm_head.weight" => HEAD,
            _ => return None,
        };
        return Some((name.to_owned(), None));
    };
    let (layer, part) = rest.split_once('.')?;
    let (part, suffix) = part.rsplit_once('.')?;
    let (part, expert) = match part.strip_prefix("mlp.experts.") {
        Some(rest) => {
            let (expert, part) = rest.split_once('.')?;
            (part, Some(expert.parse().ok()?))
        }
        None => (part, None),
    };
    let part = match (part, expert) {
        ("input_layernorm", None) => "attn_norm",
        ("self_attn.q_proj", None) => "attn_q",
        ("self_attn.k_proj", None) => "attn_k",
        ("self_attn.v_proj", None) => "attn_v",
        ("self_attn.o_proj", None) => "attn_output",
        ("self_attn.q_norm", None) => "attn_q_norm",
        ("self_attn.k_norm", None) => "attn_k_norm",
        ("post_attention_layernorm", None) => "ffn_norm",
        ("mlp.gate", None) => "ffn_gate_inp",
        ("mlp.gate_proj", None) => "ffn_gate",
        ("mlp.up_proj", None) => "ffn_up",
        ("mlp.down_proj", None) => "ffn_down",
        ("gate_proj", Some(_)) => "ffn_gate_exps",
        ("up_proj", Some(_)) => "ffn_up_exps",
        ("down_proj", Some(_)) => "ffn_down_exps",
        _ => return None,
    };
    Some((format!("blk.{layer}.{part}.{suffix}"), expert))
}
