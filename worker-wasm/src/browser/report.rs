//! What the worker tells its page, as JSON.

use serde::Serialize;

use super::js;
use crate::core::Status;

/// One message to the page.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Report {
    /// Where the worker stands.
    pub(super) phase: Phase,
    /// Why it stands there, or what it did without, in words.
    pub(super) note: Option<String>,
    /// Whether blocks are kept between visits.
    pub(super) keeps_blocks: bool,
    /// GPU buffers made so far, counted by the page's script; none is made while the worker serves.
    pub(super) gpu_buffers: u64,
    /// Bytes of the worker's WASM memory, which only ever grows.
    pub(super) wasm_memory_bytes: u64,
    /// What the core shows; absent until there is one.
    pub(super) status: Option<Status>,
}

/// Where a worker stands, before and around its sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Phase {
    /// It opens and tests its device.
    Starting,
    /// It has no connection, and is trying to get one.
    Connecting,
    /// It has one; `status.state` says the rest.
    Connected,
    /// It will not go on, and starting it again as it was would end the same way.
    Stopped,
    /// It went down with its device; starting it on another may help.
    Crashed,
}

impl Report {
    pub(super) fn new(phase: Phase) -> Self {
        Self {
            phase,
            note: None,
            keeps_blocks: false,
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
