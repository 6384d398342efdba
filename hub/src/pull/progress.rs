//! How far a download is: counted by those who download, read by whoever shows it.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Bytes that are wanted and there, and what holds files up.
#[derive(Debug, Default)]
pub struct Progress {
    total_bytes: AtomicU64,
    done_bytes: AtomicU64,
    received_bytes: AtomicU64,
    /// By file.
    troubles: Mutex<BTreeMap<String, String>>,
}

impl Progress {
    /// Bytes of all files that were not there at the start; 0 until that is known. It grows when more files are found
    /// to be needed.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes.load(Ordering::Relaxed)
    }

    /// Those of them that are there now. A file that has to begin anew takes its bytes away again.
    pub fn done_bytes(&self) -> u64 {
        self.done_bytes.load(Ordering::Relaxed)
    }

    /// What has come over the network since the start, whatever became of it.
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }

    /// Why a file does not go on at the moment, if one does not.
    pub fn trouble(&self) -> Option<String> {
        self.troubles().first_key_value().map(|(file, why)| format!("{file}: {why}"))
    }

    pub(super) fn add_total(&self, bytes: u64) {
        self.total_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn add_done(&self, bytes: u64) {
        self.done_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn add_received(&self, bytes: u64) {
        self.received_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.add_done(bytes);
    }

    pub(super) fn take_done(&self, bytes: u64) {
        self.done_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn set_trouble(&self, file: &str, why: String) {
        self.troubles().insert(file.to_owned(), why);
    }

    pub(super) fn clear_trouble(&self, file: &str) {
        self.troubles().remove(file);
    }

    fn troubles(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
