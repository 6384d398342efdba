//! A checkpoint's files: a Hugging Face folder, a GGUF in one file or several, or the demo model inside this binary.
//!
//! Files are mapped, never read whole; what a tensor's bytes mean is `weights`'s. Every header is checked against its file
//! when the checkpoint is opened, so that a broken download is found before anything is computed. Tensors are asked for by
//! the names that Hugging Face gives them; what a GGUF calls them is `llama_cpp`'s.

use std::{borrow::Cow, collections::HashMap, path::Path};

use bytes::Bytes;
use moex_kernels::WeightFormat;

use super::{config::Config, error::ModelError, folder, gptq::Quantisation, llama_cpp};
use crate::{gguf::Vocabulary, mapped::Mapped};

/// An opened checkpoint.
pub struct Checkpoint {
    /// What it is called: the folder's or the file's name, or "moex-demo".
    pub name: String,
    /// What `config.json` says, or a GGUF's metadata.
    pub config: Config,
    /// Tokenizer, chat template and generation.
    pub text: TextFiles,
    pub(super) tensors: HashMap<String, Tensor>,
    pub(super) naming: Naming,
    /// None if its matrices are as `Stored` says.
    pub(super) quantisation: Option<Quantisation>,
    /// The files that the tensors lie in.
    pub(super) files: Vec<Mapped>,
}

/// What `text` reads, as it is.
#[derive(Default)]
pub struct TextFiles {
    /// The tokenizer; what needs only token ids does without.
    pub tokenizer: Option<TokenizerSource>,
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<Cow<'static, [u8]>>,
    /// `generation_config.json`.
    pub generation_config: Option<Cow<'static, [u8]>>,
    /// `chat_template.jinja`, which comes before the template in `tokenizer_config.json`; or a GGUF's.
    pub chat_template: Option<Cow<'static, [u8]>>,
}

/// Where a tokenizer comes from.
pub enum TokenizerSource {
    /// `tokenizer.json`.
    Json(Cow<'static, [u8]>),
    /// A GGUF's metadata.
    Vocabulary(Vocabulary),
}

/// What the tensors are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Naming {
    /// `model.layers.0.mlp.experts.7.up_proj.weight`: a tensor for each matrix.
    HuggingFace,
    /// `blk.0.ffn_up_exps.weight`: all experts of a layer in one tensor.
    Gguf,
}

/// A tensor in a file.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub(super) file: String,
    pub(super) stored: Stored,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: Bytes,
}

/// What a tensor's bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// Weights, each by itself or in blocks along the last dimension.
    Weights(WeightFormat),
    /// Something else, by the name that its file gives it.
    Other(String),
}

impl Checkpoint {
    /// Opens a folder with `config.json` and `model.safetensors`, or shards with their index; or a `.gguf` file, with those
    /// that belong to it.
    ///
    /// # Errors
    /// The file that is missing, truncated or no such file, with the tensor it holds where that is known.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        if !path.is_file() {
            return folder::open(path);
        }
        if path.extension().is_none_or(|extension| !extension.eq_ignore_ascii_case("gguf")) {
            return Err(ModelError::NotAGguf { path: path.to_owned() });
        }
        llama_cpp::open(path)
    }

    /// The demo model that every hub carries.
    ///
    /// # Errors
    /// None unless this binary was built from broken files.
    pub fn demo() -> Result<Self, ModelError> {
        folder::demo()
    }

    /// Bytes of all tensors.
    pub fn weight_bytes(&self) -> u64 {
        self.tensors.values().map(|tensor| tensor.bytes.len() as u64).sum()
    }

    /// The tensor that Hugging Face calls `name`, or that part of a larger one.
    pub(super) fn tensor(&self, name: &str) -> Result<Tensor, ModelError> {
        let missing = |tensor: String| ModelError::MissingTensor { tensor };
        let (own_name, expert) = match self.naming {
            Naming::HuggingFace => (name.to_owned(), None),
            Naming::Gguf => llama_cpp::name(name).ok_or_else(|| missing(name.to_owned()))?,
        };
        let tensor = self.tensors.get(&own_name);
        match (tensor, expert) {
            (Some(tensor), None) => Ok(tensor.clone()),
            (Some(tensor), Some(expert)) => {
                tensor.slice(expert).ok_or_else(|| missing(format!("{own_name} of expert {expert}")))
            }
            (None, _) => Err(missing(own_name)),
        }
    }
}

impl Tensor {
    /// Index `at` of the first dimension, where it lies.
    fn slice(&self, at: usize) -> Option<Self> {
        let (n, shape) = self.shape.split_first()?;
        let each = self.bytes.len().checked_div(*n)?;
        let bytes = (at < *n).then(|| self.bytes.slice(at * each..(at + 1) * each))?;
        Some(Self { shape: shape.to_vec(), bytes, ..self.clone() })
    }
}
