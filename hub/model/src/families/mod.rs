//! The supported model families: each converts its config to a [`ModelSpec`] and maps its tensor names.
//!
//! Each family is one file. Callers use the tensor names that most families share, those of Qwen and Llama; a family
//! with other names lists them in [`Family::names`], and its GGUF differences in a [`GgufForm`].

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
    /// Builds its spec from the fields of its config.
    pub(crate) spec: fn(&Raw) -> Result<ModelSpec, ConfigError>,
    /// Parts of tensors' names that differ from the shared ones: (shared, its own).
    pub(crate) names: &'static [(&'static str, &'static str)],
    /// Its form in llama.cpp.
    pub(crate) gguf: &'static [GgufForm],
    /// The format of its output.
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
    /// Finds the family of a config.
    ///
    /// # Errors
    /// If the family is not supported; names those that are.
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

    /// Finds the family and form of a GGUF's metadata.
    ///
    /// # Errors
    /// If the architecture is not supported; names those that are.
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

    /// The GGUF forms of all families.
    pub(crate) fn gguf_forms() -> impl Iterator<Item = (&'static Self, &'static GgufForm)> {
        FAMILIES.iter().flat_map(|family| family.gguf.iter().map(|form| (*family, form)))
    }

    /// This family's name for the tensor with the shared name `name`.
    pub(crate) fn own_name(&self, name: &str) -> String {
        self.names.iter().fold(name.to_owned(), |name, (shared, own)| name.replace(shared, own))
    }
}

impl ModelSpec {
    /// Parses a `config.json`.
    ///
    /// # Errors
    /// If the model is invalid or not supported; names the first reason.
    pub fn from_json(json: &[u8]) -> Result<Self, ConfigError> {
        Family::read(json).map(|(_, spec)| spec)
    }
}

#[cfg(test)]
mod tests;
