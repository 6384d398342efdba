//! How llama.cpp writes families as GGUF: the keys that stand for fields of a config, and the names and values of tensors.
//!
//! What families share is here; what is a family's own stands in its file, as a [`GgufForm`].

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
    /// The `model_type` that it stands for.
    pub(crate) model_type: &'static str,
    /// Whether it is this form with experts only, or without only, where two forms are of one architecture.
    pub(crate) has_experts: Option<bool>,
    /// Fields beside the shared ones, and their keys.
    pub(crate) keys: &'static [(&'static str, &'static str)],
    /// Keys that [`Self::fields`] reads.
    pub(crate) reads: &'static [&'static str],
    /// Sets the fields that take more than a key.
    pub(crate) fields: fn(&mut Fields<'_>) -> Result<(), ConfigError>,
    /// Parts of tensors' names beside the shared ones, or other than these: (as most families name it, as a GGUF does).
    pub(crate) names: &'static [(&'static str, &'static str)],
    /// The parts whose values are written otherwise than in a folder.
    pub(crate) changes: &'static [(&'static str, Change)],
    /// The tokens that end an answer, whatever the file names.
    pub(crate) ends: &'static [&'static str],
}

/// What a GGUF has in place of a folder's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The rows of each head in another order: those that RoPE turns together, `i` and `i + C / 2`, beside each other.
    PairedRows,
    /// `-exp` of each value.
    MinusExp,
    /// Two tensors in place of `kv_b_proj`: of each head the keys' rows, transposed, and the values' rows.
    KeysAndValues(&'static [&'static str; 2]),
    /// Two tensors in place of `in_proj_qkvz`: the rows of all queries, keys and values; and those of all gates.
    ByKind(&'static [&'static str; 2]),
}

impl Change {
    /// The tensors that stand for one, where there are several.
    pub(crate) fn parts(self) -> &'static [&'static str] {
        match self {
            Self::PairedRows | Self::MinusExp => &[],
            Self::KeysAndValues(parts) | Self::ByKind(parts) => parts,
        }
    }
}

impl GgufForm {
    /// A form without anything of its own.
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

    /// Whether the metadata is of this form.
    pub(super) fn is_of(&self, gguf: &Gguf<'_>) -> Result<bool, GgufError> {
        let n_experts = gguf.integer(&format!("{}.expert_count", self.architecture));
        Ok(gguf.text("general.architecture")? == Some(self.architecture)
            && match self.has_experts {
                None => true,
                Some(has_experts) => has_experts == n_experts?.is_some_and(|n| n > 0),
            })
    }

    /// What a GGUF calls `part` of a layer, with `suffix`: (`self_attn.q_proj`, `weight`) is `attn_q.weight`.
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

    /// How `part` of a layer is written otherwise.
    pub(crate) fn change(&self, part: &str) -> Option<Change> {
        self.changes.iter().find(|(changed, _)| *changed == part).map(|(_, change)| *change)
    }

    /// The key of a field, or the field where no key stands for it.
    pub(crate) fn key(&self, field: &str) -> String {
        let of_field = |(known, _): &&(&str, &str)| known.rsplit('.').next() == Some(field);
        let key = self.keys.iter().chain(KEYS).find(of_field);
        key.map_or_else(|| field.to_owned(), |(_, key)| format!("{}.{key}", self.architecture))
    }
}

/// A field of `config.json`, and the key that stands for it.
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

/// Keys that change what is computed, and the value that changes nothing; 0 stands for "none" as well. A family that reads
/// one lists it there.
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

/// What tensors of a layer are called: a part as most families name it, without `.weight` or `.bias`, and as a GGUF does.
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

/// What a GGUF's tensors say of its model, and no key does.
#[derive(Default)]
pub(crate) struct FromTensors {
    /// V, rows of the embedding.
    pub(crate) vocab: usize,
    /// There is no `output.weight`.
    pub(crate) tied_head: bool,
    /// There is an `attn_q.bias`.
    pub(crate) has_attention_bias: bool,
    /// `rope_freqs.weight`, what each frequency is divided by.
    pub(crate) rope_factors: Option<Vec<f32>>,
}

/// The fields of a config as they are read from keys.
pub(crate) struct Fields<'a> {
    gguf: &'a Gguf<'a>,
    form: &'static GgufForm,
    fields: Map<String, Json>,
    /// What the tensors say.
    pub(crate) tensors: &'a FromTensors,
}

impl<'a> Fields<'a> {
    /// The config that the metadata of a GGUF of this form says.
    ///
    /// # Errors
    /// The key that is of another type or says what is not computed.
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
        // Layers that predict further tokens follow the model's own.
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

    /// Sets a field of the config, one of `rope_scaling` as `rope_scaling.factor`.
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

    /// Sets a field that no key says.
    pub(crate) fn set_absent(&mut self, field: &str, value: impl Into<Json>) {
        if !self.fields.contains_key(field) {
            self.set(field, value);
        }
    }

    /// Which layers have windows, where a key says it: every one but each nth, or a flag for each.
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

    /// The integer of a key without which there is no model.
    pub(crate) fn needed(&self, key: &str) -> Result<usize, ConfigError> {
        self.integer(key)?.ok_or_else(|| ConfigError::Missing(self.name(key).into()))
    }

    /// The number of a key of this architecture.
    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>, GgufError> {
        self.gguf.number(&self.name(key))
    }

    /// What a key of this architecture says.
    pub(crate) fn value(&self, key: &str) -> Option<Value<'a>> {
        self.gguf.get(&self.name(key))
    }

    /// The error of a key that cannot be as it is.
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

    /// Sets a field to the value of a key, where there is one.
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

    /// Frequencies of RoPE: how they are scaled, and which columns of a head turn.
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
                // Half a column more, so that the width times it is never rounded to a column less.
                self.set("partial_rotary_factor", (turned as f64 + 0.5) / width as f64);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Nothing that a file says of its arithmetic is passed over.
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
