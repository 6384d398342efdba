//! The fields of a `config.json` as transformers 4 and 5 write them, and the parts of a spec that families share. Every
//! size is bounded.

use std::collections::BTreeMap;

use moex_kernels::{
    ExpertKind,
    cpu::{Llama3, Renormalise, RopeScaling, Yarn},
};
use serde::Deserialize;

use crate::{
    error::ConfigError,
    one_or_many::OneOrMany,
    spec::{
        Activation, AttentionSpec, FfnSpec, LayerSpec, MAX_EXPERTS, MAX_INNER, MAX_LAYERS, MAX_POSITIONS,
        MAX_VOCAB, MAX_WIDTH, Mixer, ModelSpec, MoeSpec, NormPlaces, NormWeights, Projection, QkNorm,
        RopePairs, RopePlace, RopeSpec, Scoring, default_scale,
    },
};

/// The fields.
#[derive(Default, Deserialize)]
pub(crate) struct Raw {
    pub(crate) architectures: Option<Vec<String>>,
    pub(crate) model_type: Option<String>,
    pub(crate) hidden_act: Option<String>,
    pub(crate) hidden_activation: Option<String>,
    pub(crate) hidden_size: Option<usize>,
    pub(crate) num_hidden_layers: Option<usize>,
    pub(crate) num_attention_heads: Option<usize>,
    pub(crate) num_key_value_heads: Option<usize>,
    pub(crate) head_dim: Option<usize>,
    pub(crate) vocab_size: Option<usize>,
    pub(crate) max_position_embeddings: Option<usize>,
    pub(crate) intermediate_size: Option<usize>,
    pub(crate) attention_bias: Option<bool>,
    pub(crate) qkv_bias: Option<bool>,
    pub(crate) mlp_bias: Option<bool>,
    pub(crate) rms_norm_eps: Option<f32>,
    pub(crate) tie_word_embeddings: Option<bool>,
    pub(crate) eos_token_id: Option<OneOrMany>,
    pub(crate) clip_qkv: Option<f32>,
    // Windows: transformers 5 lists every layer's in `layer_types`; earlier configs have a pattern or a switch.
    pub(crate) sliding_window: Option<usize>,
    pub(crate) use_sliding_window: Option<bool>,
    pub(crate) sliding_window_pattern: Option<usize>,
    pub(crate) layer_types: Option<Vec<String>>,
    // Gemma.
    pub(crate) query_pre_attn_scalar: Option<f64>,
    pub(crate) attn_logit_softcapping: Option<f32>,
    pub(crate) final_logit_softcapping: Option<f32>,
    pub(crate) rope_local_base_freq: Option<f32>,
    // The number of experts is `num_experts` in transformers 4 and `num_local_experts` in transformers 5 and Mixtral.
    #[serde(alias = "n_routed_experts")]
    pub(crate) num_experts: Option<usize>,
    pub(crate) num_local_experts: Option<usize>,
    pub(crate) num_experts_per_tok: Option<usize>,
    pub(crate) moe_intermediate_size: Option<usize>,
    pub(crate) shared_expert_intermediate_size: Option<usize>,
    pub(crate) norm_topk_prob: Option<bool>,
    pub(crate) decoder_sparse_step: Option<usize>,
    pub(crate) mlp_only_layers: Option<Vec<usize>>,
    // GPT-OSS.
    pub(crate) swiglu_limit: Option<f32>,
    pub(crate) swiglu_alpha: Option<f32>,
    // Qwen3-Next.
    pub(crate) partial_rotary_factor: Option<f64>,
    pub(crate) full_attention_interval: Option<usize>,
    pub(crate) linear_conv_kernel_dim: Option<usize>,
    pub(crate) linear_key_head_dim: Option<usize>,
    pub(crate) linear_num_key_heads: Option<usize>,
    pub(crate) linear_num_value_heads: Option<usize>,
    pub(crate) linear_value_head_dim: Option<usize>,
    // DeepSeek.
    pub(crate) first_k_dense_replace: Option<usize>,
    pub(crate) moe_layer_freq: Option<usize>,
    pub(crate) n_shared_experts: Option<usize>,
    pub(crate) n_group: Option<usize>,
    pub(crate) topk_group: Option<usize>,
    pub(crate) routed_scaling_factor: Option<f32>,
    pub(crate) scoring_func: Option<String>,
    pub(crate) topk_method: Option<String>,
    pub(crate) q_lora_rank: Option<usize>,
    pub(crate) kv_lora_rank: Option<usize>,
    pub(crate) qk_nope_head_dim: Option<usize>,
    pub(crate) qk_rope_head_dim: Option<usize>,
    pub(crate) v_head_dim: Option<usize>,
    pub(crate) rope_interleave: Option<bool>,
    // RoPE is `rope_theta` and `rope_scaling` in transformers 4, and `rope_parameters` with both in transformers 5.
    pub(crate) rope_theta: Option<f32>,
    pub(crate) rope_scaling: Option<RawRope>,
    pub(crate) rope_parameters: Option<RopeParameters>,
    /// Divisors of RoPE's frequencies: a GGUF has these instead of Llama 3's scaling.
    #[serde(skip)]
    pub(crate) rope_factors: Option<Vec<f32>>,
}

