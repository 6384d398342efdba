//! A partial download: stored on disk and hashed as it arrives.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Seek, Write},
    path::{Path, PathBuf},
};

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

use super::{
    cache::{Etag, io_error},
    endpoint::RemoteFile,
    error::PullError,
};

/// Bytes read at a time when existing content is hashed.
const READ_BYTES: usize = 1 << 20;

/// A file of which `n_written` bytes are present.
pub(super) struct Part {
    path: PathBuf,
    out: File,
    etag: Etag,
    size_bytes: u64,
    n_written: u64,
    /// None if the ETag is not a hash of the content.
    hash: Option<Context>,
    /// Whether some of it is from an earlier run.
    is_resumed: bool,
}

impl Part {
    /// Opens what an earlier run left at `path`, or starts a new file. Reads all existing bytes.
    pub(super) fn open(path: &Path, remote: &RemoteFile) -> Result<Self, PullError> {
        let mut options = OpenOptions::new();
        let out = options.read(true).write(true).create(true).truncate(false).open(path);
        let mut part = Self {
            path: path.to_owned(),
            out: out.map_err(io_error(path))?,
            etag: remote.etag.clone(),
            size_bytes: remote.size_bytes,
            n_written: 0,
            hash: None,
            is_resumed: false,
        };
        let n_there = part.out.metadata().map_err(io_error(path))?.len();
        if n_there > part.size_bytes {
            part.restart()?;
            return Ok(part);
        }
        part.hash = part.new_hash();
        part.is_resumed = n_there > 0;
        let mut buffer = vec![0; READ_BYTES.min(usize::try_from(n_there).unwrap_or(READ_BYTES))];
        // Reading leaves the position at the end, where the next byte goes.
        while part.n_written < n_there {
            let n = part.out.read(&mut buffer).map_err(io_error(path))?;
            if n == 0 {
                break;
            }
            part.took(&buffer[..n]);
        }
        Ok(part)
    }

    /// Bytes present.
    pub(super) fn n_written(&self) -> u64 {
        self.n_written
    }

    /// Bytes missing.
    pub(super) fn n_missing(&self) -> u64 {
        self.size_bytes.saturating_sub(self.n_written)
    }

    /// Whether some of it is from an earlier run.
    pub(super) fn is_resumed(&self) -> bool {
        self.is_resumed
    }

    /// Appends bytes; at most the missing ones.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), PullError> {
        self.out.write_all(bytes).map_err(io_error(&self.path))?;
        self.took(bytes);
        Ok(())
    }

    /// Starts again from the beginning.
    pub(super) fn restart(&mut self) -> Result<(), PullError> {
        self.out.set_len(0).and_then(|()| self.out.rewind()).map_err(io_error(&self.path))?;
        self.n_written = 0;
        self.is_resumed = false;
        self.hash = self.new_hash();
        Ok(())
    }

    /// Whether the content has the announced hash. To be called once no byte is missing.
    pub(super) fn is_right(&self) -> bool {
        let Some(hash) = &self.hash else { return true };
        let found = hash.clone().finish();
        let found: String = found.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        found == self.etag.as_str()
    }

    /// Syncs the file to disk and moves it into its place.
    pub(super) fn place(self, blob: &Path) -> Result<(), PullError> {
        self.out.sync_all().map_err(io_error(&self.path))?;
        // Some systems cannot move an open file.
        drop(self.out);
        fs::rename(&self.path, blob).map_err(io_error(blob))
    }

    /// Removes the file.
    pub(super) fn remove(self) -> Result<(), PullError> {
        drop(self.out);
        fs::remove_file(&self.path).map_err(io_error(&self.path))
    }

    fn took(&mut self, bytes: &[u8]) {
        self.n_written += bytes.len() as u64;
        if let Some(hash) = &mut self.hash {
            hash.update(bytes);
        }
    }

    fn new_hash(&self) -> Option<Context> {
        if self.etag.is_sha256() {
            return Some(Context::new(&SHA256));
        }
        self.etag.is_git_sha1().then(|| {
            let mut hash = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
            hash.update(format!("blob {}\0", self.size_bytes).as_bytes());
            hash
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pull::repo_file::RepoFile;

    /// Of `hello\n`, as `git hash-object` and `sha256sum` say.
    const GIT: &str = "ce013625030ba8dba906f756967f9e9ca394464a";
    const SHA: &str = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";

    fn remote(etag: &str) -> RemoteFile {
        RemoteFile { file: RepoFile::config(), etag: Etag::new(etag).unwrap(), size_bytes: 6 }
    }

    #[test]
    fn a_file_goes_on_where_it_stopped_and_is_checked_whole() {
        for etag in [GIT, SHA, "no-hash"] {
            let folder = tempfile::tempdir().unwrap();
            let (path, blob) = (folder.path().join("x.incomplete"), folder.path().join("x"));
            let mut part = Part::open(&path, &remote(etag)).unwrap();
            part.write(b"hel").unwrap();
            assert!(!part.is_resumed());
            drop(part);
            let mut part = Part::open(&path, &remote(etag)).unwrap();
            assert_eq!((part.n_written(), part.n_missing(), part.is_resumed()), (3, 3, true));
            part.write(b"lo\n").unwrap();
            assert!(part.is_right(), "{etag}");
            part.place(&blob).unwrap();
            assert_eq!((fs::read(&blob).unwrap().as_slice(), path.exists()), (&b"hello\n"[..], false));
        }
    }

    #[test]
    fn wrong_bytes_are_found_and_a_new_beginning_forgets_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.incomplete");
        fs::write(&path, "HEL").unwrap();
        for etag in [GIT, SHA] {
            let mut part = Part::open(&path, &remote(etag)).unwrap();
            part.write(b"lo\n").unwrap();
            assert!(!part.is_right(), "{etag}");
            part.restart().unwrap();
            part.write(b"hello\n").unwrap();
            assert!(part.is_right() && !part.is_resumed(), "{etag}");
        }
        fs::write(&path, "longer than announced").unwrap();
        let part = Part::open(&path, &remote(SHA)).unwrap();
        assert_eq!((part.n_written(), part.n_missing()), (0, 6));
        part.remove().unwrap();
        assert!(!path.exists());
    }
}
