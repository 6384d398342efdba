//! Opens a Hugging Face folder: `config.json`, safetensors in one file or in shards with an index, and the tokenizer's
//! files.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::Path,
};

use bytes::Bytes;
use moex_kernels::WeightFormat;
use safetensors::{Dtype, tensor::Metadata};
use serde::Deserialize;

use super::{
    demo,
    quantisation::Quantisation,
    tensors::{Checkpoint, Naming, Stored, Tensor, TextFiles, TokenizerSource},
};
use crate::{error::ModelError, families::Family, mapped::Mapped};

/// Maximum bytes of a shard's header, safetensors' own limit.
const MAX_HEADER_BYTES: usize = 100_000_000;
/// Maximum bytes of a JSON or template file.
const MAX_TEXT_FILE_BYTES: u64 = 256 << 20;

const CONFIG: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// Opens a folder.
pub(super) fn open(folder: &Path) -> Result<Checkpoint, ModelError> {
    let json = require(folder, CONFIG)?;
    let in_config = |source| ModelError::Config { path: folder.join(CONFIG), source };
    let (family, spec) = Family::read(&json).map_err(in_config)?;
    let quantize_config = read(folder, "quantize_config.json")?;
    let quantisation = Quantisation::read(&json, quantize_config.as_deref()).map_err(in_config)?;
    let text = TextFiles {
        tokenizer: read(folder, "tokenizer.json")?.map(|json| TokenizerSource::Json(json.into())),
        tokenizer_config: read(folder, "tokenizer_config.json")?.map(Into::into),
        generation_config: read(folder, "generation_config.json")?.map(Into::into),
        chat_template: read(folder, "chat_template.jinja")?.map(Into::into),
    };
    let (mut tensors, mut files) = (HashMap::new(), Vec::new());
    for (file, first) in shard_files(folder)? {
        let path = folder.join(&file);
        let mapped = Mapped::open(&path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => {
                ModelError::MissingShard { file: file.clone(), tensor: first.clone() }
            }
            _ => ModelError::Io { path, source },
        })?;
        read_shard(&file, &first, &mapped.bytes(), &mut tensors)?;
        files.push(mapped);
    }
    let name = model_name(&folder.canonicalize().unwrap_or_else(|_| folder.to_owned()));
    let (naming, output) = (Naming::HuggingFace(family), family.output);
    Ok(Checkpoint { name, spec, text, output, tensors, naming, quantisation, files })
}

/// The folder's name; in Hugging Face's cache, where that is a commit, the repository's:
/// `models--OWNER--REPO/snapshots/COMMIT`.
fn model_name(folder: &Path) -> String {
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let cached = || {
        let snapshots = folder.parent().filter(|parent| parent.ends_with("snapshots"))?;
        let repo = name(snapshots.parent()?)?;
        Some(repo.strip_prefix("models--")?.rsplit("--").next()?.to_owned())
    };
    cached().or_else(|| name(folder)).unwrap_or_else(|| "model".to_owned())
}

/// Opens the demo model inside this binary.
pub(super) fn demo() -> Result<Checkpoint, ModelError> {
    let (family, spec) =
        Family::read(demo::CONFIG).map_err(|source| ModelError::Config { path: CONFIG.into(), source })?;
    let text = TextFiles {
        tokenizer: Some(TokenizerSource::Json(demo::TOKENIZER.into())),
        tokenizer_config: Some(demo::TOKENIZER_CONFIG.into()),
        generation_config: Some(demo::GENERATION_CONFIG.into()),
        chat_template: None,
    };
    let mut tensors = HashMap::new();
    for (file, bytes) in demo::SHARDS {
        read_shard(file, "its header", &Bytes::from_static(bytes), &mut tensors)?;
    }
    let (name, naming) = (demo::NAME.to_owned(), Naming::HuggingFace(family));
    let output = family.output;
    Ok(Checkpoint { name, spec, text, output, tensors, naming, quantisation: None, files: Vec::new() })
}

