//! One model's folder in the cache, in the layout that all of Hugging Face's tools share.
//!
//! ```text
//! CACHE/models--OWNER--REPO/
//! refs/main                          the commit of main at the last query
//! blobs/HASH                         a file's content, named by its ETag
//! blobs/HASH.incomplete              a partial download
//!   snapshots/COMMIT/config.json       -> ../../blobs/HASH
//! CACHE/.locks/models--OWNER--REPO/HASH.lock    locked by the writer of HASH.incomplete
//! ```

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use super::{error::PullError, name::ModelName, repo_file::RepoFile};

/// A commit hash: 40 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Commit(String);

/// A file's ETag, which is its name among the blobs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Etag(String);

/// The folder of one model.
#[derive(Clone, Debug)]
pub(super) struct RepoCache {
    folder: PathBuf,
    locks: PathBuf,
}

impl Commit {
    pub(super) fn new(text: &str) -> Option<Self> {
        is_hex(text, 40).then(|| Self(text.to_owned()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Etag {
    /// From a header: without quotes and the weak marker. None if it cannot be a file name.
    pub(super) fn new(header: &str) -> Option<Self> {
        let text = header.trim();
        let text = text.strip_prefix("W/").unwrap_or(text).trim_matches('"');
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_name = (1..=128).contains(&text.len()) && text.bytes().all(fits) && !text.starts_with('.');
        is_name.then(|| Self(text.to_owned()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is a SHA-256 of the content, as for large files.
    pub(super) fn is_sha256(&self) -> bool {
        is_hex(&self.0, 64)
    }

    /// Whether it is a SHA-1 of git's header and the content, as for small files.
    pub(super) fn is_git_sha1(&self) -> bool {
        is_hex(&self.0, 40)
    }
}

impl fmt::Display for Etag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl RepoCache {
    pub(super) fn new(cache: &Path, name: &ModelName) -> Self {
        let folder = format!("models--{}--{}", name.owner(), name.repo());
        Self { locks: cache.join(".locks").join(&folder), folder: cache.join(folder) }
    }

    /// The commit of a revision at the last query; a commit is itself.
    pub(super) fn commit(&self, revision: &str) -> Option<Commit> {
        let commit = Commit::new(revision);
        commit.or_else(|| Commit::new(fs::read_to_string(self.reference(revision)).ok()?.trim()))
    }

    /// Stores the commit of a revision.
    pub(super) fn set_commit(&self, revision: &str, commit: &Commit) -> Result<(), PullError> {
        if self.commit(revision).as_ref() == Some(commit) {
            return Ok(());
        }
        let path = self.reference(revision);
        make_parent(&path)?;
        fs::write(&path, commit.as_str()).map_err(io_error(&path))
    }

    /// The folder with all files of a commit.
    pub(super) fn snapshot(&self, commit: &Commit) -> PathBuf {
        self.folder.join("snapshots").join(commit.as_str())
    }

    /// Path of a file at a commit: a link to its blob, or the file itself on systems without links.
    pub(super) fn pointer(&self, commit: &Commit, file: &RepoFile) -> PathBuf {
        self.snapshot(commit).join(file.to_path())
    }

    /// Path of a file's complete content.
    pub(super) fn blob(&self, etag: &Etag) -> PathBuf {
        self.folder.join("blobs").join(etag.as_str())
    }

    /// Path of a file's partial content.
    pub(super) fn incomplete(&self, etag: &Etag) -> PathBuf {
        self.folder.join("blobs").join(format!("{etag}.incomplete"))
    }

    /// Path of the lock for writing a blob.
    pub(super) fn lock(&self, etag: &Etag) -> PathBuf {
        self.locks.join(format!("{etag}.lock"))
    }

    /// Creates the folders for blobs and locks.
    pub(super) fn make_folders(&self) -> Result<(), PullError> {
        for folder in [self.folder.join("blobs"), self.locks.clone()] {
            fs::create_dir_all(&folder).map_err(io_error(&folder))?;
        }
        Ok(())
    }

    /// Links a file at a commit to a blob.
    pub(super) fn link(&self, commit: &Commit, file: &RepoFile, etag: &Etag) -> Result<(), PullError> {
        let (pointer, blob) = (self.pointer(commit, file), self.blob(etag));
        make_parent(&pointer)?;
        if pointer.exists() {
            return Ok(());
        }
        // Removes a dangling link, if there is one.
        drop(fs::remove_file(&pointer));
        let mut target: PathBuf = (0..file.depth() + 2).map(|_| "..").collect();
        target.extend(["blobs", etag.as_str()]);
        match symlink(&target, &pointer).or_else(|_| fs::hard_link(&blob, &pointer)) {
            Ok(()) => Ok(()),
            // Another process created it first.
            Err(_) if pointer.exists() => Ok(()),
            // Without links the blob is moved, as the other tools do.
            Err(_) => fs::rename(&blob, &pointer).map_err(io_error(&pointer)),
        }
    }

    fn reference(&self, revision: &str) -> PathBuf {
        self.folder.join("refs").join(revision.split('/').collect::<PathBuf>())
    }
}

pub(super) fn io_error(path: &Path) -> impl FnOnce(io::Error) -> PullError + use<> {
    let path = path.to_owned();
    move |source| PullError::Io { path, source }
}

fn make_parent(path: &Path) -> Result<(), PullError> {
    let Some(parent) = path.parent() else { return Ok(()) };
    fs::create_dir_all(parent).map_err(io_error(parent))
}

fn is_hex(text: &str, n_digits: usize) -> bool {
    text.len() == n_digits && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, link)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_target: &Path, _link: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    #[test]
    fn a_blob_is_found_by_its_name_at_its_commit() {
        let folder = tempfile::tempdir().unwrap();
        let cache = RepoCache::new(folder.path(), &"a/b".parse().unwrap());
        let (commit, etag) = (Commit::new(COMMIT).unwrap(), Etag::new("\"abc\"").unwrap());
        cache.make_folders().unwrap();
        fs::write(cache.blob(&etag), "bytes").unwrap();
        for name in ["config.json", "Q4/deep/x.gguf"] {
            let file = RepoFile::new(name).unwrap();
            for _ in 0..2 {
                cache.link(&commit, &file, &etag).unwrap();
                assert_eq!(fs::read(cache.pointer(&commit, &file)).unwrap(), b"bytes");
            }
            // One that leads nowhere is made anew.
            fs::remove_file(cache.pointer(&commit, &file)).unwrap();
            symlink(Path::new("nowhere"), &cache.pointer(&commit, &file)).unwrap();
            cache.link(&commit, &file, &etag).unwrap();
            assert_eq!(fs::read(cache.pointer(&commit, &file)).unwrap(), b"bytes");
        }
        let link = fs::read_link(folder.path().join(format!("models--a--b/snapshots/{COMMIT}/config.json")));
        assert_eq!(link.unwrap(), Path::new("../../blobs/abc"));
    }

    #[test]
    fn a_revision_is_remembered_and_a_commit_is_itself() {
        let folder = tempfile::tempdir().unwrap();
        let cache = RepoCache::new(folder.path(), &"a/b".parse().unwrap());
        let commit = Commit::new(COMMIT).unwrap();
        assert_eq!((cache.commit("main"), cache.commit(COMMIT)), (None, Some(commit.clone())));
        for revision in ["main", "refs/pr/1"] {
            cache.set_commit(revision, &commit).unwrap();
            assert_eq!(cache.commit(revision), Some(commit.clone()));
        }
        cache.set_commit(COMMIT, &commit).unwrap();
        let refs = folder.path().join("models--a--b/refs");
        assert!(!refs.join(COMMIT).exists(), "a commit needs no note");
        fs::write(refs.join("main"), "../../x").unwrap();
        assert_eq!(cache.commit("main"), None);
    }

    #[test]
    fn headers_that_are_no_names_are_none() {
        assert_eq!(Etag::new("W/\"a-1\"").unwrap().as_str(), "a-1");
        for wrong in ["", "\"\"", "\"../x\"", "\".x\"", "a/b", "a b", &"x".repeat(129)] {
            assert_eq!(Etag::new(wrong), None, "{wrong:?}");
        }
        assert!(Etag::new(&"a".repeat(64)).unwrap().is_sha256() && Etag::new(COMMIT).unwrap().is_git_sha1());
        for wrong in ["main", "", &COMMIT[1..], &COMMIT.to_uppercase()] {
            assert_eq!(Commit::new(wrong), None);
        }
    }
}
