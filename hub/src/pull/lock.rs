//! Locks each file of the cache for one writer, among all processes of this machine and all tools that use the layout.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    path::Path,
    time::{Duration, Instant},
};

use super::{cache::io_error, error::PullError};

/// Interval of attempts while another process holds the lock.
const POLL: Duration = Duration::from_millis(200);

/// A lock, held until dropped.
pub(super) struct Lock {
    /// None if the file system has no locks: then the hash reveals that two writers met.
    _file: Option<File>,
}

/// Locks the file at `path`, which guards writing to `growing`. Waits for another process as long as that file grows,
/// and `patience` longer. Calls `on_wait` once if it must wait; `file` is the name for messages.
pub(super) async fn lock(
    path: &Path,
    growing: &Path,
    patience: Duration,
    file: &str,
    on_wait: impl FnOnce(),
) -> Result<Lock, PullError> {
    let open = || {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        file.map_err(io_error(path))
    };
    let mut lock = open()?;
    let mut on_wait = Some(on_wait);
    let (mut seen_bytes, mut seen_at) = (0, Instant::now());
    loop {
        match lock.try_lock() {
            Ok(()) if is_at(&lock, path) => return Ok(Lock { _file: Some(lock) }),
            // The previous holder removed the file, so others lock a new one.
            Ok(()) => {
                lock = open()?;
                continue;
            }
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
                return Ok(Lock { _file: None });
            }
            Err(TryLockError::Error(error)) => return Err(io_error(path)(error)),
        }
        if let Some(on_wait) = on_wait.take() {
            on_wait();
        }
        let n_bytes = fs::metadata(growing).map_or(0, |metadata| metadata.len());
        if n_bytes != seen_bytes {
            (seen_bytes, seen_at) = (n_bytes, Instant::now());
        }
        if seen_at.elapsed() > patience {
            return Err(PullError::Locked {
                file: file.to_owned(),
                lock: path.to_owned(),
                minutes: patience.as_secs() / 60,
            });
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Whether the open file is still the one at `path`.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(there)) => (open.dev(), open.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

/// On other systems, an open file cannot be removed.
#[cfg(not(unix))]
fn is_at(_file: &File, _path: &Path) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[tokio::test]
    async fn a_lock_whose_file_was_removed_is_taken_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.lock");
        let patience = Duration::from_secs(60);
        let first = lock(&path, &path, patience, "x", || ()).await.unwrap();
        let ends = async {
            tokio::time::sleep(POLL / 2).await;
            // As huggingface_hub ends.
            fs::remove_file(&path).unwrap();
            drop(first);
        };
        let ((), second) = tokio::join!(ends, lock(&path, &path, patience, "x", || ()));
        let third = File::open(&path).unwrap();
        assert!(matches!(third.try_lock(), Err(TryLockError::WouldBlock)), "the second one holds it");
        drop(second);
    }

    #[tokio::test]
    async fn a_second_writer_waits_while_the_first_one_writes_and_no_longer() {
        let folder = tempfile::tempdir().unwrap();
        let (path, growing) = (folder.path().join("x.lock"), folder.path().join("x.incomplete"));
        let patience = Duration::from_millis(500);
        let first = lock(&path, &growing, patience, "x", || panic!("nobody has it")).await.unwrap();
        let writes = async {
            for n in 1..=8 {
                tokio::time::sleep(Duration::from_millis(100)).await;
                fs::write(&growing, vec![0; n]).unwrap();
            }
            drop(first);
        };
        let mut waited = false;
        let ((), second) = tokio::join!(writes, lock(&path, &growing, patience, "x", || waited = true));
        assert!(second.is_ok() && waited);
        let said = lock(&path, &growing, patience, "x", || ()).await.err().unwrap().to_string();
        assert!(said.contains("x.lock") && said.contains("end it"), "{said}");
    }
}
