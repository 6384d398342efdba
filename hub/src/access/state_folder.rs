//! Stores secrets between starts, each in a file that only its owner can read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Files longer than this do not hold a secret of the hub.
const MAX_FILE_BYTES: u64 = 64 << 10;

/// A folder of secrets.
#[derive(Clone, Debug)]
pub struct StateFolder(PathBuf);

/// A stored secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSecret {
    /// The secret.
    pub value: String,
    /// Path of its file.
    pub path: PathBuf,
    /// Whether it was just created.
    pub is_new: bool,
}

/// Why a secret cannot be stored. Each is one sentence.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file or its folder cannot be read or written.
    #[error("{} cannot be used: {source} (name another folder with --state)", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Others on this machine may have read it.
    #[error("{} can be read by other users of this machine: delete it for a new one, or `chmod 600` it if you trust them", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
    },
    /// Its content is invalid.
    #[error("{} is damaged ({reason}): delete it for a new one", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The system has no random bytes.
    #[error("{0}")]
    Random(String),
}

impl StateFolder {
    /// Uses this folder; it is created with the first secret.
    pub fn at(folder: PathBuf) -> Self {
        Self(folder)
    }

    /// `moex` in the user's state folder: `$XDG_STATE_HOME`, or `.local/state` in their home.
    pub fn default_path() -> PathBuf {
        let home_state = || std::env::home_dir().map(|home| home.join(".local").join("state"));
        let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        state.or_else(home_state).unwrap_or_else(std::env::temp_dir).join("moex")
    }

    /// Path of the file with this name.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Returns the secret in the file `name`, parsed by `check`; creates it with `make` if it is missing or to be
    /// replaced. Two hubs that start at once get the same secret.
    ///
    /// # Errors
    /// If the file cannot be used, others can read it, or `check` refuses its content.
    pub fn keep(
        &self,
        name: &str,
        replace: Replace,
        check: impl Fn(&str) -> Result<String, String>,
        make: impl FnOnce() -> Result<String, String>,
    ) -> Result<StoredSecret, SecretError> {
        let path = self.path(name);
        if replace == Replace::No
            && let Some(value) = read(&path, &check)?
        {
            return Ok(StoredSecret { value, path, is_new: false });
        }
        let value = make().map_err(SecretError::Random)?;
        if self.write(&path, &value, replace).map_err(io_error(&path))? {
            return Ok(StoredSecret { value, path, is_new: true });
        }
        // Another hub created it first.
        match read(&path, &check)? {
            Some(value) => Ok(StoredSecret { value, path, is_new: false }),
            None => Err(io_error(&path)(io::ErrorKind::NotFound.into())),
        }
    }

    /// The secret in the file `name`, parsed by `check`; none if there is no file.
    ///
    /// # Errors
    /// If the file cannot be used, others can read it, or `check` refuses its content.
    pub fn read(
        &self,
        name: &str,
        check: &impl Fn(&str) -> Result<String, String>,
    ) -> Result<Option<String>, SecretError> {
        read(&self.path(name), check)
    }

    /// Puts `value` into the file `name`, in place of what it held.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn replace(&self, name: &str, value: &str) -> Result<(), SecretError> {
        let path = self.path(name);
        self.write(&path, value, Replace::Yes).map(drop).map_err(io_error(&path))
    }

    /// Removes the file `name`, if there is one.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn remove(&self, name: &str) -> Result<(), SecretError> {
        let path = self.path(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error(&path)(error)),
            _ => Ok(()),
        }
    }

    /// Writes the file atomically; returns false if one exists and must stay.
    fn write(&self, path: &Path, value: &str, replace: Replace) -> io::Result<bool> {
        make_private_folder(&self.0)?;
        let part = path.with_extension(format!("{}.part", std::process::id()));
        // Left behind by a dead process with the same id.
        drop(fs::remove_file(&part));
        let written = private_file(&part).and_then(|mut file| {
            file.write_all(value.as_bytes())?;
            file.write_all(b"\n")?;
            file.sync_all()
        });
        let placed = written.and_then(|()| match replace {
            Replace::Yes => fs::rename(&part, path).map(|()| true),
            Replace::No => match fs::hard_link(&part, path) {
                Ok(()) => Ok(true),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
                // For file systems without hard links.
                Err(_) => fs::rename(&part, path).map(|()| true),
            },
        });
        drop(fs::remove_file(&part));
        placed
    }
}

