//! The families of models that can be run: how the config of each becomes a [`ModelSpec`], and what its tensors are called.
//!
//! A family is one file. Tensors are asked for by the names that most families share, those of Qwen and Llama; a family
//! that calls some otherwise lists them in [`Family::names`]. What is a family's own in a GGUF is a [`GgufForm`] beside that.

mod gguf;
mod raw;

mod deepseek_v3;
mod gemma;
mod gpt_oss;
mod llama;
mod mixtral;
mod olmoe;
mod qwen2_moe;
mod qwen3;
mod qwen3_next;

pub(crate) use gguf::{Change, Fields, FromTensors, GgufForm};
pub(crate) use qwen3::QWEN3_MOE_GGUF;
pub(crate) use raw::Raw;

use super::{error::ConfigError, gguf::Gguf, spec::ModelSpec, text::OutputFormat};

/// A family of models.
pub(crate) struct Family {
    /// `model_type` in `config.json`.
    pub(crate) model_types: &'static [&'static str],
    /// `architectures` in `config.json`, where there is no `model_type`.
    pub(crate) architecture: &'static str,
    /// Its spec by the fields of its config.
    pub(crate) spec: fn(&Raw) -> Result<ModelSpec, ConfigError>,
    /// Parts of tensors' names that differ from the shared ones: (shared, its own).
    pub(crate) names: &'static [(&'static str, &'static str)],
    /// How llama.cpp writes it.
    pub(crate) gguf: &'static [GgufForm],
    /// What its texts look like.
    pub(crate) output: OutputFormat,
}

const FAMILIES: [&Family; 10] = [
    &qwen3::QWEN3_MOE,
    &qwen3::QWEN3,
    &qwen2_moe::QWEN2_MOE,
    &qwen3_next::QWEN3_NEXT,
    &gpt_oss::GPT_OSS,
    &mixtral::MIXTRAL,
    &llama::LLAMA,
    &olmoe::OLMOE,
    &deepseek_v3::DEEPSEEK_V3,
    &gemma::GEMMA,
];

impl Family {
    /// The family that a config is of.
    ///
    /// # Errors
    /// If it is of none that is known; the sentence names those that are.
    pub(crate) fn of(raw: &Raw) -> Result<&'static Self, ConfigError> {
        let architectures = raw.architectures.as_deref().unwrap_or_default();
        let is = |family: &&&Self| match raw.model_type.as_deref() {
            Some(kind) => family.model_types.contains(&kind),
            None => architectures.iter().any(|name| name == family.architecture),
        };
        let unknown = || ConfigError::UnknownFamily {
            found: (raw.model_type.as_deref().or(architectures.first().map(String::as_str))).map_or_else(
                || "absent".to_owned(),
                |kind| format!("{:?}", kind.chars().take(64).collect::<String>()),
            ),
            known: FAMILIES
                .iter()
                .flat_map(|family| family.model_types)
                .copied()
                .collect::<Vec<_>>()
                .join(", "),
        };
        FAMILIES.iter().find(is).copied().ok_or_else(unknown)
    }

    /// The family and the spec of a `config.json`.
    pub(crate) fn read(json: &[u8]) -> Result<(&'static Self, ModelSpec), ConfigError> {
        let raw: Raw = serde_json::from_slice(json)?;
        let family = Self::of(&raw)?;
        Ok((family, (family.spec)(&raw)?))
    }

    /// The family that a GGUF's metadata is of, and how it is written.
    ///
    /// # Errors
    /// If it is of none that is known; the sentence names those that are.
    pub(crate) fn of_gguf(gguf: &Gguf<'_>) -> Result<(&'static Self, &'static GgufForm), ConfigError> {
        for (family, form) in Self::gguf_forms() {
            if form.is_of(gguf)? {
                return Ok((family, form));
            }
        }
        let found = gguf.text("general.architecture")?.unwrap_or("absent").chars().take(64).collect();
        let mut known: Vec<&str> = Self::gguf_forms().map(|(_, form)| form.architecture).collect();
        known.dedup();
        Err(ConfigError::Architecture { found, known: known.join(", ") })
    }

    /// How every family is written as GGUF.
    pub(crate) fn gguf_forms() -> impl Iterator<Item = (&'static Self, &'static GgufForm)> {
        FAMILIES.iter().flat_map(|family| family.gguf.iter().map(|form| (*family, form)))
    }

    /// What this family calls the tensor with the shared name `name`.
    pub(crate) fn own_name(&self, name: &str) -> String {
        self.names.iter().fold(name.to_owned(), |name, (shared, own)| name.replace(shared, own))
    }
}

impl ModelSpec {
    /// What a `config.json` says.
    ///
    /// # Errors
    /// The first thing that makes it no model that can be run.
    pub fn from_json(json: &[u8]) -> Result<Self, ConfigError> {
        Family::read(json).map(|(_, spec)| spec)
    }
}

#[cfg(test)]
mod tests;
