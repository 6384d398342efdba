//! A folder of expert blocks, one file per hash, shared by any number of workers on this machine.
//!
//! A file gets its name only when its bytes are complete and have the hash; what is read back is hashed again. The folder also
//! keeps the worker's key, so that the hub gives it the same blocks next time.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use moex_protocol::WorkerKey;

use crate::download::hash_matches;

/// The name of the file with the worker's key.
const KEY_FILE: &str = "worker-key";

/// An open store.
#[derive(Clone, Debug)]
pub(super) struct BlockStore {
    folder: PathBuf,
}

impl BlockStore {
    /// Opens the folder; creates it if it does not exist.
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        Ok(Self { folder: folder.to_owned() })
    }

    /// The bytes with this hash, if they are here and intact. A damaged file is removed.
    pub(super) fn read(&self, blake3: &str) -> Option<Vec<u8>> {
        let path = self.folder.join(blake3);
        let bytes = std::fs::read(&path).ok()?;
        if hash_matches(&bytes, blake3) {
            return Some(bytes);
        }
        tracing::warn!(path = %path.display(), "a damaged block is removed from the store");
        drop(std::fs::remove_file(path));
        None
    }

    /// Stores bytes that have this hash.
    pub(super) fn write(&self, blake3: &str, bytes: &[u8]) -> io::Result<()> {
        let part = self.folder.join(format!("{blake3}.{}.part", std::process::id()));
        let written = std::fs::File::create(&part)
            .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_data()))
            .and_then(|()| std::fs::rename(&part, self.folder.join(blake3)));
        if written.is_err() {
            drop(std::fs::remove_file(part));
        }
        written
    }

    /// The key stored in this folder; if there is none, stores `fresh` and returns it.
    pub(super) fn worker_key(&self, fresh: WorkerKey) -> io::Result<WorkerKey> {
        let path = self.folder.join(KEY_FILE);
        let known = std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
        match known {
            Some(key) => Ok(key),
            None => write_secret(&path, &format!("{:032x}\n", fresh.0)).map(|()| fresh),
        }
    }
}

/// Writes a file that only its owner reads.
fn write_secret(path: &Path, text: &str) -> io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_back_whole_bytes_only() {
        let folder = tempfile::tempdir().unwrap();
        let store = BlockStore::open(&folder.path().join("blocks")).unwrap();
        let bytes = b"gate up down".repeat(100);
        let hash = blake3::hash(&bytes).to_hex().to_string();
        assert_eq!(store.read(&hash), None);
        store.write(&hash, &bytes).unwrap();
        assert_eq!(store.read(&hash).as_deref(), Some(bytes.as_slice()));
        // Cut off by a crash: it neither counts nor stays.
        let path = folder.path().join("blocks").join(&hash);
        std::fs::write(&path, &bytes[..500]).unwrap();
        assert_eq!(store.read(&hash), None);
        assert!(!path.exists());
    }

    #[test]
    fn the_key_stays() {
        let folder = tempfile::tempdir().unwrap();
        let store = BlockStore::open(folder.path()).unwrap();
        assert_eq!(store.worker_key(WorkerKey(7)).unwrap(), WorkerKey(7));
        assert_eq!(store.worker_key(WorkerKey(8)).unwrap(), WorkerKey(7));
        std::fs::write(folder.path().join(KEY_FILE), "no key").unwrap();
        assert_eq!(store.worker_key(WorkerKey(9)).unwrap(), WorkerKey(9));
    }
}
