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

/// Makes room in the process's table of files for `n`, beforehand. The system enlarges the table by doubling it, and each time
/// whoever opens a file waits until all processors have noticed (`expand_fdtable` in Linux): nobody would accept a crowd of
/// connections meanwhile.
#[cfg(unix)]
pub(super) fn make_room(n: usize) {
    let last = i32::try_from(n).unwrap_or(i32::MAX).saturating_sub(1);
    // The highest number that a file may have; it is free again at once. Without room the table grows when it must.
    let _ =
        std::fs::File::open("/dev/null").map(|file| rustix::io::fcntl_dupfd_cloexec(&file, last).map(drop));
}

/// Systems that grow nothing.
#[cfg(not(unix))]
pub(super) fn make_room(_n: usize) {}

/// On systems without such a limit, only the limit on connections applies.
#[cfg(not(unix))]
pub(super) fn raise_limit() -> usize {
    const PLENTY: usize = 64 * USUAL_FILES;
    PLENTY
}
