//! Writes a store: every file as `.part`, then renamed, the manifest last.
//!
//! Layers are written in the order in which a step uses them. All cores pack, blocks are written in order, and while
//! the disk syncs one layer the next is packed.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use moex_kernels::ExpertShape;
use moex_model::mapped;
use moex_protocol::{Block, ExpertId, LayerId};
use serde_json::{Map, Value, json};

use super::manifest::{self, BlockEntry, Identity, Manifest, layer_file};
use super::{ExpertSource, ShardError, load};

/// Alignment of a safetensors file's data, and of every block in it.
const DATA_ALIGN: usize = 64;

/// Packs every expert of `source` into `folder`. The caller holds the folder's lock.
pub(super) fn pack(
    folder: &Path,
    source: &dyn ExpertSource,
    identity: &Identity,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<(), ShardError> {
    let io_error = |path: &Path, source| ShardError::Io { path: path.to_owned(), source };
    // From here on the folder is incomplete until the new manifest is written.
    for stale in [manifest::FILE_NAME, load::STAMPS_FILE] {
        let path = folder.join(stale);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_error(&path, error)),
            Ok(()) | Err(_) => {}
        }
    }
    let total = identity.blocks().count();
    let mut blocks = Vec::with_capacity(total);
    let settled = |path: &Path, error| match error {
        WriteError::Io(error) => io_error(path, error),
        WriteError::Source(block, reason) => ShardError::Source { block, reason },
    };
    thread::scope(|scope| {
        // The previous layer: written, and being synced.
        let mut before: Option<thread::ScopedJoinHandle<'_, Result<(), ShardError>>> = None;
        for entry in &identity.layers {
            let path = folder.join(layer_file(entry.layer));
            let done = blocks.len();
            let shape = identity.shape(entry);
            let block_bytes = shape.block_bytes();
            let layer = Layer { layer: entry.layer, n_experts: entry.n_experts, shape, block_bytes };
            let part = Part::write(&path, |out| {
                layer.write(out, source, &mut blocks, &|n| progress(done + n, total))
            })
            .map_err(|error| settled(&path, error))?;
            source.release();
            before.take().map_or(Ok(()), join)?;
            before = Some(scope.spawn(move || part.rename().map_err(|error| io_error(&path, error))));
        }
        before.take().map_or(Ok(()), join)
    })?;
    // What a file that was cut short no longer has would be packed as zeros.
    mapped::check()?;
    let manifest = Manifest { model: source.name().to_owned(), identity: identity.clone(), blocks };
    let path = folder.join(manifest::FILE_NAME);
    let part =
        Part::write(&path, |out| Ok(serde_json::to_writer(&mut *out, &manifest).map_err(io::Error::from)?))
            .map_err(|error| settled(&path, error))?;
    part.rename().map_err(|error| io_error(&path, error))?;
    load::write_stamps(folder, &manifest);
    Ok(())
}

fn join(writing: thread::ScopedJoinHandle<'_, Result<(), ShardError>>) -> Result<(), ShardError> {
    writing.join().expect("renaming a file does not panic")
}

enum WriteError {
    Io(io::Error),
    Source(Block, String),
}

impl From<io::Error> for WriteError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A file that is not renamed yet.
struct Part {
    file: File,
    part: PathBuf,
    path: PathBuf,
}

impl Part {
    /// Writes `path.part`.
    fn write(
        path: &Path,
        write: impl FnOnce(&mut BufWriter<File>) -> Result<(), WriteError>,
    ) -> Result<Self, WriteError> {
        let part = path.with_extension("part");
        let mut out = BufWriter::with_capacity(1 << 20, File::create(&part)?);
        write(&mut out)?;
        let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok(Self { file, part, path: path.to_owned() })
    }

    /// Waits until the file is on disk, then renames it.
    fn rename(self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.part, &self.path)
    }
}

/// A block's bytes, and their BLAKE3 in hex.
type Packed = (Vec<u8>, String);

/// A layer's file.
struct Layer {
    layer: u16,
    n_experts: u16,
    shape: ExpertShape,
    block_bytes: usize,
}

impl Layer {
    fn write(
        &self,
        out: &mut impl Write,
        source: &dyn ExpertSource,
        entries: &mut Vec<BlockEntry>,
        progress: &dyn Fn(usize),
    ) -> Result<(), WriteError> {
        let header = self.header();
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        let data_start = 8 + header.len();
        thread::scope(|scope| {
            let packers = self.packers(scope, source);
            for (expert, packed) in (0..self.n_experts).zip(packers.iter().cycle()) {
                let packed = packed.recv().unwrap_or_else(|_| Err("packing it panicked".to_owned()));
                let block = self.block(expert);
                let (bytes, hash) = packed.map_err(|reason| WriteError::Source(block, reason))?;
                out.write_all(&bytes)?;
                let start = (data_start + usize::from(expert) * self.block_bytes) as u64;
                entries.push(BlockEntry {
                    layer: self.layer,
                    expert,
                    file: layer_file(self.layer),
                    start,
                    end: start + self.block_bytes as u64,
                    blake3: hash,
                });
                progress(usize::from(expert) + 1);
            }
            Ok(())
        })
    }

    /// Starts a thread per core: of N threads, number i packs the experts i, i + N, i + 2N, ... and stays at most two
    /// ahead of the writer, since an expert can be tens of megabytes.
    fn packers<'scope, 'env>(
        &'env self,
        scope: &'scope thread::Scope<'scope, 'env>,
        source: &'env dyn ExpertSource,
    ) -> Vec<Receiver<Result<Packed, String>>> {
        let n_threads = thread::available_parallelism().map_or(1, usize::from);
        let start = |first: usize| {
            let (sender, packed) = sync_channel(1);
            scope.spawn(move || {
                for expert in (first as u16..self.n_experts).step_by(n_threads) {
                    // After a failure, nothing more is received.
                    if sender.send(self.pack(expert, source)).is_err() {
                        return;
                    }
                }
            });
            packed
        };
        (0..n_threads).map(start).collect()
    }

    /// Packs an expert and hashes it.
    fn pack(&self, expert: u16, source: &dyn ExpertSource) -> Result<Packed, String> {
        let bytes = source.pack(self.block(expert), &self.shape)?;
        if bytes.len() != self.block_bytes {
            return Err(format!("it has {} bytes, not {}", bytes.len(), self.block_bytes));
        }
        let hash = blake3::hash(&bytes).to_hex().to_string();
        Ok((bytes, hash))
    }

    /// The safetensors header, padded with spaces so that the data is aligned.
    fn header(&self) -> Vec<u8> {
        let mut tensors = Map::new();
        for expert in 0..usize::from(self.n_experts) {
            let (start, end) = (expert * self.block_bytes, (expert + 1) * self.block_bytes);
            let tensor = json!({ "dtype": "U8", "shape": [self.block_bytes], "data_offsets": [start, end] });
            tensors.insert(format!("layers.{}.experts.{expert}", self.layer), tensor);
        }
        let mut header = Value::Object(tensors).to_string().into_bytes();
        let end = (8 + header.len()).next_multiple_of(DATA_ALIGN) - 8;
        header.resize(end, b' ');
        header
    }

    fn block(&self, expert: u16) -> Block {
        Block { layer: LayerId(self.layer), expert: ExpertId(expert) }
    }
}
