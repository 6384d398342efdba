//! Errors of a checkpoint; each is one sentence that names the file, the tensor or the field.

use std::{borrow::Cow, path::PathBuf};

use crate::{gguf::GgufError, mapped::CutShort};

/// Why a model could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file is not what it was when it was opened.
    #[error(transparent)]
    CutShort(#[from] CutShort),
    /// The folder is not a checkpoint.
    #[error("{} is not a model folder: it has no {missing}", path.display())]
    NotAModel {
        /// The folder.
        path: PathBuf,
        /// The missing file.
        missing: &'static str,
    },
    /// A file without the name of a GGUF.
    #[error("{} is not a model: name a folder with config.json or a .gguf file", path.display())]
    NotAGguf {
        /// The file.
        path: PathBuf,
    },
    /// An unusable GGUF file.
    #[error("{file}: {source}")]
    Gguf {
        /// The file's name.
        file: String,
        /// The reason.
        source: GgufError,
    },
    /// The config is invalid or not supported.
    #[error("{}: {source}", path.display())]
    Config {
        /// The config's file.
        path: PathBuf,
        /// The reason.
        source: ConfigError,
    },
    /// A shard of the index does not exist.
    #[error("shard {file} is missing: it holds {tensor}")]
    MissingShard {
        /// The shard's file name.
        file: String,
        /// The first tensor, by name, that the index places in it.
        tensor: String,
    },
    /// A shard ends before its tensors do.
    #[error("shard {file} is truncated: {tensor} ends at byte {end} and the file at byte {len}")]
    TruncatedShard {
        /// The shard's file name.
        file: String,
        /// The first tensor that is cut.
        tensor: String,
        /// The byte after the tensor's last.
        end: u64,
        /// The file's length in bytes.
        len: u64,
    },
    /// A shard, or the index of shards, is invalid.
    #[error("{file}: {reason}")]
    BadFile {
        /// The file's name.
        file: String,
        /// The reason.
        reason: String,
    },
    /// The config asks for a tensor that no shard holds.
    #[error("no shard holds the tensor {tensor}")]
    MissingTensor {
        /// The tensor's name.
        tensor: String,
    },
    /// A tensor's shape differs from the config's.
    #[error("{tensor} in {file} is {actual:?}, but the config requires {expected:?}")]
    Shape {
        /// The tensor's name.
        tensor: String,
        /// The shard that holds it.
        file: String,
        /// Its shape in the shard.
        actual: Vec<usize>,
        /// Its shape by the config.
        expected: Vec<usize>,
    },
    /// A GGUF holds an unsupported tensor.
    #[error("{file} holds {tensor}, which is not supported in a GGUF of {architecture:?}")]
    UnknownTensor {
        /// The file's name.
        file: String,
        /// The tensor's name.
        tensor: String,
        /// The architecture in the file.
        architecture: &'static str,
    },
    /// Memory for weights is exhausted.
    #[error("not enough memory for the model's weights: {0}")]
    NoMemory(std::io::Error),
    /// A tensor has an unsupported type.
    #[error("{tensor} in {file} is {dtype}: only f32, f16 and bf16 are supported")]
    UnsupportedDtype {
        /// The tensor's name.
        tensor: String,
        /// The shard that holds it.
        file: String,
        /// Its type, as the shard calls it.
        dtype: String,
    },
}

/// Why a `config.json` is invalid or not supported.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It is not a JSON object with the expected field types.
    #[error("not a model config: {0}")]
    NotJson(#[from] serde_json::Error),
    /// Its family is not supported.
    #[error("its model_type is {found}, but moex supports only {known}")]
    UnknownFamily {
        /// Its `model_type`.
        found: String,
        /// The supported families.
        known: String,
    },
    /// A GGUF whose architecture is not supported.
    #[error("its general.architecture is {found:?}, but moex supports only {known}")]
    Architecture {
        /// Its architecture.
        found: String,
        /// The supported architectures.
        known: String,
    },
    /// A GGUF's key has an invalid value.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A required field is missing.
    #[error("the field {0} is missing")]
    Missing(Cow<'static, str>),
    /// A field that contradicts another one, or is out of range.
    #[error("the field {field} is {value}, {reason}")]
    Invalid {
        /// The field's name, as the config spells it.
        field: Cow<'static, str>,
        /// Its value.
        value: String,
        /// The problem.
        reason: String,
    },
}
