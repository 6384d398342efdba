//! Stacks that overflow: the thread stops, as one without memory does. Without this the process would end.

use std::{
    cell::Cell,
    mem, ptr,
    sync::{
        Once,
        atomic::{AtomicUsize, Ordering},
    },
};

/// How far from the end of a stack its overflow may be seen: the guard's pages and the stack's own rounding.
const NEAR: usize = 1 << 20;

/// The handler that was there before, which knows everything else.
static BEFORE: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);

thread_local! {
    /// Where this thread's stack ends, if it is watched.
    static END: Cell<usize> = const { Cell::new(0) };
}

/// Watches the calling thread's stack of `bytes`, of which nearly nothing is used.
pub(super) fn watch(bytes: usize) {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(install);
    let top = 0_u8;
    END.set((&raw const top as usize).saturating_sub(bytes));
}

/// If the handler cannot be installed, an overflow ends the process.
fn install() {
    // SAFETY: the action is zeroed but for what is set, which is a valid one. The handler reads this thread's cells and stores
    // atomics, which may interrupt anything, and runs on the alternate stack that the standard library gives each thread.
    unsafe {
        let (mut action, mut before): (libc::sigaction, libc::sigaction) = (mem::zeroed(), mem::zeroed());
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        if libc::sigaction(libc::SIGSEGV, ptr::null(), &raw mut before) == 0 {
            // A handler of the older form is passed less than this one would pass on.
            if before.sa_flags & libc::SA_SIGINFO != 0 {
                BEFORE.store(before.sa_sigaction, Ordering::Release);
            }
            libc::sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut());
        }
    }
}

extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system passes the fault's information.
    let address = unsafe { (*info).si_addr() as usize };
    if END.get() != 0 && address.abs_diff(END.get()) < NEAR {
        super::stop();
    }
    match BEFORE.load(Ordering::Acquire) {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: it faults again, and then the process ends.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        before => {
            // SAFETY: a handler of this form was installed for this signal.
            unsafe {
                let before: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                    mem::transmute(before);
                before(signal, info, context);
            }
        }
    }
}
