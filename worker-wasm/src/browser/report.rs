//! The worker's reports to its page, as JSON.

use serde::Serialize;

use super::js;
use crate::core::Status;

/// One message to the page.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Report {
    /// The phase of the worker.
    pub(super) phase: Phase,
    /// The reason for the phase, or a feature that the worker cannot use, as a sentence.
    pub(super) note: Option<String>,
    /// Whether blocks are stored between visits.
    pub(super) keeps_blocks: bool,
    /// Threads that compute; one with a GPU, which needs no other.
    pub(super) n_threads: usize,
    /// GPU buffers made so far, counted by the page's script; none is made while the worker serves.
    pub(super) gpu_buffers: u64,
    /// Bytes of the worker's WASM memory, which only ever grows.
    pub(super) wasm_memory_bytes: u64,
    /// The core's status; absent until there is a core.
    pub(super) status: Option<Status>,
}

/// The phases of a worker, before, during and after its sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Phase {
    /// The device is being opened and tested.
    Starting,
    /// There is no connection; the worker is trying to connect.
    Connecting,
    /// There is a connection; `status.state` has the details.
    Connected,
    /// The worker has ended; starting it again in the same way would end the same way.
    Stopped,
    /// The worker has ended because its device failed; another device may work.
    Crashed,
}

impl Report {
    pub(super) fn new(phase: Phase) -> Self {
        Self {
            phase,
            note: None,
            keeps_blocks: false,
            n_threads: 1,
            gpu_buffers: 0,
            wasm_memory_bytes: wasm_memory_bytes(),
            status: None,
        }
    }

    pub(super) fn stopped(reason: String) -> Self {
        Self { note: Some(reason), ..Self::new(Phase::Stopped) }
    }

    pub(super) fn crashed(reason: &str) -> Self {
        Self { note: Some(reason.to_owned()), ..Self::new(Phase::Crashed) }
    }

    pub(super) fn post(&self) {
        // Strings, numbers and maps with string keys always become JSON.
        js::post_message(&serde_json::to_string(self).unwrap_or_default());
    }
}

fn wasm_memory_bytes() -> u64 {
    const PAGE_BYTES: u64 = 65_536;
    std::arch::wasm32::memory_size(0) as u64 * PAGE_BYTES
}
