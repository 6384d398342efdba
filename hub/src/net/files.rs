//! The limit on open files of this process. Every connection is one.

/// Files that are counted on where the system does not say.
const USUAL_FILES: usize = 256;

/// Raises this process's limit of open files to the most that it may have, and gives what it is then.
#[cfg(unix)]
pub(super) fn raise_limit() -> usize {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let had = getrlimit(Resource::Nofile);
    let mut wanted = had;
    wanted.current = had.maximum;
    let limit = match setrlimit(Resource::Nofile, wanted) {
        Ok(()) => wanted.current,
        // Some systems say that there is no bound and then refuse one.
        Err(_) => had.current,
    };
    limit.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX)).max(USUAL_FILES)
}

/// Where files are not counted like this, connections are bounded by their own limit alone.
#[cfg(not(unix))]
pub(super) fn raise_limit() -> usize {
    const PLENTY: usize = 64 * USUAL_FILES;
    PLENTY
}
