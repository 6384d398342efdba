//! Reports the free space of a folder's disk.

use std::path::Path;

/// Bytes that this user may still write there; none if the system does not report it.
#[cfg(unix)]
pub(super) fn free_bytes(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    disk.f_bavail.checked_mul(disk.f_frsize)
}

/// Not available on this system: a full disk shows when writing.
#[cfg(not(unix))]
pub(super) fn free_bytes(_folder: &Path) -> Option<u64> {
    None
}
