//! A folder of expert blocks, one file per hash, shared by any number of workers on this machine.
//!
//! A file gets its name only when its bytes are complete and have the hash; what is read back is hashed again. The folder also
//! keeps the worker's id, so that the hub gives it the same blocks next time.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use moex_protocol::WorkerId;

use crate::download::hash_matches;

/// The name of the file with the worker's id.
const ID_FILE: &str = "worker-id";

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

    /// The id stored in this folder; if there is none, stores `fresh` and returns it.
    pub(super) fn worker_id(&self, fresh: WorkerId) -> io::Result<WorkerId> {
        let path = self.folder.join(ID_FILE);
        let known = std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
        match known {
            Some(id) => Ok(id),
            None => std::fs::write(path, format!("{fresh}\n")).map(|()| fresh),
        }
    }
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
    fn the_id_stays() {
        let folder = tempfile::tempdir().unwrap();
        let store = BlockStore::open(folder.path()).unwrap();
        assert_eq!(store.worker_id(WorkerId(7)).unwrap(), WorkerId(7));
        assert_eq!(store.worker_id(WorkerId(8)).unwrap(), WorkerId(7));
        std::fs::write(folder.path().join(ID_FILE), "no id").unwrap();
        assert_eq!(store.worker_id(WorkerId(9)).unwrap(), WorkerId(9));
    }
}
