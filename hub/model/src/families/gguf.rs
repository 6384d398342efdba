//! Reads families from llama.cpp's GGUFs: maps keys to config fields, and tensors' names and values to a folder's.
//!
//! This file holds what families share; each family's file holds its own differences, as a [`GgufForm`].

use serde_json::{Map, Value as Json};

use super::raw::{FULL, Raw, SLIDING};
use crate::{
    error::ConfigError,
    gguf::{Gguf, GgufError, Value},
};

/// How a GGUF of one architecture is read.
pub(crate) struct GgufForm {
    /// `general.architecture`.
    pub(crate) architecture: &'static str,
    /// The corresponding `model_type`.
    pub(crate) model_type: &'static str,
    /// Whether this form applies only with experts, or only without, if two forms share an architecture.
    pub(crate) has_experts: Option<bool>,
    /// Fields besides the shared ones, with their keys.
    pub(crate) keys: &'static [(&'static str, &'static str)],
    /// Keys that [`Self::fields`] reads.
    pub(crate) reads: &'static [&'static str],
    /// Sets the fields that need more than one key.
    pub(crate) fields: fn(&mut Fields<'_>) -> Result<(), ConfigError>,
    /// Parts of tensor names that are added to the shared ones or differ from them: (shared name, GGUF's name).
    pub(crate) names: &'static [(&'static str, &'static str)],
    /// The parts whose values are stored differently than in a folder.
    pub(crate) changes: &'static [(&'static str, Change)],
    /// Tokens that end an answer, in addition to the file's.
    pub(crate) ends: &'static [&'static str],
}

/// A difference between a GGUF's values and a folder's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The rows of each head in another order: `i` and `i + C / 2`, which RoPE rotates together, are adjacent.
    PairedRows,
    /// `-exp` of each value.
    MinusExp,
    /// Two tensors instead of `kv_b_proj`: for each head the keys' rows, transposed, and the values' rows.
    KeysAndValues(&'static [&'static str; 2]),
    /// Two tensors instead of `in_proj_qkvz`: the rows of all queries, keys and values, and those of all gates.
    ByKind(&'static [&'static str; 2]),
}

impl Change {
    /// The tensors that replace one, if there are several.
    pub(crate) fn parts(self) -> &'static [&'static str] {
        match self {
            Self::PairedRows | Self::MinusExp => &[],
            Self::KeysAndValues(parts) | Self::ByKind(parts) => parts,
        }
    }
}

impl GgufForm {
    /// A form without differences.
    pub(super) const fn of(architecture: &'static str, model_type: &'static str) -> Self {
        Self {
            architecture,
            model_type,
            has_experts: None,
            keys: &[],
            reads: &[],
            fields: |_| Ok(()),
            names: &[],
            changes: &[],
            ends: &[],
        }
    }

    /// Whether the metadata has this form.
    pub(super) fn is_of(&self, gguf: &Gguf<'_>) -> Result<bool, GgufError> {
        let n_experts = gguf.integer(&format!("{}.expert_count", self.architecture));
        Ok(gguf.text("general.architecture")? == Some(self.architecture)
            && match self.has_experts {
                None => true,
                Some(has_experts) => has_experts == n_experts?.is_some_and(|n| n > 0),
            })
    }

    /// GGUF's name for `part` of a layer, with `suffix`: (`self_attn.q_proj`, `weight`) is `attn_q.weight`.
    pub(crate) fn own_part(&self, part: &str, suffix: &str) -> Option<String> {
        let whole = format!("{part}.{suffix}");
        let find = |wanted: &str| {
            let named = self.names.iter().chain(NAMES).find(|(shared, _)| *shared == wanted);
            named.map(|(_, own)| *own)
        };
        match find(&whole) {
            Some(own) => Some(own.to_owned()),
            None => find(part).map(|own| format!("{own}.{suffix}")),
        }
    }

    /// How `part` of a layer is stored differently.
    pub(crate) fn change(&self, part: &str) -> Option<Change> {
        self.changes.iter().find(|(changed, _)| *changed == part).map(|(_, change)| *change)
    }

    /// The key of a field, or the field's name if it has no key.
    pub(crate) fn key(&self, field: &str) -> String {
        let of_field = |(known, _): &&(&str, &str)| known.rsplit('.').next() == Some(field);
        let key = self.keys.iter().chain(KEYS).find(of_field);
        key.map_or_else(|| field.to_owned(), |(_, key)| format!("{}.{key}", self.architecture))
    }
}

