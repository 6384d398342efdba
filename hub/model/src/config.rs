//! `config.json`, parsed into what the forward pass needs, as transformers 4 and 5 write it.
//!
//! A [`Config`] that exists can be run: fields agree with each other and every size is bounded. Tensors are checked
//! against it where they are read; the tokenizer's files are `text`'s. What a GGUF says of the same is `llama_cpp`'s.

mod llama_cpp;

use moex_kernels::cpu::{Renormalise, Yarn};
use serde::Deserialize;

use super::error::ConfigError;

/// The most layers a model may have.
pub const MAX_LAYERS: usize = 1024;
/// The most experts in a layer, and the most chosen of them.
pub const MAX_EXPERTS: usize = 4096;
/// The widest row; what the wire's header can say.
pub const MAX_WIDTH: usize = 65_535;
/// The most entries of a vocabulary.
pub const MAX_VOCAB: usize = 1 << 22;
/// The longest context.
pub const MAX_POSITIONS: usize = 1 << 24;

/// A Qwen3-MoE's shape. Letters are the legend of [`crate`].
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// D, `hidden_size`.
    pub hidden: usize,
    /// V, `vocab_size`.
    pub vocab: usize,
    /// H, `num_attention_heads`.
    pub n_heads: usize,
    /// G, `num_key_value_heads`; divides H.
    pub n_kv_heads: usize,
    /// C, `head_dim`, or D / H where that field is absent.
    pub head_width: usize,
    /// `attention_bias`: q, k, v and o have one.
    pub attention_bias: bool,
    /// `rms_norm_eps`.
    pub rms_eps: f32,
    /// `rope_theta`.
    pub rope_theta: f32,
    /// `rope_scaling` or `rope_parameters` of type "yarn".
    pub yarn: Option<Yarn>,
    /// Positions a sequence may have: `max_position_embeddings`, or what yarn stretches to if that is more.
    pub max_positions: usize,
    /// The MLP of each layer: `num_hidden_layers`, `mlp_only_layers`, `decoder_sparse_step`.
    pub layers: Vec<MlpKind>,
    /// Of the sparse layers.
    pub moe: MoeConfig,
    /// `intermediate_size`, of the dense layers.
    pub dense_inner: usize,
    /// `tie_word_embeddings`: the head is the embedding.
    pub tied_head: bool,
    /// `eos_token_id`, an int or a list; what `generation_config.json` says comes before it.
    pub eos: Vec<u32>,
}

/// The sparse layers' shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoeConfig {
    /// E, `num_experts` or `num_local_experts`.
    pub n_experts: usize,
    /// K, `num_experts_per_tok`.
    pub n_chosen: usize,
    /// F, `moe_intermediate_size`.
    pub inner: usize,
    /// `norm_topk_prob`.
    pub renormalise: Renormalise,
}

/// The second half of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlpKind {
    /// A router and experts.
    Sparse,
    /// One MLP for every row.
    Dense,
}

impl Config {
    /// Reads a `config.json`.
    ///
    /// # Errors
    /// The first thing that makes it no Qwen3-MoE, or one that cannot be run.
    pub fn from_json(json: &[u8]) -> Result<Self, ConfigError> {
        let raw: Raw = serde_json::from_slice(json)?;
        raw.check_kind()?;
        Self::from_raw(raw)
    }

