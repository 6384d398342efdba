//! Raises the process's limit of open files, since every connection uses one.

/// Limit assumed if the system does not report it.
const USUAL_FILES: usize = 256;

/// Raises the limit of open files to the allowed maximum, and returns it.
#[cfg(unix)]
pub(super) fn raise_limit() -> usize {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let had = getrlimit(Resource::Nofile);
    let mut wanted = had;
    wanted.current = had.maximum;
    let limit = match setrlimit(Resource::Nofile, wanted) {
        Ok(()) => wanted.current,
        // Some systems report no bound and then refuse to set one.
        Err(_) => had.current,
    };
    limit.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX)).max(USUAL_FILES)
}

/// On systems without such a limit, only the limit on connections applies.
#[cfg(not(unix))]
pub(super) fn raise_limit() -> usize {
    const PLENTY: usize = 64 * USUAL_FILES;
    PLENTY
}
