//! A checkpoint's files: a Hugging Face folder, a GGUF in one file or several, or the demo model inside this binary.
//!
//! Files are mapped, never read as a whole; `weights` interprets the tensors' bytes. Every header is checked against
//! its file when the checkpoint is opened, so that a broken download is found before any computation.

pub(crate) mod inventory;
pub(crate) mod names;
mod quantisation;
mod tensors;

mod fp8;
mod gptq;
mod stacked;
mod weights;

mod demo;
pub(crate) mod folder;
pub mod llama_cpp;

use std::path::Path;

pub use self::tensors::{Checkpoint, TextFiles, TokenizerSource};
pub(crate) use self::tensors::{Stored, Tensor};
pub use self::weights::{Expert, Matrix};

use crate::error::ModelError;

impl Checkpoint {
    /// Opens a folder with `config.json` and `model.safetensors`, or with shards and their index; or a `.gguf` file,
    /// with its other parts.
    ///
    /// # Errors
    /// If a file is missing, truncated or invalid; names one of its tensors if known.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        if !path.is_file() {
            return folder::open(path);
        }
        if path.extension().is_none_or(|extension| !extension.eq_ignore_ascii_case("gguf")) {
            return Err(ModelError::NotAGguf { path: path.to_owned() });
        }
        llama_cpp::open(path)
    }

    /// The demo model in the binary.
    ///
    /// # Errors
    /// Only if this binary was built from broken files.
    pub fn demo() -> Result<Self, ModelError> {
        folder::demo()
    }
}
