//! Maps a store, after making sure that it is whole and of the weights that are wanted.
//!
//! Lengths and ranges are checked each time. Hashes are checked unless every file still has the length and the time of
//! change that it had when its hashes were last right: a store of a large model takes minutes to read. What the hub itself
//! computes with is compared with its hash then ([`ShardStore::block`]).

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

/// Beside the manifest: the files as they were when their hashes were last right.
pub(super) const STAMPS_FILE: &str = "verified.json";

/// The largest manifest that is read: some 200 bytes a block, 128 layers of 512 experts.
const MAX_MANIFEST_BYTES: u64 = 32 << 20;

/// A file's length and time of change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    bytes: u64,
    modified_nanos: u128,
}

/// The store in `folder`, or in words why there is none to use.
pub(super) fn load(folder: &Path, wanted: &Identity) -> Result<ShardStore, String> {
    let manifest = read_manifest(folder)?;
    if manifest.identity != *wanted {
        return Err("the manifest is of other weights, another format or another version".to_owned());
    }
    let shapes: BTreeMap<u16, ExpertShape> =
        wanted.layers.iter().map(|entry| (entry.layer, wanted.shape(entry))).collect();
    let expected = wanted.blocks();
    if !manifest.blocks.iter().map(|entry| (entry.layer, entry.expert)).eq(expected) {
        return Err("the manifest does not list every expert once".to_owned());
    }
    let mut files: Vec<ShardFile> = Vec::new();
    let mut blocks = Vec::with_capacity(manifest.blocks.len());
    for entry in &manifest.blocks {
        let file = match files.iter().position(|file| file.name == entry.file) {
            Some(at) => at,
            None => {
                files.push(map(folder, &entry.file)?);
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
    for (at, file) in files.iter_mut().enumerate() {
        let mut hasher = blake3::Hasher::new();
        for block in blocks.iter().filter(|block| block.file == at) {
            hasher.update(block.blake3.as_bytes());
        }
        file.version = hasher.finalize().to_hex()[..32].to_owned();
    }
    let right = blocks.iter().map(|_| AtomicBool::new(false)).collect();
    let store = ShardStore { shapes, panels: None, files, blocks, right, folder: folder.to_owned() };
    if read_stamps(folder).is_none_or(|stamps| stamps != current_stamps(folder, &manifest)) {
        verify(&store)?;
        write_stamps(folder, &manifest);
    }
    Ok(store)
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
    // A manifest from elsewhere must not make the hub map and serve what is not in the folder.
    if Path::new(name).file_name().is_none_or(|plain| plain != name) {
        return Err(format!("{name:?} is no file name"));
    }
    // Hubs never write to a shard that has its name: a new one takes the name over, and this map keeps the old one.
    let mapped = Mapped::open(&folder.join(name)).map_err(|error| format!("{name}: {error}"))?;
    let bytes = mapped.bytes();
    Ok(ShardFile { name: name.to_owned(), version: String::new(), bytes, mapped })
}

/// Compares every block with its hash, a thread for each share of them.
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

/// Has the hashes checked when the folder is opened next.
pub(super) fn forget_stamps(folder: &Path) {
    if let Err(error) = fs::remove_file(folder.join(STAMPS_FILE)) {
        tracing::debug!(folder = %folder.display(), %error, "there are no stamps to forget");
    }
}

fn read_stamps(folder: &Path) -> Option<BTreeMap<String, Stamp>> {
    serde_json::from_slice(&fs::read(folder.join(STAMPS_FILE)).ok()?).ok()
}

/// Notes that the files' hashes are right. Where it cannot be noted, they are checked again next time.
pub(super) fn write_stamps(folder: &Path, manifest: &Manifest) {
    let path = folder.join(STAMPS_FILE);
    let text = serde_json::to_vec(&current_stamps(folder, manifest)).unwrap_or_default();
    if let Err(error) = fs::write(&path, text) {
        tracing::debug!(path = %path.display(), %error, "could not note that the shards are right");
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
