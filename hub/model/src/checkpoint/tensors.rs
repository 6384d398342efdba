//! What an opened checkpoint is: its spec, its text's files, and its tensors by name.
//!
//! Tensors are asked for by the names that most families share ([`crate::families`]); what the folder's family or a GGUF
//! calls them is found here.

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
    /// What it is called: the folder's or the file's name, or "moex-demo".
    pub name: String,
    /// What `config.json` says of the model, or a GGUF's metadata.
    pub spec: ModelSpec,
    /// Tokenizer, chat template and generation.
    pub text: TextFiles,
    /// What its texts look like.
    pub output: OutputFormat,
    pub(crate) tensors: HashMap<String, Tensor>,
    pub(crate) naming: Naming,
    /// None if its matrices are as `Stored` says.
    pub(crate) quantisation: Option<Quantisation>,
    /// The files that the tensors lie in.
    pub(crate) files: Vec<Mapped>,
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
    /// A GGUF's, of a kind that is not known: why, in a sentence.
    Unknown(String),
}

/// What the tensors are called.
#[derive(Clone, Copy)]
pub(crate) enum Naming {
    /// `model.layers.0.mlp.experts.7.up_proj.weight`: a tensor for each matrix, named as the family does.
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

/// What a tensor's bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// Weights, each by itself or in blocks along the last dimension.
    Weights(WeightFormat),
    /// Something else, by the name that its file gives it.
    Other(String),
}

impl Checkpoint {
    /// Bytes of all tensors.
    pub fn weight_bytes(&self) -> u64 {
        self.tensors.values().map(|tensor| tensor.bytes.len() as u64).sum()
    }

    /// The tensor that Hugging Face calls `name`, or that part of a larger one.
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
    /// Index `at` of the first dimension, where it lies.
    pub(super) fn slice(&self, at: usize) -> Option<Self> {
        let (n, shape) = self.shape.split_first()?;
        let each = self.bytes.len().checked_div(*n)?;
        let bytes = (at < *n).then(|| self.bytes.slice(at * each..(at + 1) * each))?;
        Some(Self { shape: shape.to_vec(), bytes, ..self.clone() })
    }
}
