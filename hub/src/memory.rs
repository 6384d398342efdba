//! How the heap treats what is free.

use libmimalloc_sys::{mi_option_set, mi_option_t, mi_option_use_numa_nodes};

/// `mi_option_purge_delay` of `mimalloc.h`: milliseconds until a free page goes back to the system. The crate has no name
/// for it; it stands before this one.
const PURGE_DELAY: mi_option_t = mi_option_use_numa_nodes - 1;

/// Free pages go back to the system when they become free. Later would be never: a page is purged by the thread it
/// belonged to, and the threads of a hub that everybody has left sleep.
pub(crate) fn give_back_at_once() {
    // SAFETY: it stores a number that the allocator reads when a page becomes free; no other thread runs yet.
    unsafe { mi_option_set(PURGE_DELAY, 0) };
}
