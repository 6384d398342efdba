//! Opens a GGUF as a checkpoint: maps its tensors' names, and converts its metadata to what a folder's files contain.
//!
//! GGUF lists a tensor's columns first; here rows come first. llama.cpp's changes to a family's values are undone when
//! a tensor is read (`rearranged`). A file with an unsupported tensor is refused.

mod keys;
mod layout;
pub(super) mod rearranged;
mod sampling;

pub(crate) use keys::spec;
pub use layout::{GgufTensor, tensors, write_keys};

use std::{
    collections::{HashMap, HashSet},
    path::Path,
};

use moex_kernels::{MatrixView, cpu::RopeScaling};

use serde_json::json;

use super::{
    inventory,
    names::{self, HEAD, InLayer, ROPE_FACTORS, TOKEN_EMBEDDING},
    tensors::{Checkpoint, Naming, Stored, Tensor, TextFiles, TokenizerSource},
};
use crate::{
    error::ModelError,
    families::{Change, FromTensors, GgufForm},
    gguf::{self, Gguf, GgufError, Vocabulary},
    mapped::Mapped,
    spec::ModelSpec,
};

/// Opens a GGUF: one file, or all files of a split one; `path` is any of them.
pub(super) fn open(path: &Path) -> Result<Checkpoint, ModelError> {
    let (mut tensors, mut files) = (HashMap::new(), Vec::new());
    let mut header = None;
    let paths = gguf::shards(path);
    for path in &paths {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mapped = Mapped::open(path).map_err(|source| ModelError::Io { path: path.clone(), source })?;
        let bytes = mapped.bytes();
        files.push(mapped);
        let wrong = |source: GgufError| ModelError::Gguf { file: file.clone(), source };
        let parsed = Gguf::parse(&bytes).map_err(wrong)?;
        for tensor in parsed.tensors() {
            let stored = Tensor {
                file: file.clone(),
                stored: Stored::Weights(tensor.format),
                shape: tensor.shape.clone(),
                bytes: bytes.slice(tensor.bytes.clone()),
            };
            if tensors.insert(tensor.name.to_owned(), stored).is_some() {
                return Err(wrong(GgufError::Duplicate(tensor.name.to_owned())));
            }
        }
        check_split(&parsed, paths.len()).map_err(wrong)?;
        // The first file of a split model holds all metadata.
        header.get_or_insert((file, bytes));
    }
    let Some((file, bytes)) = header else { return Err(ModelError::NotAGguf { path: path.to_owned() }) };
    let wrong = |source: GgufError| ModelError::Gguf { file: file.clone(), source };
    let parsed = Gguf::parse(&bytes).map_err(wrong)?;
    let (family, form, spec) = spec(&parsed, &from_tensors(&tensors)?)
        .map_err(|source| ModelError::Config { path: file.clone().into(), source })?;
    let expected = expected(form, &spec);
    if let Some((tensor, stored)) = tensors.iter().find(|(name, _)| !is_known(name, &expected, &spec)) {
        let (file, tensor) = (stored.file.clone(), tensor.clone());
        return Err(ModelError::UnknownTensor { file, tensor, architecture: form.architecture });
    }
    let text = text_files(&parsed).map_err(wrong)?;
    let (name, naming) = (model_name(&paths[0]), Naming::Gguf(form));
    let output = family.output;
    Ok(Checkpoint { name, spec, text, output, tensors, naming, quantisation: None, files })
}

/// What the tensors reveal about the model.
fn from_tensors(tensors: &HashMap<String, Tensor>) -> Result<FromTensors, ModelError> {
    let embedding = tensors.get(TOKEN_EMBEDDING).and_then(|tensor| tensor.shape.first());
    let vocab = *embedding.ok_or_else(|| ModelError::MissingTensor { tensor: TOKEN_EMBEDDING.to_owned() })?;
    let factors = tensors.get(ROPE_FACTORS).and_then(|tensor| {
        let Stored::Weights(format) = tensor.stored else { return None };
        let n = tensor.shape.iter().try_fold(1, |all: usize, n| all.checked_mul(*n))?;
        Some(MatrixView::new(format, 1, n, &tensor.bytes).ok()?.dequantize())
    });
    Ok(FromTensors {
        vocab,
        tied_head: !tensors.contains_key(HEAD),
        has_attention_bias: tensors.contains_key("blk.0.attn_q.bias"),
        rope_factors: factors,
    })
}

/// Names of all tensors of a model with this spec, in llama.cpp's form.
fn expected(form: &'static GgufForm, spec: &ModelSpec) -> HashSet<String> {
    let mut expected = HashSet::new();
    for name in inventory::names(spec) {
        expected.extend(names::of_gguf(form, &name).map(|(own, _)| own));
        let Some(InLayer { layer, part, .. }) = InLayer::of(&name) else { continue };
        let parts = form.change(&part).map_or(&[][..], Change::parts);
        expected.extend(parts.iter().map(|part| format!("blk.{layer}.{part}.weight")));
    }
    if spec.attentions().any(|attention| matches!(attention.rope.scaling, Some(RopeScaling::Factors(_)))) {
        expected.insert(ROPE_FACTORS.to_owned());
    }
    expected
}

/// Whether a tensor is expected, or belongs to the multi-token-prediction layers after the model's own.
fn is_known(name: &str, expected: &HashSet<String>, spec: &ModelSpec) -> bool {
    let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
    layer.is_some_and(|layer| layer >= spec.layers.len()) || expected.contains(name)
}

/// Checks the number of files that a split model states.
fn check_split(gguf: &Gguf<'_>, n_files: usize) -> Result<(), GgufError> {
    let key = "split.count";
    match gguf.integer(key)? {
        Some(n) if n as usize != n_files.max(1) && n > 0 => Err(GgufError::WrongValue {
            key: key.to_owned(),
            expected: "the number of files: name one that ends in -00001-of-0000N.gguf, beside the others",
        }),
        _ => Ok(()),
    }
}

/// The metadata for tokenizer and chat template, as a folder's files.
fn text_files(gguf: &Gguf<'_>) -> Result<TextFiles, GgufError> {
    let vocabulary = match Vocabulary::read(gguf) {
        Ok(Some(vocabulary)) => vocabulary,
        Ok(None) => return Ok(TextFiles::default()),
        // The model still runs on token ids.
        Err(reason) => {
            let tokenizer = Some(TokenizerSource::Unknown(reason.to_string()));
            return Ok(TextFiles { tokenizer, ..TextFiles::default() });
        }
    };
    let token = |id: Option<u32>| id.map(|id| vocabulary.tokens[id as usize].as_str());
    let special = json!({
        "bos_token": token(vocabulary.bos),
        "eos_token": token(vocabulary.eos),
        "pad_token": token(vocabulary.pad),
    });
    let template = gguf.text("tokenizer.chat_template")?;
    Ok(TextFiles {
        tokenizer_config: Some(special.to_string().into_bytes().into()),
        generation_config: sampling::generation_config(gguf)?.map(Into::into),
        chat_template: template.map(|template| template.as_bytes().to_vec().into()),
        tokenizer: Some(TokenizerSource::Vocabulary(vocabulary)),
    })
}

/// The model's name: the first file's name without its suffix.
fn model_name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    match stem.split_once("-00001-of-") {
        Some((name, _)) => name.to_owned(),
        None => stem.into_owned(),
    }
}
