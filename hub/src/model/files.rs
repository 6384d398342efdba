//! A checkpoint's files: a Hugging Face folder, or the demo model inside this binary.
//!
//! Shards are mapped, never read whole; what a tensor's bytes mean is `weights`'s. Every shard's header is checked against
//! its file when the checkpoint is opened, so that a broken download is found before anything is computed.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    fs::{self, File},
    path::Path,
};

use bytes::Bytes;
use safetensors::{Dtype, tensor::Metadata};
use serde::Deserialize;

use super::{config::Config, demo, error::ModelError};

/// The longest header of a shard that is read, safetensors' own limit.
const MAX_HEADER_BYTES: usize = 100_000_000;
/// The largest JSON or template file that is read.
const MAX_TEXT_FILE_BYTES: u64 = 256 << 20;

const CONFIG: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// An opened checkpoint.
pub struct Checkpoint {
    /// What it is called: the folder's name, or "moex-demo".
    pub name: String,
    /// What `config.json` says.
    pub config: Config,
    /// The files of tokenizer, chat template and generation.
    pub text: TextFiles,
    tensors: HashMap<String, Tensor>,
}

/// The files that `text` reads, as they are.
pub struct TextFiles {
    /// `tokenizer.json`; what needs only token ids does without.
    pub tokenizer: Option<Cow<'static, [u8]>>,
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<Cow<'static, [u8]>>,
    /// `generation_config.json`.
    pub generation_config: Option<Cow<'static, [u8]>>,
    /// `chat_template.jinja`, which comes before the template in `tokenizer_config.json`.
    pub chat_template: Option<Cow<'static, [u8]>>,
}

/// A tensor in a shard.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub(super) file: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: Bytes,
}

impl Checkpoint {
    /// Opens a folder with `config.json` and `model.safetensors`, or shards with their index.
    ///
    /// # Errors
    /// The file that is missing, truncated or no such file, with the tensor it holds where that is known.
    pub fn open(folder: &Path) -> Result<Self, ModelError> {
        let config = require(folder, CONFIG)?;
        let config = Config::from_json(&config)
            .map_err(|source| ModelError::Config { path: folder.join(CONFIG), source })?;
        let text = TextFiles {
            tokenizer: read(folder, "tokenizer.json")?.map(Into::into),
            tokenizer_config: read(folder, "tokenizer_config.json")?.map(Into::into),
            generation_config: read(folder, "generation_config.json")?.map(Into::into),
            chat_template: read(folder, "chat_template.jinja")?.map(Into::into),
        };
        let mut tensors = HashMap::new();
        for (file, first) in shard_files(folder)? {
            let path = folder.join(&file);
            let bytes = map(&path).map_err(|source| match source.kind() {
                std::io::ErrorKind::NotFound => {
                    ModelError::MissingShard { file: file.clone(), tensor: first.clone() }
                }
                _ => ModelError::Io { path, source },
            })?;
            read_shard(&file, &first, &bytes, &mut tensors)?;
        }
        let name = folder.canonicalize().ok();
        let name =
            name.as_deref().unwrap_or(folder).file_name().map(|name| name.to_string_lossy().into_owned());
        Ok(Self { name: name.unwrap_or_else(|| "model".to_owned()), config, text, tensors })
    }

    /// The demo model that every hub carries.
    ///
    /// # Errors
    /// None unless this binary was built from broken files.
    pub fn demo() -> Result<Self, ModelError> {
        let config = Config::from_json(demo::CONFIG)
            .map_err(|source| ModelError::Config { path: CONFIG.into(), source })?;
        let text = TextFiles {
            tokenizer: Some(demo::TOKENIZER.into()),
            tokenizer_config: Some(demo::TOKENIZER_CONFIG.into()),
            generation_config: Some(demo::GENERATION_CONFIG.into()),
            chat_template: None,
        };
        let mut tensors = HashMap::new();
        for (file, bytes) in demo::SHARDS {
            read_shard(file, "its header", &Bytes::from_static(bytes), &mut tensors)?;
        }
        Ok(Self { name: demo::NAME.to_owned(), config, text, tensors })
    }

    /// Bytes of all tensors.
    pub fn weight_bytes(&self) -> u64 {
        self.tensors.values().map(|tensor| tensor.bytes.len() as u64).sum()
    }

    pub(super) fn tensor(&self, name: &str) -> Result<&Tensor, ModelError> {
        self.tensors.get(name).ok_or_else(|| ModelError::MissingTensor { tensor: name.to_owned() })
    }
}

/// The shards' file names, each with the first tensor that the index places in it.
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
            return Err(bad(format!("{tensor} lies in {file:?}, which is no file name")));
        }
        files.entry(file).or_insert(tensor);
    }
    Ok(files)
}

/// Adds a shard's tensors. `first` names a tensor in it for when the header cannot.
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
        return Err(bad(format!("no safetensors file: its header would have {header_bytes} bytes")));
    }
    let header = rest.get(..header_bytes).ok_or_else(|| truncated(first, 8 + header_bytes))?;
    let metadata: Metadata =
        serde_json::from_slice(header).map_err(|error| bad(format!("no safetensors file: {error}")))?;
    // In the order of their bytes, so that a truncated file is blamed on the first tensor it cuts.
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
            dtype: info.dtype,
            shape: info.shape.clone(),
            bytes: bytes.slice(start..end),
        };
        tensors.insert(name, tensor);
    }
    Ok(())
}

fn map(path: &Path) -> std::io::Result<Bytes> {
    let file = File::open(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: the mapping is read only. Shards are written once and renamed into place; one that somebody truncates while
    // it is mapped ends this process, as with every program that maps its model.
    let map = unsafe { memmap2::Mmap::map(&file)? };
    Ok(Bytes::from_owner(map))
}

fn require(folder: &Path, name: &'static str) -> Result<Vec<u8>, ModelError> {
    read(folder, name)?.ok_or_else(|| ModelError::NotAModel { path: folder.to_owned(), missing: name })
}

/// The file's bytes, `None` if there is no such file.
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
