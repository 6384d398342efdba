//! Writes a store: every file as `.part`, then renamed, the manifest last.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use moex_kernels::ExpertShape;
use moex_protocol::{Block, ExpertId, LayerId};
use serde_json::{Map, Value, json};

use super::manifest::{self, BlockEntry, Identity, Manifest, layer_file};
use super::{ExpertSource, ShardError, load};

/// The data of a safetensors file begins at a multiple of this, and so does every block in it.
const DATA_ALIGN: usize = 64;

/// Packs every expert of `source` into `folder`. The caller holds the folder's lock.
pub(super) fn pack(
    folder: &Path,
    source: &dyn ExpertSource,
    identity: &Identity,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<(), ShardError> {
    let io_error = |path: &Path, source| ShardError::Io { path: path.to_owned(), source };
    // From here on the folder is half-written until the new manifest stands.
    for stale in [manifest::FILE_NAME, load::STAMPS_FILE] {
        let path = folder.join(stale);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_error(&path, error)),
            Ok(()) | Err(_) => {}
        }
    }
    let total = identity.blocks().count();
    let mut blocks = Vec::with_capacity(total);
    for entry in &identity.layers {
        let path = folder.join(layer_file(entry.layer));
        let done = blocks.len();
        let shape = identity.shape(entry);
        let layer =
            Layer { layer: entry.layer, n_experts: entry.n_experts, shape, block_bytes: shape.block_bytes() };
        write_renamed(&path, |out| layer.write(out, source, &mut blocks, &|n| progress(done + n, total)))
            .map_err(|error| match error {
                WriteError::Io(error) => io_error(&path, error),
                WriteError::Source(block, reason) => ShardError::Source { block, reason },
            })?;
        source.release();
    }
    let manifest = Manifest { model: source.name().to_owned(), identity: identity.clone(), blocks };
    let path = folder.join(manifest::FILE_NAME);
    write_renamed(&path, |out| {
        serde_json::to_writer(&mut *out, &manifest).map_err(io::Error::from)?;
        Ok(())
    })
    .map_err(|error| match error {
        WriteError::Io(error) => io_error(&path, error),
        WriteError::Source(block, reason) => ShardError::Source { block, reason },
    })?;
    load::write_stamps(folder, &manifest);
    Ok(())
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

/// Writes `path.part` to the disk, then gives it its name.
fn write_renamed(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<(), WriteError>,
) -> Result<(), WriteError> {
    let part = path.with_extension("part");
    let mut out = BufWriter::with_capacity(1 << 20, File::create(&part)?);
    write(&mut out)?;
    let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    fs::rename(&part, path)?;
    Ok(())
}

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
        // As many experts in memory as there are threads, and no more: one can be tens of megabytes.
        let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
        let experts: Vec<u16> = (0..self.n_experts).collect();
        for experts in experts.chunks(n_threads) {
            for (expert, packed) in experts.iter().zip(self.pack_all(experts, source)) {
                let block = self.block(*expert);
                let (bytes, hash) = packed.map_err(|reason| WriteError::Source(block, reason))?;
                out.write_all(&bytes)?;
                let start = (data_start + usize::from(*expert) * self.block_bytes) as u64;
                entries.push(BlockEntry {
                    layer: self.layer,
                    expert: *expert,
                    file: layer_file(self.layer),
                    start,
                    end: start + self.block_bytes as u64,
                    blake3: hash,
                });
                progress(usize::from(*expert) + 1);
            }
        }
        Ok(())
    }

    /// Each of these experts' bytes with their hash, a thread each.
    fn pack_all(&self, experts: &[u16], source: &dyn ExpertSource) -> Vec<Result<(Vec<u8>, String), String>> {
        let pack = |expert: u16| {
            let bytes = source.pack(self.block(expert), &self.shape)?;
            if bytes.len() != self.block_bytes {
                return Err(format!("it has {} bytes, not {}", bytes.len(), self.block_bytes));
            }
            let hash = blake3::hash(&bytes).to_hex().to_string();
            Ok((bytes, hash))
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = experts.iter().map(|expert| scope.spawn(move || pack(*expert))).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|_| Err("packing it panicked".to_owned()))
            };
            threads.into_iter().map(join).collect()
        })
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
