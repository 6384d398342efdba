//! Threads that work in the background.

/// Added to the niceness of a thread: it gets a tenth of a core that others use.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// Lets other threads go before this one, where the system can. The engine computes on all cores, and each of its steps
/// waits for the slowest.
pub(crate) fn lower() {
    #[cfg(target_os = "linux")]
    // Where this is refused, the thread works at the usual priority.
    let _ = rustix::process::nice(NICENESS);
}
