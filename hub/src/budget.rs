//! Memory budgets of threads, for work of which nobody can foresee how much it takes: the template of an unknown model may
//! double a string until there is no memory left, and where an allocation fails, the process ends.
//!
//! A thread that exceeds its budget stops for good, inside the allocator and with what it holds; whoever waits for it is told.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

const UNLIMITED: usize = usize::MAX;
/// How often a thread with a budget is looked after.
const LOOKED_AFTER_EVERY: Duration = Duration::from_millis(20);

thread_local! {
    /// Bytes that this thread may allocate beyond those that it has freed.
    static LEFT: Cell<usize> = const { Cell::new(UNLIMITED) };
    /// Set when it wants more.
    static IS_OVER: Cell<*const AtomicBool> = const { Cell::new(ptr::null()) };
}

/// Why work ended without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It wanted more memory than its budget.
    OverBudget,
    /// It panicked, or there was no thread for it.
    Failed,
}

/// Runs `work` on a thread that may hold `bytes`, and waits for it. The limit holds where [`Budgeted`] allocates.
///
/// # Errors
/// [`Stopped`]. A thread over its budget is never freed, nor what it holds: do not repeat such work.
pub fn within<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Stopped> {
    let is_over = Arc::new(AtomicBool::new(false));
    let (reply, result) = sync_channel(1);
    let flag = is_over.clone();
    let limited = move || {
        // The flag lives as long as this thread.
        IS_OVER.set(Arc::as_ptr(&flag));
        LEFT.set(bytes);
        let result = work();
        LEFT.set(UNLIMITED);
        // Nobody has stopped waiting.
        let _ = reply.send(result);
    };
    thread::Builder::new().name("limited".into()).spawn(limited).map_err(|_| Stopped::Failed)?;
    loop {
        match result.recv_timeout(LOOKED_AFTER_EVERY) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Disconnected) => return Err(Stopped::Failed),
            Err(RecvTimeoutError::Timeout) if is_over.load(Ordering::Acquire) => {
                return Err(Stopped::OverBudget);
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// An allocator whose threads may have budgets.
#[derive(Debug)]
pub struct Budgeted<A>(pub A);

// SAFETY: all calls go to the allocator inside, which keeps the contract; counting does not allocate.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Budgeted<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        charge(layout.size());
        // SAFETY: the caller's promises are the same.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        charge(layout.size());
        // SAFETY: as above.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        refund(layout.size());
        // SAFETY: as above.
        unsafe { self.0.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        charge(size);
        refund(layout.size());
        // SAFETY: as above.
        unsafe { self.0.realloc(pointer, layout, size) }
    }
}

fn charge(bytes: usize) {
    let left = LEFT.get();
    if left == UNLIMITED {
        return;
    }
    match left.checked_sub(bytes) {
        Some(left) => LEFT.set(left),
        // A panic is told with locks held that others need.
        None if thread::panicking() => LEFT.set(UNLIMITED),
        None => stop(),
    }
}

fn refund(bytes: usize) {
    let left = LEFT.get();
    if left != UNLIMITED {
        LEFT.set(left.saturating_add(bytes).min(UNLIMITED - 1));
    }
}

/// Ends the calling thread's work without unwinding, which an allocator must not do.
#[cold]
fn stop() -> ! {
    // SAFETY: the flag belongs to a closure of this thread, which has not ended.
    if let Some(is_over) = unsafe { IS_OVER.get().as_ref() } {
        is_over.store(true, Ordering::Release);
    }
    loop {
        thread::sleep(Duration::MAX);
    }
}
