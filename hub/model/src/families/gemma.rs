//! Gemma 2 and Gemma 3 (text): norms multiply by one plus their weights, before and after each half of a layer; GELU;
//! scaled embeddings; some layers with sliding windows.

use super::{
    Family, Fields, GgufForm, Raw,
    raw::{FULL, SLIDING, bounded, invalid},
};
use crate::{
    error::ConfigError,
    spec::{Activation, MAX_POSITIONS, ModelSpec, MoeSpec, NormPlaces, NormWeights, QkNorm},
    text::OutputFormat,
};

/// Both generations.
pub(super) const GEMMA: Family = Family {
    model_types: &["gemma2", "gemma3_text"],
    architecture: "Gemma2ForCausalLM",
    output: OutputFormat::Text,
    spec,
    // The norm before the second half has the name that other families give to the norm after the first.
    names: &[
        (".post_attention_layernorm.", ".pre_feedforward_layernorm."),
        (".attention_output_layernorm.", ".post_attention_layernorm."),
        (".feedforward_output_layernorm.", ".post_feedforward_layernorm."),
    ],
    gguf: &[
        GgufForm {
            keys: GGUF_KEYS,
            reads: &["attention.scale"],
            fields: |fields| {
                // llama.cpp's defaults for older files without these keys.
                fields.set_absent("attn_logit_softcapping", 50.0);
                fields.set_absent("final_logit_softcapping", 30.0);
                gguf_fields(fields, 46)
            },
            names: GGUF_NAMES,
            ends: GGUF_ENDS,
            ..GgufForm::of("gemma2", "gemma2")
        },
        GgufForm {
            keys: GGUF_KEYS,
            reads: &["attention.scale"],
            fields: |fields| {
                fields.set_absent("rope_local_base_freq", 10_000.0);
                fields.set_absent("rope_theta", 1e6);
                gguf_fields(fields, 62)
            },
            names: GGUF_NAMES,
            ends: GGUF_ENDS,
            ..GgufForm::of("gemma3", "gemma3_text")
        },
    ],
};

const GGUF_KEYS: &[(&str, &str)] = &[
    ("sliding_window", "attention.sliding_window"),
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_logit_softcapping", "final_logit_softcapping"),
    ("rope_local_base_freq", "rope.freq_base_swa"),
];

const GGUF_NAMES: &[(&str, &str)] = &[
    ("attention_output_layernorm", "post_attention_norm"),
    ("feedforward_output_layernorm", "post_ffw_norm"),
];

const GGUF_ENDS: &[&str] = &["<end_of_turn>", "<eos>"];

/// Sets windows and the attention scale: without a key, the 27B of each generation, recognised by its number of layers,
/// scales by D / H, and all others by a head's columns.
fn gguf_fields(fields: &mut Fields<'_>, n_layers_of_27b: usize) -> Result<(), ConfigError> {
    fields.windows()?;
    let scalar = match fields.number("attention.scale")?.filter(|scale| *scale != 0.0) {
        Some(scale) => scale.powi(-2),
        None if fields.needed("block_count")? == n_layers_of_27b => {
            let (hidden, heads) =
                (fields.needed("embedding_length")?, fields.needed("attention.head_count")?);
            hidden as f64 / heads.max(1) as f64
        }
        None => fields.needed("attention.key_length")? as f64,
    };
    fields.set("query_pre_attn_scalar", scalar);
    Ok(())
}

fn spec(raw: &Raw) -> Result<ModelSpec, ConfigError> {
    let is_third = raw.model_type.as_deref() == Some("gemma3_text");
    let activation = raw.hidden_activation.as_deref().or(raw.hidden_act.as_deref());
    if let Some(act) = activation.filter(|act| *act != "gelu_pytorch_tanh") {
        return Err(invalid(
            "hidden_activation",
            format!("{act:?}"),
            "but only \"gelu_pytorch_tanh\" is supported",
        ));
    }
    let dense = raw.dense(Activation::GeluTanh)?;
    let mut spec = raw.spec(if is_third { "gemma3" } else { "gemma2" }, |_| dense, MoeSpec::NONE)?;
    spec.norm_weights = NormWeights::OnePlus;
    spec.embedding_scale = (spec.hidden as f32).sqrt();
    spec.logit_softcap = positive("final_logit_softcapping", raw.final_logit_softcapping)?;
    // The family's default, which older configs omit.
    spec.tied_head = raw.tie_word_embeddings.unwrap_or(true);
    let window = bounded("sliding_window", raw.sliding_window, MAX_POSITIONS)?;
    let pattern = raw.sliding_window_pattern.unwrap_or(if is_third { 6 } else { 2 });
    let pattern = bounded("sliding_window_pattern", Some(pattern), MAX_POSITIONS)?;
    let scalar = raw.query_pre_attn_scalar.ok_or(ConfigError::Missing("query_pre_attn_scalar".into()))?;
    if !(scalar.is_finite() && scalar > 0.0) {
        return Err(invalid("query_pre_attn_scalar", scalar, "but must be more than 0"));
    }
    let kinds = raw.layer_kinds(|layer| if (layer + 1).is_multiple_of(pattern) { FULL } else { SLIDING })?;
    for (layer, kind) in spec.layers.iter_mut().zip(&kinds) {
        let slides = kind == SLIDING;
        layer.norms = NormPlaces::BeforeAndAfter;
        let Some(attention) = layer.attention_mut() else { continue };
        attention.window = slides.then_some(window);
        attention.scale = scalar.powf(-0.5) as f32;
        attention.score_softcap = positive("attn_logit_softcapping", raw.attn_logit_softcapping)?;
        if is_third {
            attention.qk_norm = QkNorm::Head;
            attention.rope = raw.rope(if slides { SLIDING } else { FULL }, attention.head_width)?;
            // In transformers 4, layers with windows have their own theta, and no scaling.
            if let Some(theta) = raw.rope_local_base_freq.filter(|_| slides && raw.rope_parameters.is_none())
            {
                attention.rope.theta = theta;
                attention.rope.scaling = None;
            }
        }
    }
    Ok(spec)
}

fn positive(field: &'static str, value: Option<f32>) -> Result<Option<f32>, ConfigError> {
    match value {
        Some(value) if !(value.is_finite() && value > 0.0) => {
            Err(invalid(field, value, "but must be more than 0"))
        }
        value => Ok(value),
    }
}
