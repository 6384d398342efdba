//! Files that are cut short while they are mapped.
//!
//! Reading a page that a mapped file no longer has raises SIGBUS, which ends a process. Here the page becomes zeros and the
//! reader goes on; [`check`] names the file from then on, and whoever has read asks it before using the result. On Linux
//! alone: Windows does not shorten a mapped file, and elsewhere the process ends.

use std::path::PathBuf;

/// A mapped file is shorter than it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} was cut short while it was in use: put it back whole, and start again", path.display())]
pub struct CutShort {
    /// The file.
    pub path: PathBuf,
}

#[cfg(target_os = "linux")]
pub(super) use linux::Watched;
#[cfg(target_os = "linux")]
pub use linux::check;

/// Whether every mapped file that was read is still whole.
///
/// # Errors
/// Never here.
#[cfg(not(target_os = "linux"))]
pub fn check() -> Result<(), CutShort> {
    Ok(())
}

#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub(super) struct Watched;

#[cfg(not(target_os = "linux"))]
impl Watched {
    pub(super) fn new(_bytes: &[u8], _path: &std::path::Path) -> Self {
        Self
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::{
        io,
        path::{Path, PathBuf},
        ptr,
        sync::{
            Mutex, Once, PoisonError,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use super::CutShort;

    /// Mapped files that are watched at a time. A model has a few hundred at most.
    const MAX_FILES: usize = 1024;

    /// The addresses of watched files, to be read in a signal handler: start and end, 0 where there is none.
    static RANGES: [(AtomicUsize, AtomicUsize); MAX_FILES] =
        [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; MAX_FILES];
    /// Their paths.
    static PATHS: Mutex<[Option<PathBuf>; MAX_FILES]> = Mutex::new([const { None }; MAX_FILES]);
    /// 1 + the first file that was found to be cut short, or 0.
    static CUT_SHORT: AtomicUsize = AtomicUsize::new(0);
    static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);

    /// A file that is watched while this lives. It must end before the mapping does.
    #[derive(Debug)]
    pub(in crate::mapped) struct Watched(Option<usize>);

    impl Watched {
        /// Watches the mapping `bytes` of the file `path`.
        pub(in crate::mapped) fn new(bytes: &[u8], path: &Path) -> Self {
            static HANDLER: Once = Once::new();
            // Where the handler cannot be installed, nothing is watched.
            HANDLER.call_once(|| drop(install()));
            let mut paths = PATHS.lock().unwrap_or_else(PoisonError::into_inner);
            let free = paths.iter().position(Option::is_none);
            if let Some(at) = free {
                paths[at] = Some(path.to_owned());
                let range = bytes.as_ptr_range();
                RANGES[at].1.store(range.end as usize, Ordering::Release);
                RANGES[at].0.store(range.start as usize, Ordering::Release);
            }
            Self(free)
        }
    }

    impl Drop for Watched {
        fn drop(&mut self) {
            let Some(at) = self.0 else { return };
            let mut paths = PATHS.lock().unwrap_or_else(PoisonError::into_inner);
            RANGES[at].0.store(0, Ordering::Release);
            RANGES[at].1.store(0, Ordering::Release);
            // What was cut short keeps its name.
            if CUT_SHORT.load(Ordering::Acquire) != at + 1 {
                paths[at] = None;
            }
        }
    }

    /// Whether every mapped file that was read is still whole.
    ///
    /// # Errors
    /// [`CutShort`], the first that was not.
    pub fn check() -> Result<(), CutShort> {
        let Some(at) = CUT_SHORT.load(Ordering::Acquire).checked_sub(1) else { return Ok(()) };
        let paths = PATHS.lock().unwrap_or_else(PoisonError::into_inner);
        Err(CutShort { path: paths[at].clone().unwrap_or_default() })
    }

    fn install() -> io::Result<()> {
        // SAFETY: sysconf reads a number. The action is zeroed but for what is set, which is a valid one; the handler calls
        // only mmap, signal and atomics, which may interrupt anything, and runs on the thread's alternate stack if it has one.
        unsafe {
            let page_bytes = libc::sysconf(libc::_SC_PAGESIZE);
            PAGE_BYTES.store(usize::try_from(page_bytes).map_err(io::Error::other)?, Ordering::Release);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_bus_error as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            match libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        }
    }

    /// Puts a page of zeros where a watched file has none. Of everything else the process ends, as it would without.
    extern "C" fn on_bus_error(signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
        // SAFETY: the system passes the fault's information. The page that is replaced lies in a read-only mapping of ours,
        // which nobody can read there otherwise.
        unsafe {
            let address = (*info).si_addr() as usize;
            let is_at = |range: &(AtomicUsize, AtomicUsize)| {
                let (start, end) = (range.0.load(Ordering::Acquire), range.1.load(Ordering::Acquire));
                start != 0 && (start..end).contains(&address)
            };
            let n = PAGE_BYTES.load(Ordering::Acquire);
            let zeros = |at| {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                libc::mmap(at, n, libc::PROT_READ, flags, -1, 0) != libc::MAP_FAILED
            };
            let file = RANGES.iter().position(is_at).filter(|_| (*info).si_code == libc::BUS_ADRERR);
            match file {
                Some(file) if zeros((address & !(n - 1)) as *mut libc::c_void) => {
                    let _ = CUT_SHORT.compare_exchange(0, file + 1, Ordering::AcqRel, Ordering::Acquire);
                }
                // It faults again, and then the process ends.
                _ => drop(libc::signal(signal, libc::SIG_DFL)),
            }
        }
    }
}