/// One set for all layers, or one per kind of layer.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum RopeParameters {
    ByKind(BTreeMap<String, RawRope>),
    One(RawRope),
}

#[derive(Clone, Default, Deserialize)]
pub(crate) struct RawRope {
    pub(crate) rope_type: Option<String>,
    /// The name of `rope_type` in old configs.
    pub(crate) r#type: Option<String>,
    pub(crate) rope_theta: Option<f32>,
    pub(crate) factor: Option<f64>,
    pub(crate) attention_factor: Option<f64>,
    pub(crate) beta_fast: Option<f64>,
    pub(crate) beta_slow: Option<f64>,
    pub(crate) mscale: Option<f64>,
    pub(crate) mscale_all_dim: Option<f64>,
    pub(crate) original_max_position_embeddings: Option<usize>,
    pub(crate) truncate: Option<bool>,
    pub(crate) partial_rotary_factor: Option<f64>,
    pub(crate) low_freq_factor: Option<f64>,
    pub(crate) high_freq_factor: Option<f64>,
}

/// Names of layer kinds in `layer_types`.
pub(crate) const FULL: &str = "full_attention";
/// See [`FULL`].
pub(crate) const SLIDING: &str = "sliding_attention";
/// See [`FULL`].
pub(crate) const LINEAR: &str = "linear_attention";

impl Raw {
    /// A spec whose layers are all alike: separate projections, full rotation, full attention, then `ffn(layer)`.
    pub(crate) fn spec(
        &self,
        family: &'static str,
        ffn: impl Fn(usize) -> FfnSpec,
        moe: MoeSpec,
    ) -> Result<ModelSpec, ConfigError> {
        let hidden = bounded("hidden_size", self.hidden_size, MAX_WIDTH)?;
        let n_layers = self.n_layers()?;
        let attention = self.attention(hidden)?;
        let declared = self.declared_positions()?;
        let stretched = match &attention.rope.scaling {
            Some(RopeScaling::Yarn(yarn)) => (yarn.factor * yarn.original_max_positions) as usize,
            _ => 0,
        };
        let layer = |index| LayerSpec {
            mixer: Mixer::Attention(attention.clone()),
            ffn: ffn(index),
            norms: NormPlaces::Before,
        };
        Ok(ModelSpec {
            family,
            hidden,
            vocab: bounded("vocab_size", self.vocab_size, MAX_VOCAB)?,
            rms_eps: self.rms_norm_eps.unwrap_or(1e-6),
            norm_weights: NormWeights::Plain,
            embedding_scale: 1.0,
            logit_softcap: None,
            tied_head: self.tie_word_embeddings.unwrap_or(false),
            max_positions: declared.max(stretched).min(MAX_POSITIONS),
            dense_inner: self.intermediate_size.unwrap_or(0),
            layers: (0..n_layers).map(layer).collect(),
            moe,
            eos: self.eos_token_id.clone().map(OneOrMany::into_vec).unwrap_or_default(),
        })
    }