/// A field of `config.json`, and its key.
const KEYS: &[(&str, &str)] = &[
    ("hidden_size", "embedding_length"),
    ("num_hidden_layers", "block_count"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("head_dim", "attention.key_length"),
    ("max_position_embeddings", "context_length"),
    ("intermediate_size", "feed_forward_length"),
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    ("num_experts", "expert_count"),
    ("num_experts_per_tok", "expert_used_count"),
    ("moe_intermediate_size", "expert_feed_forward_length"),
    ("rope_theta", "rope.freq_base"),
    ("rope_scaling.rope_type", "rope.scaling.type"),
    ("rope_scaling.factor", "rope.scaling.factor"),
    ("rope_scaling.original_max_position_embeddings", "rope.scaling.original_context_length"),
    ("rope_scaling.attention_factor", "rope.scaling.attn_factor"),
    ("rope_scaling.attention_factor", "rope.scaling.yarn_attn_factor"),
    ("rope_scaling.beta_fast", "rope.scaling.yarn_beta_fast"),
    ("rope_scaling.beta_slow", "rope.scaling.yarn_beta_slow"),
];

/// Keys that change the computation, with their neutral value; 0 also means "none". A family that supports one lists it
/// there.
const NEUTRAL: [(&str, f64); 15] = [
    ("attention.clamp_kqv", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("attention.scale", 0.0),
    ("attention.sliding_window", 0.0),
    ("attention.temperature_scale", 0.0),
    ("attn_logit_softcapping", 0.0),
    ("embedding_scale", 1.0),
    ("expert_gating_func", 1.0),
    ("expert_group_count", 1.0),
    ("expert_shared_count", 0.0),
    ("expert_weights_scale", 1.0),
    ("final_logit_softcapping", 0.0),
    ("logit_scale", 1.0),
    ("residual_scale", 1.0),
    ("rope.scaling.yarn_ext_factor", 1.0),
];

/// Names of a layer's tensors: the shared name of a part, without `.weight` or `.bias`, and GGUF's.
const NAMES: &[(&str, &str)] = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.experts.gate_proj", "ffn_gate_exps"),
    ("mlp.experts.up_proj", "ffn_up_exps"),
    ("mlp.experts.down_proj", "ffn_down_exps"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
];

/// What only a GGUF's tensors reveal about its model.
#[derive(Default)]
pub(crate) struct FromTensors {
    /// V, rows of the embedding.
    pub(crate) vocab: usize,
    /// Whether there is no `output.weight`.
    pub(crate) tied_head: bool,
    /// Whether there is an `attn_q.bias`.
    pub(crate) has_attention_bias: bool,
    /// `rope_freqs.weight`, the divisors of RoPE's frequencies.
    pub(crate) rope_factors: Option<Vec<f32>>,
}

/// Builds a config's fields from keys.
pub(crate) struct Fields<'a> {
    gguf: &'a Gguf<'a>,
    form: &'static GgufForm,
    fields: Map<String, Json>,
    /// What the tensors reveal.
    pub(crate) tensors: &'a FromTensors,
}

impl<'a> Fields<'a> {
    /// Builds the config from the metadata of a GGUF with this form.
    ///
    /// # Errors
    /// If a key has another type or an unsupported value.
    pub(crate) fn read(
        gguf: &'a Gguf<'a>,
        form: &'static GgufForm,
        tensors: &'a FromTensors,
    ) -> Result<Raw, ConfigError> {
        let mut fields = Self { gguf, form, fields: Map::new(), tensors };
        fields.refuse_what_is_not_read()?;
        for (field, key) in KEYS.iter().chain(form.keys) {
            fields.take(field, key)?;
        }
        // `block_count` includes the multi-token-prediction layers after the model's own.
        if let (Some(more), Some(all)) =
            (fields.integer("nextn_predict_layers")?, fields.integer("block_count")?)
        {
            fields.set("num_hidden_layers", all.saturating_sub(more));
        }
        fields.rope()?;
        fields.set("model_type", form.model_type);
        fields.set("vocab_size", tensors.vocab);
        fields.set("tie_word_embeddings", tensors.tied_head);
        (form.fields)(&mut fields)?;
        let mut raw: Raw = serde_json::from_value(Json::Object(fields.fields))?;
        raw.rope_factors.clone_from(&tensors.rope_factors);
        Ok(raw)
    }

    /// Sets a field of the config; a field of `rope_scaling` is written `rope_scaling.factor`.
    pub(crate) fn set(&mut self, field: &str, value: impl Into<Json>) {
        let (outer, inner) =
            field.split_once('.').map_or((field, None), |(outer, inner)| (outer, Some(inner)));
        match inner {
            None => drop(self.fields.insert(outer.to_owned(), value.into())),
            Some(inner) => {
                let nested = self.fields.entry(outer).or_insert_with(|| Json::Object(Map::new()));
                if let Some(nested) = nested.as_object_mut() {
                    nested.insert(inner.to_owned(), value.into());
                }
            }
        }
    }

    /// Sets a field that has no key.
    pub(crate) fn set_absent(&mut self, field: &str, value: impl Into<Json>) {
        if !self.fields.contains_key(field) {
            self.set(field, value);
        }
    }

    /// Sets the layers with windows if a key gives them: all except every nth, or a flag per layer.
    pub(crate) fn windows(&mut self) -> Result<(), ConfigError> {
        let key = "attention.sliding_window_pattern";
        match self.value(key) {
            None => Ok(()),
            Some(Value::Array(flags)) => {
                let kinds: Option<Vec<&str>> = flags
                    .iter()
                    .map(|flag| match flag {
                        Value::Bool(slides) => Some(if slides { SLIDING } else { FULL }),
                        _ => None,
                    })
                    .collect();
                let kinds = kinds.ok_or_else(|| self.invalid(key, "an array", "and not of flags"))?;
                self.set("layer_types", kinds);
                Ok(())
            }
            Some(_) => {
                let pattern = self.needed(key)?;
                self.set("sliding_window_pattern", pattern);
                Ok(())
            }
        }
    }

    /// The integer of a key of this architecture.
    pub(crate) fn integer(&self, key: &str) -> Result<Option<usize>, GgufError> {
        Ok(self.gguf.integer(&self.name(key))?.map(|value| value as usize))
    }

    /// The integer of a required key.
    pub(crate) fn needed(&self, key: &str) -> Result<usize, ConfigError> {
        self.integer(key)?.ok_or_else(|| ConfigError::Missing(self.name(key).into()))
    }

    /// The number of a key of this architecture.
    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>, GgufError> {
        self.gguf.number(&self.name(key))
    }

    /// The value of a key of this architecture.
    pub(crate) fn value(&self, key: &str) -> Option<Value<'a>> {
        self.gguf.get(&self.name(key))
    }

    /// The error for an invalid or unsupported key.
    pub(crate) fn invalid(&self, key: &str, value: impl ToString, reason: &str) -> ConfigError {
        ConfigError::Invalid {
            field: self.name(key).into(),
            value: value.to_string(),
            reason: reason.to_owned(),
        }
    }

    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.form.architecture)
    }

    /// Sets a field to the value of a key, if the file has it.
    fn take(&mut self, field: &str, key: &str) -> Result<(), ConfigError> {
        let Some(value) = self.value(key) else { return Ok(()) };
        let json: Json = match value {
            Value::Unsigned(value) => value.into(),
            Value::Signed(value) => value.into(),
            Value::Float(value) => value.into(),
            Value::Bool(value) => value.into(),
            Value::Text(value) => value.into(),
            Value::Array(_) => {
                return Err(self.invalid(key, "an array", "but only one value for all layers is supported"));
            }
        };
        let shown = json.to_string().chars().take(64).collect::<String>();
        self.set(field, json.clone());
        let mut alone = Self { fields: Map::new(), ..*self };
        alone.set(field, json);
        let is_typed = serde_json::from_value::<Raw>(Json::Object(alone.fields)).is_ok();
        if is_typed { Ok(()) } else { Err(self.invalid(key, shown, "which is of another type")) }
    }

    /// Sets RoPE's scaling, and the number of rotated columns per head.
    fn rope(&mut self) -> Result<(), ConfigError> {
        let kind = self.gguf.text(&self.name("rope.scaling.type"))?;
        let factor = self.number("rope.scaling.factor")?.or(self.number("rope.scale_linear")?);
        match (kind, factor.filter(|factor| *factor != 0.0)) {
            (None, Some(factor)) => {
                self.set("rope_scaling.rope_type", "linear");
                self.set("rope_scaling.factor", factor);
            }
            (Some("none"), _) | (None, None) => drop(self.fields.remove("rope_scaling")),
            (Some(_), _) => {}
        }
        if self.form.keys.iter().any(|(_, key)| *key == "rope.dimension_count") {
            return Ok(());
        }
        let width = match self.integer("attention.key_length")? {
            Some(width) => Some(width),
            None => {
                let (hidden, heads) =
                    (self.integer("embedding_length")?, self.integer("attention.head_count")?);
                hidden.zip(heads).and_then(|(hidden, heads)| hidden.checked_div(heads))
            }
        };
        match self.integer("rope.dimension_count")?.zip(width) {
            Some((turned, width)) if turned > width => {
                Err(self.invalid("rope.dimension_count", turned, &format!("of heads of {width} columns")))
            }
            Some((turned, width)) if turned < width => {
                // Half a column is added so that rounding never loses a column.
                self.set("partial_rotary_factor", (turned as f64 + 0.5) / width as f64);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Refuses keys that change the arithmetic in unsupported ways.
    fn refuse_what_is_not_read(&self) -> Result<(), ConfigError> {
        let is_read =
            |key: &str| self.form.reads.contains(&key) || self.form.keys.iter().any(|(_, read)| *read == key);
        for (key, neutral) in NEUTRAL.iter().filter(|(key, _)| !is_read(key)) {
            match self.number(key)? {
                Some(value) if value != *neutral && value != 0.0 => {
                    return Err(self.invalid(key, value, "which is not supported for this architecture"));
                }
                _ => {}
            }
        }
        if self.value("attention.causal") == Some(Value::Bool(false)) {
            return Err(self.invalid("attention.causal", false, "but only causal models are supported"));
        }
        if !is_read("attention.value_length") {
            let width = self.integer("attention.key_length")?;
            if let Some(values) =
                self.integer("attention.value_length")?.filter(|values| Some(*values) != width)
            {
                return Err(self.invalid("attention.value_length", values, "but keys have another width"));
            }
        }
        Ok(())
    }
}
