//! Maps a store after checking that it is complete and of the right weights.
//!
//! Lengths and ranges are always checked. Hashes are checked unless every file has the length and modification time of
//! its last successful check, since reading the store of a large model takes minutes. Blocks that the hub itself
//! computes with are then checked on first use ([`ShardStore::block`]).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::UNIX_EPOCH;

use moex_kernels::ExpertShape;
use moex_protocol::{Block, ExpertId, LayerId};
use serde::{Deserialize, Serialize};

use super::manifest::{self, Identity, Manifest};
use super::{ShardFile, ShardStore, StoredBlock};
use moex_model::mapped::Mapped;

/// File beside the manifest with the stamps of the last successful check.
pub(super) const STAMPS_FILE: &str = "verified.json";

/// Maximum bytes of a manifest: some 200 bytes per block, 128 layers of 512 experts.
const MAX_MANIFEST_BYTES: u64 = 32 << 20;

/// A file's length and modification time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    bytes: u64,
    modified_nanos: u128,
}

/// Opens the store in `folder`, or returns why it cannot be used.
pub(super) fn load(folder: &Path, wanted: &Identity) -> Result<ShardStore, String> {
    let manifest = read_manifest(folder)?;
    if manifest.identity != *wanted {
        return Err("the manifest is for other weights, another format or another version".to_owned());
    }
    let shapes = shapes(wanted);
    let (mut files, blocks) = read(&manifest, wanted, |name| map(folder, name))?;
    for (at, file) in files.iter_mut().enumerate() {
        let mut hasher = blake3::Hasher::new();
        for block in blocks.iter().filter(|block| block.file == at) {
            hasher.update(block.blake3.as_bytes());
        }
        file.version = hasher.finalize().to_hex()[..32].to_owned();
    }
    let right = blocks.iter().map(|_| AtomicBool::new(false)).collect();
    let store =
        ShardStore { shapes, panels: None, files, blocks, right, folder: folder.to_owned(), first_asked: 0 };
    if read_stamps(folder).is_none_or(|stamps| stamps != current_stamps(folder, &manifest)) {
        verify(&store)?;
        write_stamps(folder, &manifest);
    }
    Ok(store)
}

/// The experts' shapes, by layer.
fn shapes(identity: &Identity) -> BTreeMap<u16, ExpertShape> {
    identity.layers.iter().map(|entry| (entry.layer, identity.shape(entry))).collect()
}

/// The files that a manifest names, as `open` maps them, and the blocks in them, or why they are not all that are wanted.
pub(super) fn read(
    manifest: &Manifest,
    wanted: &Identity,
    mut open: impl FnMut(&str) -> Result<ShardFile, String>,
) -> Result<(Vec<ShardFile>, Vec<StoredBlock>), String> {
    let (shapes, expected) = (shapes(wanted), wanted.blocks());
    if !manifest.blocks.iter().map(|entry| (entry.layer, entry.expert)).eq(expected) {
        return Err("the manifest does not list every expert once".to_owned());
    }
    let mut files: Vec<ShardFile> = Vec::new();
    let mut blocks = Vec::with_capacity(manifest.blocks.len());
    for entry in &manifest.blocks {
        let file = match files.iter().position(|file| file.name == entry.file) {
            Some(at) => at,
            None => {
                files.push(open(&entry.file)?);
                files.len() - 1
            }
        };
        let (start, end) = (entry.start as usize, entry.end as usize);
        let block_bytes = shapes.get(&entry.layer).map(ExpertShape::block_bytes);
        let is_block = end.checked_sub(start) == block_bytes && end <= files[file].bytes.len();
        if !is_block {
            return Err(format!("{} is truncated, or no such file", entry.file));
        }
        let block = Block { layer: LayerId(entry.layer), expert: ExpertId(entry.expert) };
        blocks.push(StoredBlock { block, file, start, end, blake3: entry.blake3.clone() });
    }
    Ok((files, blocks))
}

fn read_manifest(folder: &Path) -> Result<Manifest, String> {
    let path = folder.join(manifest::FILE_NAME);
    let length = fs::metadata(&path).map_err(|_| "there is no manifest".to_owned())?.len();
    if length > MAX_MANIFEST_BYTES {
        return Err("the manifest is too large".to_owned());
    }
    let text = fs::read(&path).map_err(|error| error.to_string())?;
    serde_json::from_slice(&text).map_err(|error| format!("the manifest is damaged: {error}"))
}

fn map(folder: &Path, name: &str) -> Result<ShardFile, String> {
    // A foreign manifest must not make the hub map and serve files outside the folder.
    if Path::new(name).file_name().is_none_or(|plain| plain != name) {
        return Err(format!("{name:?} is not a file name"));
    }
    // Hubs never overwrite a shard: a new file replaces its name, and this map keeps the old file.
    let mapped = Mapped::open(&folder.join(name)).map_err(|error| format!("{name}: {error}"))?;
    let bytes = mapped.bytes();
    Ok(ShardFile { name: name.to_owned(), version: String::new(), bytes, mapped })
}

/// Compares every block with its hash, on several threads.
fn verify(store: &ShardStore) -> Result<(), String> {
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = store.blocks.len().div_ceil(n_threads).max(1);
    let check = |stored: &StoredBlock| match store.block(stored.block) {
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = store
            .blocks
            .chunks(share)
            .map(|blocks| scope.spawn(move || blocks.iter().try_for_each(check)))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err("checking the hashes panicked".to_owned()))
        })
    })
}

/// Deletes the stamps, so that the next start checks the hashes.
pub(super) fn forget_stamps(folder: &Path) {
    if let Err(error) = fs::remove_file(folder.join(STAMPS_FILE)) {
        tracing::debug!(folder = %folder.display(), %error, "there are no stamps to delete");
    }
}

/// Whether the hashes were right when they were last checked.
pub(super) fn has_stamps(folder: &Path) -> bool {
    read_stamps(folder).is_some()
}

fn read_stamps(folder: &Path) -> Option<BTreeMap<String, Stamp>> {
    serde_json::from_slice(&fs::read(folder.join(STAMPS_FILE)).ok()?).ok()
}

/// Records that the files' hashes are right. If that fails, they are checked again next time.
pub(super) fn write_stamps(folder: &Path, manifest: &Manifest) {
    let path = folder.join(STAMPS_FILE);
    let text = serde_json::to_vec(&current_stamps(folder, manifest)).unwrap_or_default();
    if let Err(error) = fs::write(&path, text) {
        tracing::debug!(path = %path.display(), %error, "storing the stamps of the shards failed");
    }
}

fn current_stamps(folder: &Path, manifest: &Manifest) -> BTreeMap<String, Stamp> {
    let stamp = |name: &str| {
        let metadata = fs::metadata(folder.join(name)).ok()?;
        let modified = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        Some(Stamp { bytes: metadata.len(), modified_nanos: modified.as_nanos() })
    };
    manifest
        .blocks
        .chunk_by(|a, b| a.file == b.file)
        .filter_map(|entries| Some((entries[0].file.clone(), stamp(&entries[0].file)?)))
        .collect()
}