    fn from_raw(raw: Raw) -> Result<Self, ConfigError> {
        let hidden = bounded("hidden_size", raw.hidden_size, MAX_WIDTH)?;
        let n_layers = bounded("num_hidden_layers", raw.num_hidden_layers, MAX_LAYERS)?;
        let n_heads = bounded("num_attention_heads", raw.num_attention_heads, MAX_WIDTH)?;
        let n_kv_heads = bounded("num_key_value_heads", raw.num_key_value_heads, MAX_WIDTH)?;
        if !n_heads.is_multiple_of(n_kv_heads) {
            let reason = format!("which does not divide the {n_heads} query heads");
            return Err(invalid("num_key_value_heads", n_kv_heads, reason));
        }
        let head_width = bounded("head_dim", raw.head_dim.or(Some(hidden / n_heads)), MAX_WIDTH)?;
        if !head_width.is_multiple_of(2) {
            return Err(invalid("head_dim", head_width, "and RoPE rotates pairs"));
        }
        let declared = bounded("max_position_embeddings", raw.max_position_embeddings, MAX_POSITIONS)?;
        let (rope_theta, yarn) = raw.rope(declared)?;
        let stretched = yarn.as_ref().map_or(0, |yarn| (yarn.factor * yarn.original_max_positions) as usize);

        let layers = raw.mlp_kinds(n_layers)?;
        let dense_inner = match raw.intermediate_size {
            None if !layers.contains(&MlpKind::Dense) => 0,
            size => bounded("intermediate_size", size, 1 << 20)?,
        };
        Ok(Self {
            hidden,
            vocab: bounded("vocab_size", raw.vocab_size, MAX_VOCAB)?,
            n_heads,
            n_kv_heads,
            head_width,
            attention_bias: raw.attention_bias.unwrap_or(false),
            rms_eps: raw.rms_norm_eps.unwrap_or(1e-6),
            rope_theta,
            yarn,
            max_positions: declared.max(stretched).min(MAX_POSITIONS),
            layers,
            moe: raw.moe()?,
            dense_inner,
            tied_head: raw.tie_word_embeddings.unwrap_or(false),
            eos: raw.eos_token_id.map(OneOrMany::into_vec).unwrap_or_default(),
        })
    }

    /// The indices of the layers that have experts.
    pub fn sparse_layers(&self) -> impl Iterator<Item = usize> + '_ {
        let sparse = |(index, kind): (usize, &MlpKind)| (*kind == MlpKind::Sparse).then_some(index);
        self.layers.iter().enumerate().filter_map(sparse)
    }

    /// G x C, the width of a key row and of a value row.
    pub fn kv_width(&self) -> usize {
        self.n_kv_heads * self.head_width
    }
}

/// One value or a list of them, as `eos_token_id` may be.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum OneOrMany {
    One(u32),
    Many(Vec<u32>),
}

impl OneOrMany {
    pub(crate) fn into_vec(self) -> Vec<u32> {
        match self {
            Self::One(id) => vec![id],
            Self::Many(ids) => ids,
        }
    }
}

/// The fields as they may stand there.
#[derive(Default, Deserialize)]
struct Raw {
    architectures: Option<Vec<String>>,
    model_type: Option<String>,
    hidden_act: Option<String>,
    hidden_size: Option<usize>,
    num_hidden_layers: Option<usize>,
    num_attention_heads: Option<usize>,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    vocab_size: Option<usize>,
    max_position_embeddings: Option<usize>,
    intermediate_size: Option<usize>,
    attention_bias: Option<bool>,
    rms_norm_eps: Option<f32>,
    tie_word_embeddings: Option<bool>,
    eos_token_id: Option<OneOrMany>,
    sliding_window: Option<usize>,
    use_sliding_window: Option<bool>,
    // The experts' count is `num_experts` to transformers 4 and `num_local_experts` to transformers 5.
    num_experts: Option<usize>,
    num_local_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
    moe_intermediate_size: Option<usize>,
    norm_topk_prob: Option<bool>,
    decoder_sparse_step: Option<usize>,
    mlp_only_layers: Option<Vec<usize>>,
    // RoPE is `rope_theta` and `rope_scaling` to transformers 4, `rope_parameters` with both inside to transformers 5.
    rope_theta: Option<f32>,
    rope_scaling: Option<RawRope>,
    rope_parameters: Option<RawRope>,
}

#[derive(Clone, Default, Deserialize)]
struct RawRope {
    rope_type: Option<String>,
    /// The name of `rope_type` in old configs.
    r#type: Option<String>,
    rope_theta: Option<f32>,
    factor: Option<f64>,
    attention_factor: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    original_max_position_embeddings: Option<usize>,
    truncate: Option<bool>,
    partial_rotary_factor: Option<f64>,
}

