//! Budgets of memory and stack, for work of which nobody can foresee how much it takes: the template of an unknown model may
//! double a string until there is no memory left, or nest a list in itself until there is no stack, and either ends a process.
//!
//! A thread that exceeds its budget stops for good, where it is and with what it holds; whoever waits for it is told.

#[cfg(target_os = "linux")]
mod overflow;

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

const UNLIMITED: usize = usize::MAX;
/// Bytes of stack of a thread with a budget: what is nested a thousand times takes a tenth.
const STACK_BYTES: usize = 16 << 20;
/// How often a thread with a budget is looked after.
const LOOKED_AFTER_EVERY: Duration = Duration::from_millis(20);

thread_local! {
    /// Bytes that this thread may allocate beyond those that it has freed.
    static LEFT: Cell<usize> = const { Cell::new(UNLIMITED) };
    /// The least that was left.
    static LEAST: Cell<usize> = const { Cell::new(UNLIMITED) };
    /// Set when it wants more.
    static IS_OVER: Cell<*const AtomicBool> = const { Cell::new(ptr::null()) };
}

/// Why work ended without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It wanted more memory than its budget, or more stack than a thread has.
    OverBudget,
    /// It panicked, or there was no thread for it.
    Failed,
}

/// Runs `work` on a thread that may hold `bytes`, and waits for it; returns the most bytes it held, too. The limit holds where
/// [`Budgeted`] allocates, that of the stack on Linux: elsewhere an overflow ends the process.
///
/// # Errors
/// [`Stopped`]. A thread over its budget is never freed, nor what it holds: do not repeat such work.
pub fn within<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<(T, usize), Stopped> {
    let is_over = Arc::new(AtomicBool::new(false));
    let (reply, result) = sync_channel(1);
    let flag = is_over.clone();
    let limited = move || {
        // The flag lives as long as this thread.
        IS_OVER.set(Arc::as_ptr(&flag));
        #[cfg(target_os = "linux")]
        overflow::watch(STACK_BYTES);
        LEAST.set(bytes);
        LEFT.set(bytes);
        let limit = Limit;
        let result = work();
        drop(limit);
        // Nobody has stopped waiting.
        let _ = reply.send((result, bytes - LEAST.get()));
    };
    let thread = thread::Builder::new().name("limited".into()).stack_size(STACK_BYTES).spawn(limited);
    let thread = thread.map_err(|_| Stopped::Failed)?;
    loop {
        match result.recv_timeout(LOOKED_AFTER_EVERY) {
            Ok(result) => {
                // It only has to free what is its own.
                let _ = thread.join();
                return Ok(result);
            }
            Err(RecvTimeoutError::Disconnected) => return Err(Stopped::Failed),
            Err(RecvTimeoutError::Timeout) if is_over.load(Ordering::Acquire) => {
                return Err(Stopped::OverBudget);
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// The calling thread's limit, which ends when this is dropped.
struct Limit;

impl Drop for Limit {
    fn drop(&mut self) {
        LEFT.set(UNLIMITED);
        IS_OVER.set(ptr::null());
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
        Some(left) => {
            LEFT.set(left);
            LEAST.set(left.min(LEAST.get()));
        }
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

/// Ends the calling thread's work without unwinding, which neither an allocator nor a signal handler may do.
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