    /// The second half of a dense layer.
    pub(crate) fn dense(&self, activation: Activation) -> Result<FfnSpec, ConfigError> {
        let inner = bounded("intermediate_size", self.intermediate_size, MAX_INNER)?;
        Ok(FfnSpec::Dense { inner, activation })
    }

    /// The layers with experts, by `decoder_sparse_step` and `mlp_only_layers`.
    pub(crate) fn sparse_or_dense(&self) -> Result<Vec<FfnSpec>, ConfigError> {
        let n_layers = self.n_layers()?;
        let step = bounded("decoder_sparse_step", Some(self.decoder_sparse_step.unwrap_or(1)), MAX_LAYERS)?;
        let dense_only = self.mlp_only_layers.as_deref().unwrap_or_default();
        if let Some(layer) = dense_only.iter().find(|layer| **layer >= n_layers) {
            return Err(invalid("mlp_only_layers", layer, format!("but there are {n_layers} layers")));
        }
        let of = |layer: usize| match !dense_only.contains(&layer) && (layer + 1).is_multiple_of(step) {
            true => Ok(FfnSpec::Sparse),
            false => self.dense(Activation::Silu),
        };
        (0..n_layers).map(of).collect()
    }

    /// Experts chosen by softmax; `renormalise` is the default of `norm_topk_prob`.
    pub(crate) fn moe(&self, renormalise: bool, inner: Option<usize>) -> Result<MoeSpec, ConfigError> {
        let n_experts = bounded("num_experts", self.num_experts.or(self.num_local_experts), MAX_EXPERTS)?;
        let n_chosen = bounded("num_experts_per_tok", self.num_experts_per_tok, MAX_EXPERTS)?;
        if n_chosen > n_experts {
            let reason = format!("more than the {n_experts} experts");
            return Err(invalid("num_experts_per_tok", n_chosen, reason));
        }
        let field = if self.moe_intermediate_size.is_some() || inner.is_none() {
            "moe_intermediate_size"
        } else {
            "intermediate_size"
        };
        let inner = bounded(field, self.moe_intermediate_size.or(inner), MAX_WIDTH)?;
        let renormalise =
            if self.norm_topk_prob.unwrap_or(renormalise) { Renormalise::Yes } else { Renormalise::No };
        Ok(MoeSpec {
            n_experts,
            n_chosen,
            inner,
            kind: ExpertKind::Silu,
            has_router_bias: false,
            scoring: Scoring::Softmax,
            renormalise,
            gate_scale: 1.0,
            shared: None,
        })
    }

    /// Requires SiLU.
    pub(crate) fn only_silu(&self) -> Result<(), ConfigError> {
        match self.hidden_act.as_deref().filter(|act| *act != "silu") {
            None => Ok(()),
            Some(act) => {
                Err(invalid("hidden_act", format!("{act:?}"), "but this family supports only \"silu\""))
            }
        }
    }

    /// Requires that no layer has a window.
    pub(crate) fn no_window(&self) -> Result<(), ConfigError> {
        let slides = self.layer_types.as_ref().is_some_and(|types| types.iter().any(|kind| kind == SLIDING));
        match (self.sliding_window.filter(|window| *window > 0), self.use_sliding_window) {
            (Some(window), Some(true)) => {
                Err(invalid("sliding_window", window, "but this family supports only full attention"))
            }
            _ if slides => {
                Err(invalid("layer_types", SLIDING, "but this family supports only full attention"))
            }
            _ => Ok(()),
        }
    }

