//! An opened checkpoint: its spec, its tokenizer's files, and its tensors by name.
//!
//! Callers use the tensor names that most families share ([`crate::families`]); this file maps them to the names of the
//! folder's family or of a GGUF.

use std::{borrow::Cow, collections::HashMap};

use bytes::Bytes;
use moex_kernels::WeightFormat;

use super::{names, quantisation::Quantisation};
use crate::{
    error::ModelError,
    families::{Family, GgufForm},
    gguf::Vocabulary,
    mapped::Mapped,
    spec::ModelSpec,
    text::OutputFormat,
};

/// An opened checkpoint.
pub struct Checkpoint {
    /// Its name: the folder's or the file's, or "moex-demo".
    pub name: String,
    /// The model's spec, from `config.json` or a GGUF's metadata.
    pub spec: ModelSpec,
    /// Tokenizer, chat template and generation.
    pub text: TextFiles,
    /// The format of its output.
    pub output: OutputFormat,
    pub(crate) tensors: HashMap<String, Tensor>,
    pub(crate) naming: Naming,
    /// None if its matrices are stored plainly, as `Stored` says.
    pub(crate) quantisation: Option<Quantisation>,
    /// The files that the tensors lie in.
    pub(crate) files: Vec<Mapped>,
}

/// The files that `text` reads.
#[derive(Default)]
pub struct TextFiles {
    /// The tokenizer; optional, since token ids alone need none.
    pub tokenizer: Option<TokenizerSource>,
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<Cow<'static, [u8]>>,
    /// `generation_config.json`, or what a GGUF says of sampling in its form.
    pub generation_config: Option<Cow<'static, [u8]>>,
    /// `chat_template.jinja`, which takes precedence over the template in `tokenizer_config.json`; or a GGUF's.
    pub chat_template: Option<Cow<'static, [u8]>>,
}

/// Where a tokenizer comes from.
pub enum TokenizerSource {
    /// `tokenizer.json`.
    Json(Cow<'static, [u8]>),
    /// A GGUF's metadata.
    Vocabulary(Vocabulary),
    /// A GGUF's of an unsupported kind: the reason, in a sentence.
    Unknown(String),
}

/// How the tensors are named.
#[derive(Clone, Copy)]
pub(crate) enum Naming {
    /// `model.layers.0.mlp.experts.7.up_proj.weight`: one tensor per matrix, with the family's names.
    HuggingFace(&'static Family),
    /// `blk.0.ffn_up_exps.weight`: all experts of a layer in one tensor.
    Gguf(&'static GgufForm),
}

/// A tensor in a file.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) file: String,
    pub(crate) stored: Stored,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Bytes,
}

/// The type of a tensor's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// Weights, single or in blocks along the last dimension.
    Weights(WeightFormat),
    /// Another type, by its name in the file.
    Other(String),
}

impl Checkpoint {
    /// Total bytes of all tensors.
    pub fn weight_bytes(&self) -> u64 {
        self.tensors.values().map(|tensor| tensor.bytes.len() as u64).sum()
    }

    /// The tensor with Hugging Face's `name`, or that part of a larger one.
    pub(crate) fn tensor(&self, name: &str) -> Result<Tensor, ModelError> {
        let missing = |tensor: String| ModelError::MissingTensor { tensor };
        let (own_name, expert) = match self.naming {
            Naming::HuggingFace(family) => (family.own_name(name), None),
            Naming::Gguf(form) => names::of_gguf(form, name).ok_or_else(|| missing(name.to_owned()))?,
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
    /// Index `at` of the first dimension, mapped in place.
    pub(crate) fn slice(&self, at: usize) -> Option<Self> {
        let (n, shape) = self.shape.split_first()?;
        let each = self.bytes.len().checked_div(*n)?;
        let bytes = (at < *n).then(|| self.bytes.slice(at * each..(at + 1) * each))?;
        Some(Self { shape: shape.to_vec(), bytes, ..self.clone() })
    }
}
