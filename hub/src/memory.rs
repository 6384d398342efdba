//! Configures when the allocator returns free memory to the system.

use libmimalloc_sys::{mi_option_set, mi_option_t, mi_option_use_numa_nodes};

/// `mi_option_purge_delay` of `mimalloc.h`: milliseconds until a free page returns to the system. The crate does not
/// export it; it precedes this option.
const PURGE_DELAY: mi_option_t = mi_option_use_numa_nodes - 1;

/// Returns pages to the system as soon as they are free. A delay would not work: only the thread that owned a page
/// purges it, and the threads of an idle hub sleep.
pub(crate) fn give_back_at_once() {
    // SAFETY: stores a number that the allocator reads when a page becomes free; no other thread runs yet.
    unsafe { mi_option_set(PURGE_DELAY, 0) };
}
