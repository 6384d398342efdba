//! Shapes of published models, and of one small enough for tests.

use safetensors::Dtype;
use serde_json::{Value, json};

use crate::commands::safetensors_file::Planned;

/// Models with a known shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Like {
    /// 48 layers of 128 experts, hidden 2048: 61 GB.
    #[value(name = "qwen3-30b-a3b")]
    Qwen330bA3b,
    /// 94 layers of 128 experts, hidden 4096: 470 GB.
    #[value(name = "qwen3-235b-a22b")]
    Qwen3235bA22b,
    /// 2 layers of 8 experts, hidden 128: 2 MB.
    #[value(name = "tiny")]
    Tiny,
    /// 4 layers, 8 of 16 experts per row, hidden 2048, all else small, to time dispatch to workers: 60 MB.
    #[value(name = "dispatch")]
    Dispatch,
    /// 48 layers with Qwen3-30B-A3B's keys and values, all else small, to try long contexts: 30 MB.
    #[value(name = "context")]
    Context,
}

/// Sizes in which models of the family differ.
pub(super) struct Geometry {
    pub(super) layers: usize,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_width: usize,
    experts: usize,
    chosen: usize,
    inner: usize,
    dense_inner: usize,
    vocab: usize,
    positions: usize,
}

impl Like {
    /// Sizes of the model, with `layers` in place of its own number if given.
    pub(super) fn geometry(self, layers: Option<usize>) -> Geometry {
        let qwen3 = Geometry {
            layers: 48,
            hidden: 2048,
            heads: 32,
            kv_heads: 4,
            head_width: 128,
            experts: 128,
            chosen: 8,
            inner: 768,
            dense_inner: 6144,
            vocab: 151_936,
            positions: 40_960,
        };
        let geometry = match self {
            Self::Qwen330bA3b => qwen3,
            Self::Qwen3235bA22b => {
                Geometry { layers: 94, hidden: 4096, heads: 64, inner: 1536, dense_inner: 12_288, ..qwen3 }
            }
            Self::Tiny => Geometry {
                layers: 2,
                hidden: 128,
                heads: 4,
                kv_heads: 2,
                head_width: 32,
                experts: 8,
                chosen: 2,
                inner: 64,
                dense_inner: 256,
                vocab: 1024,
                positions: 1024,
            },
            Self::Context => Geometry {
                hidden: 128,
                heads: 4,
                experts: 4,
                chosen: 2,
                inner: 32,
                dense_inner: 32,
                vocab: 1024,
                ..qwen3
            },
            Self::Dispatch => Geometry {
                layers: 4,
                heads: 1,
                kv_heads: 1,
                head_width: 64,
                experts: 16,
                inner: 128,
                dense_inner: 128,
                vocab: 1024,
                ..qwen3
            },
        };
        Geometry { layers: layers.unwrap_or(geometry.layers), ..geometry }
    }
}

impl Geometry {
    /// Its `config.json`, as published.
    pub(super) fn config(&self) -> Value {
        json!({
            "architectures": ["Qwen3MoeForCausalLM"],
            "attention_bias": false,
            "bos_token_id": 1015,
            "decoder_sparse_step": 1,
            "eos_token_id": 1017,
            "head_dim": self.head_width,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "intermediate_size": self.dense_inner,
            "max_position_embeddings": self.positions,
            "mlp_only_layers": [],
            "model_type": "qwen3_moe",
            "moe_intermediate_size": self.inner,
            "norm_topk_prob": true,
            "num_attention_heads": self.heads,
            "num_experts": self.experts,
            "num_experts_per_tok": self.chosen,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "rms_norm_eps": 1e-6,
            "rope_scaling": null,
            "rope_theta": 1_000_000.0,
            "tie_word_embeddings": false,
            "torch_dtype": "bfloat16",
            "vocab_size": self.vocab
        })
    }

    /// Every tensor, in the order of published shards.
    pub(super) fn tensors(&self) -> Vec<Planned> {
        let (q_width, kv_width) = (self.heads * self.head_width, self.kv_heads * self.head_width);
        let mut tensors = Vec::new();
        let mut add = |name: String, shape: &[usize]| {
            tensors.push(Planned {
                name: format!("{name}.weight"),
                dtype: Dtype::BF16,
                shape: shape.to_vec(),
            });
        };
        add("model.embed_tokens".to_owned(), &[self.vocab, self.hidden]);
        for layer in 0..self.layers {
            let name = |part: &str| format!("model.layers.{layer}.{part}");
            add(name("self_attn.q_proj"), &[q_width, self.hidden]);
            add(name("self_attn.k_proj"), &[kv_width, self.hidden]);
            add(name("self_attn.v_proj"), &[kv_width, self.hidden]);
            add(name("self_attn.o_proj"), &[self.hidden, q_width]);
            add(name("self_attn.q_norm"), &[self.head_width]);
            add(name("self_attn.k_norm"), &[self.head_width]);
            add(name("mlp.gate"), &[self.experts, self.hidden]);
            for expert in 0..self.experts {
                add(name(&format!("mlp.experts.{expert}.gate_proj")), &[self.inner, self.hidden]);
                add(name(&format!("mlp.experts.{expert}.up_proj")), &[self.inner, self.hidden]);
                add(name(&format!("mlp.experts.{expert}.down_proj")), &[self.hidden, self.inner]);
            }
            add(name("input_layernorm"), &[self.hidden]);
            add(name("post_attention_layernorm"), &[self.hidden]);
        }
        add("model.norm".to_owned(), &[self.hidden]);
        add("lm_head".to_owned(), &[self.vocab, self.hidden]);
        tensors
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use moex_model::ModelSpec;

    #[test]
    fn every_geometry_is_a_model() {
        for (like, layers) in
            [(Like::Qwen330bA3b, 48), (Like::Qwen3235bA22b, 94), (Like::Tiny, 2), (Like::Dispatch, 4)]
        {
            let config = like.geometry(None).config().to_string();
            assert_eq!(ModelSpec::from_json(config.as_bytes()).unwrap().layers.len(), layers);
        }
        let params = |like: Like| like.geometry(None).tensors().iter().map(Planned::n_values).sum::<usize>();
        assert_eq!(params(Like::Qwen330bA3b), 30_532_122_624, "as published");
        assert_eq!(params(Like::Qwen3235bA22b), 235_093_634_560, "as published");
    }
}
