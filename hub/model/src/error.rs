//! What can be wrong with a checkpoint, each as one sentence that names the file, the tensor or the field.

use std::{borrow::Cow, path::PathBuf};

use crate::gguf::GgufError;

/// Why a model could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The folder holds no checkpoint.
    #[error("{} is not a model folder: it has no {missing}", path.display())]
    NotAModel {
        /// The folder.
        path: PathBuf,
        /// The file that every checkpoint has.
        missing: &'static str,
    },
    /// It is a file, and no GGUF by its name.
    #[error("{} is not a model: name a folder with config.json or a .gguf file", path.display())]
    NotAGguf {
        /// The file.
        path: PathBuf,
    },
    /// A GGUF file is none that can be used.
    #[error("{file}: {source}")]
    Gguf {
        /// The file's name.
        file: String,
        /// What is wrong with it.
        source: GgufError,
    },
    /// The config is not one this crate can run.
    #[error("{}: {source}", path.display())]
    Config {
        /// The config's file.
        path: PathBuf,
        /// What is wrong with it.
        source: ConfigError,
    },
    /// The index names a shard that is not there.
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
        /// The first tensor that is not whole.
        tensor: String,
        /// The byte after the tensor's last.
        end: u64,
        /// The file's length in bytes.
        len: u64,
    },
    /// A shard, or the index of shards, is not what its name says.
    #[error("{file}: {reason}")]
    BadFile {
        /// The file's name.
        file: String,
        /// Why it cannot be read.
        reason: String,
    },
    /// The config asks for a tensor that no shard holds.
    #[error("no shard holds the tensor {tensor}")]
    MissingTensor {
        /// The tensor's name.
        tensor: String,
    },
    /// A tensor has another shape than the config makes it.
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
    /// A GGUF holds a tensor that nothing would be computed with.
    #[error("{file} holds {tensor}, which is not supported in a GGUF of {architecture:?}")]
    UnknownTensor {
        /// The file's name.
        file: String,
        /// The tensor's name.
        tensor: String,
        /// What the file says it is.
        architecture: &'static str,
    },
    /// The system gave no memory for weights.
    #[error("not enough memory for the model's weights: {0}")]
    NoMemory(std::io::Error),
    /// A tensor is stored in a type that is not read.
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

/// Why a `config.json` cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It is no JSON object of the expected field types.
    #[error("not a model config: {0}")]
    NotJson(#[from] serde_json::Error),
    /// It describes a model of another family.
    #[error("its model_type is {found}, but moex supports only {known}")]
    UnknownFamily {
        /// What it says.
        found: String,
        /// The families that are known.
        known: String,
    },
    /// A GGUF of another kind of model.
    #[error("its general.architecture is {found:?}, but moex supports only {known}")]
    Architecture {
        /// What it says.
        found: String,
        /// The architectures that are known.
        known: String,
    },
    /// A key of a GGUF is not what it must be.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A field without which there is no model.
    #[error("the field {0} is missing")]
    Missing(Cow<'static, str>),
    /// A field that contradicts another, or is beyond what any model has.
    #[error("the field {field} is {value}, {reason}")]
    Invalid {
        /// The field's name, as the config spells it.
        field: Cow<'static, str>,
        /// Its value.
        value: String,
        /// What it must be.
        reason: String,
    },
}