/// File names of the shards, each with the first tensor that the index places in it.
fn shard_files(folder: &Path) -> Result<BTreeMap<String, String>, ModelError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let Some(index) = read(folder, INDEX)? else {
        if !folder.join(SINGLE).exists() {
            return Err(ModelError::NotAModel { path: folder.to_owned(), missing: SINGLE });
        }
        return Ok(BTreeMap::from([(SINGLE.to_owned(), "its header".to_owned())]));
    };
    let bad = |reason: String| ModelError::BadFile { file: INDEX.to_owned(), reason };
    let index: Index =
        serde_json::from_slice(&index).map_err(|error| bad(format!("not an index: {error}")))?;
    let mut files = BTreeMap::new();
    for (tensor, file) in index.weight_map {
        // A name that is a path would read outside the model's folder.
        if Path::new(&file).file_name().is_none_or(|name| name != file.as_str()) {
            return Err(bad(format!("{tensor} lies in {file:?}, which is not a file name")));
        }
        files.entry(file).or_insert(tensor);
    }
    Ok(files)
}

/// Adds a shard's tensors. `first` is a tensor in it, for errors when the header is unreadable.
/// The tensors of a file's bytes, for the fuzz target.
pub(crate) fn tensors_of(bytes: &Bytes) -> Option<Vec<Tensor>> {
    let mut tensors = HashMap::new();
    read_shard(SINGLE, "", bytes, &mut tensors).ok()?;
    Some(tensors.into_values().collect())
}

fn read_shard(
    file: &str,
    first: &str,
    bytes: &Bytes,
    tensors: &mut HashMap<String, Tensor>,
) -> Result<(), ModelError> {
    let bad = |reason: String| ModelError::BadFile { file: file.to_owned(), reason };
    let truncated = |tensor: &str, end: usize| ModelError::TruncatedShard {
        file: file.to_owned(),
        tensor: tensor.to_owned(),
        end: end as u64,
        len: bytes.len() as u64,
    };
    let (length, rest) = bytes.split_first_chunk::<8>().ok_or_else(|| truncated(first, 8))?;
    let header_bytes = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    if header_bytes > MAX_HEADER_BYTES {
        return Err(bad(format!("not a safetensors file: its header would have {header_bytes} bytes")));
    }
    let header = rest.get(..header_bytes).ok_or_else(|| truncated(first, 8 + header_bytes))?;
    let metadata: Metadata =
        serde_json::from_slice(header).map_err(|error| bad(format!("not a safetensors file: {error}")))?;
    // In byte order, so that a truncated file is reported with the first tensor that it cuts.
    for name in metadata.offset_keys() {
        let Some(info) = metadata.info(&name) else { continue };
        let (start, end) = info.data_offsets;
        let (start, end) = (start.saturating_add(8 + header_bytes), end.saturating_add(8 + header_bytes));
        if end > bytes.len() {
            return Err(truncated(&name, end));
        }
        if start > end {
            return Err(bad(format!("{name} ends before it starts")));
        }
        let tensor = Tensor {
            file: file.to_owned(),
            stored: stored(info.dtype),
            shape: info.shape.clone(),
            bytes: bytes.slice(start..end),
        };
        tensors.insert(name, tensor);
    }
    Ok(())
}

fn stored(dtype: Dtype) -> Stored {
    match dtype {
        Dtype::BF16 => Stored::Weights(WeightFormat::Bf16),
        Dtype::F16 => Stored::Weights(WeightFormat::F16),
        Dtype::F32 => Stored::Weights(WeightFormat::F32),
        other => Stored::Other(format!("{other:?}")),
    }
}

fn require(folder: &Path, name: &'static str) -> Result<Vec<u8>, ModelError> {
    read(folder, name)?.ok_or_else(|| ModelError::NotAModel { path: folder.to_owned(), missing: name })
}

/// The file's bytes, `None` if the file does not exist.
fn read(folder: &Path, name: &str) -> Result<Option<Vec<u8>>, ModelError> {
    let path = folder.join(name);
    match fs::metadata(&path) {
        Ok(metadata) if metadata.len() > MAX_TEXT_FILE_BYTES => Err(ModelError::BadFile {
            file: name.to_owned(),
            reason: format!("{} bytes are too many", metadata.len()),
        }),
        _ => match fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(source) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(ModelError::Io { path, source }),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_of_the_cache_is_called_as_its_repository_is() {
        for (folder, name) in [
            ("/models/Qwen3-30B-A3B", "Qwen3-30B-A3B"),
            ("/hub/models--Qwen--Qwen3-30B-A3B/snapshots/0123abc", "Qwen3-30B-A3B"),
            ("/hub/other/snapshots/0123abc", "0123abc"),
            ("/snapshots/0123abc", "0123abc"),
            ("/", "model"),
        ] {
            assert_eq!(model_name(Path::new(folder)), name, "{folder}");
        }
    }
}