    /// Each layer's kind by `layer_types`, or `otherwise` if it is absent.
    pub(crate) fn layer_kinds(
        &self,
        otherwise: impl Fn(usize) -> &'static str,
    ) -> Result<Vec<String>, ConfigError> {
        let n_layers = self.n_layers()?;
        match &self.layer_types {
            None => Ok((0..n_layers).map(|layer| otherwise(layer).to_owned()).collect()),
            Some(types) if types.len() == n_layers => Ok(types.clone()),
            Some(types) => Err(invalid("layer_types", types.len(), format!("entries for {n_layers} layers"))),
        }
    }

    pub(crate) fn n_layers(&self) -> Result<usize, ConfigError> {
        bounded("num_hidden_layers", self.num_hidden_layers, MAX_LAYERS)
    }

    pub(crate) fn declared_positions(&self) -> Result<usize, ConfigError> {
        bounded("max_position_embeddings", self.max_position_embeddings, MAX_POSITIONS)
    }

    fn attention(&self, hidden: usize) -> Result<AttentionSpec, ConfigError> {
        let n_heads = bounded("num_attention_heads", self.num_attention_heads, MAX_WIDTH)?;
        let n_kv_heads =
            bounded("num_key_value_heads", self.num_key_value_heads.or(Some(n_heads)), MAX_WIDTH)?;
        if !n_heads.is_multiple_of(n_kv_heads) {
            let reason = format!("which does not divide the {n_heads} query heads");
            return Err(invalid("num_key_value_heads", n_kv_heads, reason));
        }
        let head_width = bounded("head_dim", self.head_dim.or(Some(hidden / n_heads)), MAX_WIDTH)?;
        if !head_width.is_multiple_of(2) {
            return Err(invalid("head_dim", head_width, "but RoPE needs an even number"));
        }
        if n_heads * head_width > MAX_INNER {
            return Err(invalid("num_attention_heads", n_heads, format!("too many of {head_width} columns")));
        }
        Ok(AttentionSpec {
            n_heads,
            n_kv_heads,
            head_width,
            value_width: head_width,
            projection: Projection::Separate,
            qkv_bias: self.attention_bias.unwrap_or(false),
            output_bias: self.attention_bias.unwrap_or(false),
            qk_norm: QkNorm::None,
            clip: None,
            rope: self.rope(FULL, head_width)?,
            window: None,
            scale: default_scale(head_width),
            score_softcap: None,
            has_sinks: false,
            has_output_gate: false,
        })
    }

    /// RoPE of one kind of layer, for heads of `width` columns.
    pub(crate) fn rope(&self, kind: &str, width: usize) -> Result<RopeSpec, ConfigError> {
        let of_kind = match &self.rope_parameters {
            Some(RopeParameters::One(rope)) => Some(rope),
            Some(RopeParameters::ByKind(kinds)) => kinds.get(kind),
            None => None,
        };
        let scaling = of_kind.or(self.rope_scaling.as_ref());
        // 10,000 is transformers' default theta.
        let theta = scaling.and_then(|rope| rope.rope_theta).or(self.rope_theta).unwrap_or(10_000.0);
        if !(theta.is_finite() && theta > 1.0) {
            return Err(invalid("rope_theta", theta, "but must be more than 1"));
        }
        let factor = scaling.and_then(|rope| rope.partial_rotary_factor).or(self.partial_rotary_factor);
        let width = match factor {
            None => width,
            Some(factor) if factor > 0.0 && factor <= 1.0 => (width as f64 * factor) as usize,
            Some(factor) => {
                return Err(invalid("partial_rotary_factor", factor, "but must be above 0 and at most 1"));
            }
        };
        if width == 0 || !width.is_multiple_of(2) {
            return Err(invalid(
                "partial_rotary_factor",
                factor.unwrap_or(1.0),
                "but RoPE needs an even number",
            ));
        }
        let scaling = match scaling {
            None => self.rope_factors.as_deref().map(|factors| rope_factors(factors, width)).transpose()?,
            Some(_) if self.rope_factors.is_some() => {
                return Err(invalid(
                    "rope_type",
                    "not alone",
                    "but there are factors for each frequency too",
                ));
            }
            Some(rope) => rope.scaling(self.declared_positions()?)?,
        };
        Ok(RopeSpec { theta, scaling, width, pairs: RopePairs::Halves, place: RopePlace::First })
    }
}

