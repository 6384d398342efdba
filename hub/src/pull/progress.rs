//! Progress of a download, updated by the downloads and read by the display.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Bytes wanted and present, and reasons for delays.
#[derive(Debug, Default)]
pub struct Progress {
    total_bytes: AtomicU64,
    done_bytes: AtomicU64,
    received_bytes: AtomicU64,
    /// Reasons for delays, by file.
    troubles: Mutex<BTreeMap<String, String>>,
}

impl Progress {
    /// Bytes of all files that were missing at the start; 0 until known. It grows when further files are found to be
    /// needed.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of these files that are present now. A file that restarts subtracts its bytes.
    pub fn done_bytes(&self) -> u64 {
        self.done_bytes.load(Ordering::Relaxed)
    }

    /// Bytes received over the network since the start, including discarded ones.
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }

    /// Why a file is delayed, if one is.
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
