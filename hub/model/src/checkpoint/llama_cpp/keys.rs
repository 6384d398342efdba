//! The keys `qwen3moe.*` of a GGUF, which say what a `config.json` says.

use crate::gguf::{Gguf, GgufError, Value};

use crate::{
    error::ConfigError,
    families::{Family, OneOrMany, Raw, RawRope},
    spec::ModelSpec,
};

/// What llama.cpp calls this model.
const ARCHITECTURE: &str = "qwen3moe";

/// A field of `config.json`, and the key that stands for it.
const KEYS: [(&str, &str); 14] = [
    ("hidden_size", "qwen3moe.embedding_length"),
    ("num_hidden_layers", "qwen3moe.block_count"),
    ("num_attention_heads", "qwen3moe.attention.head_count"),
    ("num_key_value_heads", "qwen3moe.attention.head_count_kv"),
    ("head_dim", "qwen3moe.attention.key_length"),
    ("max_position_embeddings", "qwen3moe.context_length"),
    ("intermediate_size", "qwen3moe.feed_forward_length"),
    ("num_experts", "qwen3moe.expert_count"),
    ("num_experts_per_tok", "qwen3moe.expert_used_count"),
    ("moe_intermediate_size", "qwen3moe.expert_feed_forward_length"),
    ("rope_theta", "qwen3moe.rope.freq_base"),
    ("rope_type", "qwen3moe.rope.scaling.type"),
    ("factor", "qwen3moe.rope.scaling.factor"),
    ("original_max_position_embeddings", "qwen3moe.rope.scaling.original_context_length"),
];

/// Reads the metadata of a GGUF's first file. What is no key there comes from its tensors: V, `vocab`, and whether
/// the head is the embedding.
///
/// # Errors
/// The first thing that makes it a model that cannot be run.
pub(crate) fn spec(gguf: &Gguf<'_>, vocab: usize, tied_head: bool) -> Result<ModelSpec, ConfigError> {
    let architecture = gguf.text("general.architecture")?.unwrap_or("absent");
    if architecture != ARCHITECTURE {
        return Err(ConfigError::Architecture(architecture.chars().take(64).collect()));
    }
    let integer = |field: &'static str| -> Result<Option<usize>, GgufError> {
        Ok(gguf.integer(key_of(field))?.map(|value| value as usize))
    };
    let number = |key: &str| gguf.number(key);
    let single = |key: &str| -> Result<Option<f32>, GgufError> { Ok(number(key)?.map(|value| value as f32)) };
    let scaling = gguf.text(key_of("rope_type"))?.filter(|kind| *kind != "none");
    let rope_scaling = match scaling {
        None => None,
        Some(kind) => Some(RawRope {
            rope_type: Some(kind.to_owned()),
            factor: number(key_of("factor"))?,
            attention_factor: number("qwen3moe.rope.scaling.attn_factor")?,
            beta_fast: number("qwen3moe.rope.scaling.yarn_beta_fast")?,
            beta_slow: number("qwen3moe.rope.scaling.yarn_beta_slow")?,
            original_max_position_embeddings: integer("original_max_position_embeddings")?,
            ..RawRope::default()
        }),
    };
    let raw = Raw {
        model_type: Some("qwen3_moe".to_owned()),
        hidden_size: integer("hidden_size")?,
        num_hidden_layers: integer("num_hidden_layers")?,
        num_attention_heads: integer("num_attention_heads")?,
        num_key_value_heads: integer("num_key_value_heads")?,
        head_dim: integer("head_dim")?,
        vocab_size: Some(vocab),
        max_position_embeddings: integer("max_position_embeddings")?,
        intermediate_size: integer("intermediate_size")?,
        rms_norm_eps: single("qwen3moe.attention.layer_norm_rms_epsilon")?,
        tie_word_embeddings: Some(tied_head),
        eos_token_id: ends_of_text(gguf)?,
        num_experts: integer("num_experts")?,
        num_experts_per_tok: integer("num_experts_per_tok")?,
        moe_intermediate_size: integer("moe_intermediate_size")?,
        // No key says so: llama.cpp always renormalises this architecture's gates.
        norm_topk_prob: Some(true),
        rope_theta: single(key_of("rope_theta"))?,
        rope_scaling,
        ..Raw::default()
    };
    Family::of(&raw).and_then(|family| (family.spec)(&raw)).map_err(|error| match error {
        ConfigError::Missing(field) => ConfigError::Missing(key_of(field)),
        ConfigError::Invalid { field, value, reason } => {
            ConfigError::Invalid { field: key_of(field), value, reason }
        }
        other => other,
    })
}

/// The key of a field, or the field itself where nothing in a GGUF stands for it.
fn key_of(field: &'static str) -> &'static str {
    KEYS.iter().find(|(known, _)| *known == field).map_or(field, |(_, key)| key)
}

/// The tokens that end an answer: those that the file names, and those of Qwen's that end one whatever it names.
fn ends_of_text(gguf: &Gguf<'_>) -> Result<Option<OneOrMany>, GgufError> {
    let mut ends = Vec::new();
    for key in ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"] {
        ends.extend(gguf.integer(key)?);
    }
    let tokens = gguf.get("tokenizer.ggml.tokens").and_then(Value::as_array);
    let known = tokens.into_iter().flat_map(|tokens| tokens.iter().zip(0_u32..));
    ends.extend(
        known
            .filter(|(token, _)| matches!(token.as_str(), Some("<|im_end|>" | "<|endoftext|>")))
            .map(|(_, id)| id),
    );
    let mut distinct = Vec::new();
    for end in ends {
        if !distinct.contains(&end) {
            distinct.push(end);
        }
    }
    Ok(Some(OneOrMany::Many(distinct)))
}