impl Raw {
    fn check_kind(&self) -> Result<(), ConfigError> {
        let of_architecture = |names: &Vec<String>| names.iter().any(|name| name == "Qwen3MoeForCausalLM");
        let kind = self.model_type.as_deref();
        if kind.is_some_and(|kind| kind != "qwen3_moe")
            || kind.is_none() && !self.architectures.as_ref().is_some_and(of_architecture)
        {
            return Err(ConfigError::NotQwen3Moe(
                kind.map_or_else(|| "absent".to_owned(), |kind| format!("{kind:?}")),
            ));
        }
        if let Some(act) = self.hidden_act.as_deref().filter(|act| *act != "silu") {
            return Err(invalid("hidden_act", format!("{act:?}"), "and a Qwen3-MoE has \"silu\""));
        }
        if let (Some(window), Some(true)) = (self.sliding_window, self.use_sliding_window) {
            return Err(invalid(
                "sliding_window",
                window,
                "and attention over all positions is what is supported",
            ));
        }
        Ok(())
    }

    fn moe(&self) -> Result<MoeConfig, ConfigError> {
        let n_experts = bounded("num_experts", self.num_experts.or(self.num_local_experts), MAX_EXPERTS)?;
        let n_chosen = bounded("num_experts_per_tok", self.num_experts_per_tok, MAX_EXPERTS)?;
        if n_chosen > n_experts {
            return Err(invalid(
                "num_experts_per_tok",
                n_chosen,
                format!("more than the {n_experts} experts"),
            ));
        }
        let inner = bounded("moe_intermediate_size", self.moe_intermediate_size, MAX_WIDTH)?;
        // `norm_topk_prob` is false where it is absent: transformers' default.
        let renormalise =
            if self.norm_topk_prob.unwrap_or(false) { Renormalise::Yes } else { Renormalise::No };
        Ok(MoeConfig { n_experts, n_chosen, inner, renormalise })
    }

    fn mlp_kinds(&self, n_layers: usize) -> Result<Vec<MlpKind>, ConfigError> {
        let step = bounded("decoder_sparse_step", Some(self.decoder_sparse_step.unwrap_or(1)), MAX_LAYERS)?;
        let dense_only = self.mlp_only_layers.as_deref().unwrap_or_default();
        if let Some(layer) = dense_only.iter().find(|layer| **layer >= n_layers) {
            return Err(invalid("mlp_only_layers", layer, format!("and there are {n_layers} layers")));
        }
        let kind = |layer: usize| match !dense_only.contains(&layer) && (layer + 1).is_multiple_of(step) {
            true => MlpKind::Sparse,
            false => MlpKind::Dense,
        };
        Ok((0..n_layers).map(kind).collect())
    }

    fn rope(&self, declared_positions: usize) -> Result<(f32, Option<Yarn>), ConfigError> {
        let scaling = self.rope_parameters.as_ref().or(self.rope_scaling.as_ref());
        // 10,000 is transformers' default where no theta is given.
        let theta = scaling.and_then(|rope| rope.rope_theta).or(self.rope_theta).unwrap_or(10_000.0);
        if !(theta.is_finite() && theta > 1.0) {
            return Err(invalid("rope_theta", theta, "and it must be more than 1"));
        }
        let Some(scaling) = scaling else { return Ok((theta, None)) };
        if scaling.partial_rotary_factor.is_some_and(|factor| factor != 1.0) {
            return Err(invalid("partial_rotary_factor", "not 1", "and a Qwen3-MoE rotates whole heads"));
        }
        match scaling.rope_type.as_deref().or(scaling.r#type.as_deref()).unwrap_or("default") {
            "default" => Ok((theta, None)),
            "yarn" => Ok((theta, Some(scaling.yarn(declared_positions)?))),
            other => {
                Err(invalid("rope_type", format!("{other:?}"), "and \"default\" and \"yarn\" are supported"))
            }
        }
    }
}

