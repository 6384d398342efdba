//! What configs become, and what those say that cannot be run.

use serde_json::{Value, json};

use super::*;
use crate::spec::{FfnSpec, Scoring};
use moex_kernels::cpu::{Renormalise, RopeScaling, Yarn};

/// The published Qwen3-30B-A3B config, the fields that matter here.
fn qwen3_30b_a3b() -> Value {
    json!({
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_act": "silu",
        "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
        "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960, "intermediate_size": 6144,
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": true,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "rope_scaling": null, "sliding_window": null, "use_sliding_window": false, "attention_bias": false,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "eos_token_id": 151645
    })
}

fn parse(config: &Value) -> Result<ModelSpec, ConfigError> {
    ModelSpec::from_json(config.to_string().as_bytes())
}

fn with(field: &str, value: Value) -> Value {
    let mut config = qwen3_30b_a3b();
    config[field] = value;
    config
}

fn without(field: &str) -> Value {
    let mut config = qwen3_30b_a3b();
    config.as_object_mut().unwrap().remove(field);
    config
}

#[test]
fn the_published_form_is_read() {
    let config = parse(&qwen3_30b_a3b()).unwrap();
    assert_eq!((config.hidden, config.vocab, config.layers.len()), (2048, 151_936, 48));
    let attention = config.cached();
    assert_eq!((attention.n_heads, attention.n_kv_heads, attention.head_width), (32, 4, 128));
    let moe = config.moe;
    assert_eq!((moe.n_experts, moe.n_chosen, moe.inner), (128, 8, 768));
    assert_eq!((moe.scoring, moe.renormalise, moe.shared), (Scoring::Softmax, Renormalise::Yes, None));
    assert_eq!((attention.rope.theta, &attention.rope.scaling), (1e6, &None));
    assert_eq!(config.max_positions, 40_960);
    assert_eq!(config.eos, [151_645]);
    assert!(config.layers.iter().all(|layer| layer.ffn == FfnSpec::Sparse));
}

#[test]
fn transformers_5_says_the_same_in_other_fields() {
    let mut config = qwen3_30b_a3b();
    let fields = config.as_object_mut().unwrap();
    let experts = fields.remove("num_experts").unwrap();
    fields.insert("num_local_experts".to_owned(), experts);
    let theta = fields.remove("rope_theta").unwrap();
    fields.insert("rope_parameters".to_owned(), json!({"rope_type": "default", "rope_theta": theta}));
    let dtype = fields.remove("torch_dtype").unwrap();
    fields.insert("dtype".to_owned(), dtype);
    fields.insert("pad_token_id".to_owned(), Value::Null);
    assert_eq!(parse(&config).unwrap(), parse(&qwen3_30b_a3b()).unwrap());
}

#[test]
fn both_yarn_forms_are_one() {
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768});
    let old = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768});
    let four = parse(&with("rope_scaling", old)).unwrap();
    let mut five = without("rope_theta");
    five["rope_parameters"] = yarn;
    five["rope_parameters"]["rope_theta"] = json!(1e6);
    assert_eq!(parse(&five).unwrap(), four);
    assert_eq!(four.max_positions, 131_072);
    assert_eq!(four.cached().rope.scaling, Some(RopeScaling::Yarn(Yarn::new(4.0, 32_768.0))));
}

#[test]
fn dense_layers_are_those_named_and_those_between_steps() {
    let kinds = |config: &Value| -> Vec<bool> {
        parse(config).unwrap().layers[..4].iter().map(|layer| layer.ffn == FfnSpec::Sparse).collect()
    };
    let (dense, sparse) = (false, true);
    assert_eq!(kinds(&with("mlp_only_layers", json!([0, 2]))), [dense, sparse, dense, sparse]);
    assert_eq!(kinds(&with("decoder_sparse_step", json!(2))), [dense, sparse, dense, sparse]);
    assert_eq!(kinds(&with("decoder_sparse_step", json!(3))), [dense, dense, sparse, dense]);
}

#[test]
fn absent_fields_take_transformers_defaults() {
    assert_eq!(parse(&without("norm_topk_prob")).unwrap().moe.renormalise, Renormalise::No);
    assert_eq!(parse(&without("head_dim")).unwrap().cached().head_width, 64);
    assert_eq!(parse(&without("rope_theta")).unwrap().cached().rope.theta, 1e4);
    assert_eq!(parse(&with("eos_token_id", json!([3, 4]))).unwrap().eos, [3, 4]);
}

#[test]
fn a_family_that_is_not_known_is_named_beside_those_that_are() {
    let sentence = |config: &Value| parse(config).unwrap_err().to_string();
    let unknown = sentence(&with("model_type", json!("mamba")));
    assert!(
        unknown.starts_with("its model_type is \"mamba\", but moex supports only qwen3_moe, qwen3, "),
        "{unknown}"
    );
    assert!(sentence(&json!({"layers": 3})).starts_with("its model_type is absent"));
    assert!(
        ModelSpec::from_json(b"[]").is_err_and(|error| error.to_string().starts_with("not a model config:"))
    );
}

#[test]
fn what_cannot_be_run_names_its_field() {
    for (config, field) in [
        (without("hidden_size"), "hidden_size"),
        (without("num_experts"), "num_experts"),
        (with("num_experts_per_tok", json!(129)), "num_experts_per_tok"),
        (with("num_key_value_heads", json!(5)), "num_key_value_heads"),
        (with("num_hidden_layers", json!(1_000_000_000)), "num_hidden_layers"),
        (with("vocab_size", json!(0)), "vocab_size"),
        (with("head_dim", json!(7)), "head_dim"),
        (with("mlp_only_layers", json!([48])), "mlp_only_layers"),
        (with("rope_theta", json!(-1.0)), "rope_theta"),
        (with("rope_scaling", json!({"rope_type": "longrope"})), "rope_type"),
        (with("rope_scaling", json!({"rope_type": "llama3", "factor": 8.0})), "low_freq_factor"),
        (with("rope_scaling", json!({"rope_type": "yarn", "factor": 0.0})), "factor"),
        (with("hidden_act", json!("gelu")), "hidden_act"),
    ] {
        let sentence = parse(&config).unwrap_err().to_string();
        assert!(sentence.contains(field), "{sentence}");
    }
    let mut windowed = with("sliding_window", json!(4096));
    windowed["use_sliding_window"] = json!(true);
    assert!(parse(&windowed).unwrap_err().to_string().contains("sliding_window"));
}