/// A factor per pair of `width` rotated columns.
fn rope_factors(factors: &[f32], width: usize) -> Result<RopeScaling, ConfigError> {
    let is_factor = |factor: &f32| factor.is_finite() && *factor > 0.0;
    match factors.len() == width / 2 && factors.iter().all(is_factor) {
        true => Ok(RopeScaling::Factors(factors.to_vec())),
        false => Err(invalid("rope_factors", factors.len(), format!("numbers above 0 for {width} columns"))),
    }
}

impl RawRope {
    fn scaling(&self, declared_positions: usize) -> Result<Option<RopeScaling>, ConfigError> {
        match self.rope_type.as_deref().or(self.r#type.as_deref()).unwrap_or("default") {
            "default" => Ok(None),
            "linear" => Ok(Some(RopeScaling::Linear(self.at_least_one(None)?))),
            "llama3" => Ok(Some(RopeScaling::Llama3(self.llama3(declared_positions)?))),
            "yarn" => Ok(Some(RopeScaling::Yarn(self.yarn(declared_positions)?))),
            other => Err(invalid(
                "rope_type",
                format!("{other:?}"),
                "but only \"default\", \"linear\", \"llama3\" and \"yarn\" are supported",
            )),
        }
    }

    fn at_least_one(&self, default: Option<f64>) -> Result<f64, ConfigError> {
        let factor = self.factor.or(default).ok_or(ConfigError::Missing("factor".into()))?;
        match (1.0..=1e6).contains(&factor) {
            true => Ok(factor),
            false => Err(invalid("factor", factor, "but must be at least 1")),
        }
    }

    fn llama3(&self, declared_positions: usize) -> Result<Llama3, ConfigError> {
        let original = self.original_max_position_embeddings.or(Some(declared_positions));
        let original = bounded("original_max_position_embeddings", original, MAX_POSITIONS)?;
        let low = self.low_freq_factor.ok_or(ConfigError::Missing("low_freq_factor".into()))?;
        let high = self.high_freq_factor.ok_or(ConfigError::Missing("high_freq_factor".into()))?;
        if !(low > 0.0 && high > low) {
            return Err(invalid(
                "high_freq_factor",
                high,
                format!("but must be more than low_freq_factor, {low}"),
            ));
        }
        Ok(Llama3 { factor: self.at_least_one(None)?, low, high, original_max_positions: original as f64 })
    }

    fn yarn(&self, declared_positions: usize) -> Result<Yarn, ConfigError> {
        let original = self.original_max_position_embeddings.or(Some(declared_positions));
        let original = bounded("original_max_position_embeddings", original, MAX_POSITIONS)?;
        let factor = self.at_least_one(Some(declared_positions as f64 / original as f64))?;
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

/// A required size, from 1 to `most`.
pub(crate) fn bounded(field: &'static str, value: Option<usize>, most: usize) -> Result<usize, ConfigError> {
    match value {
        None => Err(ConfigError::Missing(field.into())),
        Some(value) if value == 0 || value > most => {
            Err(invalid(field, value, format!("not between 1 and {most}")))
        }
        Some(value) => Ok(value),
    }
}

/// The error for an invalid or unsupported field.
pub(crate) fn invalid(field: &'static str, value: impl ToString, reason: impl Into<String>) -> ConfigError {
    ConfigError::Invalid { field: field.into(), value: value.to_string(), reason: reason.into() }
}