impl RawRope {
    fn yarn(&self, declared_positions: usize) -> Result<Yarn, ConfigError> {
        let original = self.original_max_position_embeddings.or(Some(declared_positions));
        let original = bounded("original_max_position_embeddings", original, MAX_POSITIONS)?;
        let factor = self.factor.unwrap_or(declared_positions as f64 / original as f64);
        if !(1.0..=1e6).contains(&factor) {
            return Err(invalid("factor", factor, "and yarn stretches by 1 or more"));
        }
        let defaults = Yarn::new(factor, original as f64);
        let positive = |value: Option<f64>, default: f64| value.filter(|v| *v > 0.0).unwrap_or(default);
        Ok(Yarn {
            attention_factor: self.attention_factor,
            beta_fast: positive(self.beta_fast, defaults.beta_fast),
            beta_slow: positive(self.beta_slow, defaults.beta_slow),
            mscale: self.mscale,
            mscale_all_dim: self.mscale_all_dim,
            truncate: self.truncate.unwrap_or(defaults.truncate),
            ..defaults
        })
    }
}

fn bounded(field: &'static str, value: Option<usize>, most: usize) -> Result<usize, ConfigError> {
    match value {
        None => Err(ConfigError::Missing(field)),
        Some(value) if value == 0 || value > most => {
            Err(invalid(field, value, format!("not between 1 and {most}")))
        }
        Some(value) => Ok(value),
    }
}

fn invalid(field: &'static str, value: impl ToString, reason: impl Into<String>) -> ConfigError {
    ConfigError::Invalid { field, value: value.to_string(), reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

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

    fn parse(config: &Value) -> Result<Config, ConfigError> {
        Config::from_json(config.to_string().as_bytes())
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
        assert_eq!((config.n_heads, config.n_kv_heads, config.head_width), (32, 4, 128));
        let moe = MoeConfig { n_experts: 128, n_chosen: 8, inner: 768, renormalise: Renormalise::Yes };
        assert_eq!(config.moe, moe);
        assert_eq!((config.rope_theta, config.yarn), (1e6, None));
        assert_eq!(config.max_positions, 40_960);
        assert_eq!(config.eos, [151_645]);
        assert!(config.layers.iter().all(|kind| *kind == MlpKind::Sparse));
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
        assert_eq!(four.yarn, Some(Yarn::new(4.0, 32_768.0)));
    }

    #[test]
    fn dense_layers_are_those_named_and_those_between_steps() {
        let kinds = |config: &Value| parse(config).unwrap().layers[..4].to_vec();
        let (dense, sparse) = (MlpKind::Dense, MlpKind::Sparse);
        assert_eq!(kinds(&with("mlp_only_layers", json!([0, 2]))), [dense, sparse, dense, sparse]);
        assert_eq!(kinds(&with("decoder_sparse_step", json!(2))), [dense, sparse, dense, sparse]);
        assert_eq!(kinds(&with("decoder_sparse_step", json!(3))), [dense, dense, sparse, dense]);
    }

    #[test]
    fn absent_fields_take_transformers_defaults() {
        assert_eq!(parse(&without("norm_topk_prob")).unwrap().moe.renormalise, Renormalise::No);
        assert_eq!(parse(&without("head_dim")).unwrap().head_width, 64);
        assert_eq!(parse(&without("rope_theta")).unwrap().rope_theta, 1e4);
        assert_eq!(parse(&with("eos_token_id", json!([3, 4]))).unwrap().eos, [3, 4]);
    }

    #[test]
    fn what_is_no_qwen3_moe_is_one_sentence() {
        let sentence = |config: &Value| parse(config).unwrap_err().to_string();
        assert_eq!(
            sentence(&with("model_type", json!("llama"))),
            "not a Qwen3-MoE: its model_type is \"llama\""
        );
        assert_eq!(sentence(&json!({"layers": 3})), "not a Qwen3-MoE: its model_type is absent");
        assert!(Config::from_json(b"[]").unwrap_err().to_string().starts_with("not a model config:"));
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
            (with("rope_scaling", json!({"rope_type": "llama3"})), "rope_type"),
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
}