/// Whether to replace a stored secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replace {
    /// Keep the stored secret.
    No,
    /// Replace it.
    Yes,
}

impl Replace {
    /// From a flag such as `--new-token`.
    pub fn when(asked: bool) -> Self {
        if asked { Self::Yes } else { Self::No }
    }
}

/// The file's content; none if there is no file.
fn read(path: &Path, check: &impl Fn(&str) -> Result<String, String>) -> Result<Option<String>, SecretError> {
    let broken = |reason: String| SecretError::Broken { path: path.to_owned(), reason };
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error(path)(error)),
    };
    if is_exposed(&metadata) {
        return Err(SecretError::Exposed { path: path.to_owned() });
    }
    if !metadata.is_file() || metadata.len() > MAX_FILE_BYTES {
        return Err(broken("it is not a file of a hub".into()));
    }
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Err(broken("it is not text".into()));
        }
        Err(error) => return Err(io_error(path)(error)),
    };
    check(text.trim()).map(Some).map_err(broken)
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> SecretError + use<> {
    let path = path.to_owned();
    move |source| SecretError::Io { path, source }
}

#[cfg(unix)]
fn is_exposed(metadata: &fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    metadata.permissions().mode() & 0o077 != 0
}

/// On other systems, files in a user's profile belong to that user.
#[cfg(not(unix))]
fn is_exposed(_metadata: &fs::Metadata) -> bool {
    false
}

#[cfg(unix)]
pub(crate) fn make_private_folder(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    if folder.is_dir() {
        return Ok(());
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

#[cfg(not(unix))]
pub(crate) fn make_private_folder(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)
}

#[cfg(unix)]
fn private_file(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

#[cfg(not(unix))]
fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(folder: &Path, replace: Replace, fresh: &str) -> Result<StoredSecret, SecretError> {
        let check = |text: &str| {
            if text.len() == 4 { Ok(text.to_owned()) } else { Err("it has not four letters".into()) }
        };
        StateFolder::at(folder.to_owned()).keep("token", replace, check, || Ok(fresh.to_owned()))
    }

    #[test]
    fn a_secret_stays_until_it_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("deep").join("state");
        let first = keep(&folder, Replace::No, "aaaa").unwrap();
        assert!(first.is_new && first.value == "aaaa");
        let second = keep(&folder, Replace::No, "bbbb").unwrap();
        assert!(!second.is_new && second.value == "aaaa");
        assert_eq!(keep(&folder, Replace::Yes, "cccc").unwrap().value, "cccc");
        assert_eq!(keep(&folder, Replace::No, "dddd").unwrap().value, "cccc");
        let files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(files, ["token"], "nothing is left of how it was written");
    }

    #[test]
    fn what_is_damaged_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = keep(folder.path(), Replace::No, "aaaa").unwrap().path;
        let too_long = vec![b'x'; 1 << 20];
        for content in [&b""[..], b"aaa", &[0xFF; 4], &too_long] {
            fs::write(&path, content).unwrap();
            let said = keep(folder.path(), Replace::No, "bbbb").unwrap_err().to_string();
            assert!(said.contains(&path.display().to_string()) && said.contains("damaged"), "{said}");
        }
        assert_eq!(keep(folder.path(), Replace::Yes, "bbbb").unwrap().value, "bbbb");
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_reads_it() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("state");
        let path = keep(&folder, Replace::No, "aaaa").unwrap().path;
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&path)), (0o700, 0o600));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let said = keep(&folder, Replace::No, "bbbb").unwrap_err().to_string();
        assert!(said.contains("other users") && said.contains("chmod 600"), "{said}");
    }

    #[test]
    fn hubs_that_start_at_once_agree() {
        let folder = tempfile::tempdir().unwrap();
        let start = |n: usize| keep(folder.path(), Replace::No, &format!("{n:04}")).unwrap().value;
        // One process writes one file at a time; another's is played by what it leaves.
        let first = start(1);
        assert!((2..9).all(|n| start(n) == first));
    }
}
