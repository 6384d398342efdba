//! Configures when the allocator returns free memory to the system.

use std::ffi::c_long;
use std::thread;
use std::time::Duration;

use libmimalloc_sys::{mi_collect, mi_option_set, mi_option_t, mi_option_use_numa_nodes};

/// `mi_option_purge_delay` of `mimalloc.h`: milliseconds until free pages may return to the system. The crate does not
/// export it; it precedes this option.
const PURGE_DELAY: mi_option_t = mi_option_use_numa_nodes - 1;
/// How long a worker keeps free pages at most.
const KEPT: Duration = Duration::from_secs(2);

/// Returns pages to the system as soon as they are free: what strangers make a hub hold must not add up. The allocator's own
/// delay would not do: it returns pages when others become free, and an idle hub frees none.
pub(crate) fn give_back_at_once() {
    set_delay(Duration::ZERO);
}

/// Returns pages to the system within two seconds, for a worker: the buffers of a prompt's layer, some 50 MB, serve the next
/// one. To have the system take them back and clear others takes a fifth of its processors' time.
///
/// # Errors
/// If the system gives no thread.
pub(crate) fn give_back_soon() -> std::io::Result<()> {
    let give_back = || {
        loop {
            thread::sleep(KEPT);
            // SAFETY: any thread may call it at any time.
            unsafe { mi_collect(true) };
        }
    };
    thread::Builder::new().name("moex-memory".to_owned()).spawn(give_back)?;
    // Only that thread returns any.
    set_delay(100 * KEPT);
    Ok(())
}

fn set_delay(delay: Duration) {
    // SAFETY: stores a number that the allocator reads when a page becomes free.
    unsafe { mi_option_set(PURGE_DELAY, delay.as_millis() as c_long) };
}
