//! A thread pool for jobs of tens of microseconds.
//!
//! After a job, its threads keep looking for the next one for a while, so that it reaches them in less than a
//! microsecond; then they sleep. They soon give way to anyone else who wants their core: the process beside them may be
//! the worker that they wait for. A job is a number of tasks and a function of a task's number; threads take tasks in
//! order until none is left. A job allocates and sends nothing, and does not wait for a thread that wakes late.

use std::{
    cell::UnsafeCell,
    hint,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, Mutex, TryLockError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
};

/// The most threads of a pool.
pub const MAX_THREADS: usize = 256;

/// How often an idle thread looks for a job, with a pause between looks, before it yields: up to 3 microseconds.
const SPINS: u32 = 64;
/// How often it looks after that, yielding between looks, before it sleeps: a millisecond or two on an idle core. A
/// worker takes about that long for a layer of experts; a thread that slept meanwhile would take tens of microseconds
/// to wake up.
const YIELDS: u32 = 4096;

/// Threads that wait for jobs; the thread that submits a job works on it too.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Held while a job runs.
    turn: Mutex<()>,
}

type Job<'a> = dyn Fn(usize) + Sync + 'a;

/// The state that all threads share.
///
/// ```text
/// state: | number of the job, 32 bits | helpers, 15 bits | open | threads inside, 16 bits |
/// ```
///
/// A job of few tasks wants few helpers, the first ones: the others neither wake nor touch the state, and sleep soon
/// where no job is larger. A thread enters an open job by adding itself, and only then reads it. The submitter closes the job and waits until
/// nobody is inside before it takes the job away.
struct Shared {
    state: Aligned<AtomicU64>,
    next: Aligned<AtomicUsize>,
    job: UnsafeCell<Option<(*const Job<'static>, usize)>>,
    sleeping: Vec<AtomicBool>,
    panicked: AtomicBool,
    stop: AtomicBool,
}

/// On a cache line of its own.
#[repr(align(128))]
struct Aligned<T>(T);

const OPEN: u64 = 1 << 16;
const INSIDE: u64 = OPEN - 1;
const HELPERS: u32 = 17;
const MAX_HELPERS: u64 = (1 << (NUMBER - HELPERS)) - 1;
const NUMBER: u32 = 32;
const _: () = assert!(MAX_THREADS as u64 <= MAX_HELPERS);

// SAFETY: the job is written while it is closed and nobody is inside, and read by those inside; `Job` is `Sync`.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Pool {
    /// A pool of `n_threads`, including the thread that submits jobs: 1 starts none, nor does wasm. At most
    /// [`MAX_THREADS`], or as many as the system gives.
    pub fn new(n_threads: usize) -> Self {
        let n = if cfg!(target_arch = "wasm32") { 0 } else { n_threads.clamp(1, MAX_THREADS) - 1 };
        let shared = Arc::new(Shared {
            state: Aligned(AtomicU64::new(0)),
            next: Aligned(AtomicUsize::new(0)),
            job: UnsafeCell::new(None),
            sleeping: (0..n).map(|_| AtomicBool::new(false)).collect(),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        #[cfg_attr(
            target_arch = "wasm32",
            expect(clippy::disallowed_methods, reason = "never called there: n is 0")
        )]
        let spawn = |index| {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name(format!("moex-{index}")).spawn(move || shared.serve(index)).ok()
        };
        let threads = (0..n).map_while(spawn).collect();
        Self { shared, threads, turn: Mutex::new(()) }
    }

    /// How many threads work on a job.
    pub fn n_threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Runs `job(0)`, `job(1)`, … `job(n_tasks - 1)` on all threads and returns when all are done.
    ///
    /// While another job runs, the caller does all tasks itself; so it may be called from within a job.
    ///
    /// # Panics
    /// If a task panics; the other tasks are done first.
    pub fn run(&self, n_tasks: usize, job: &Job<'_>) {
        let turn = match self.turn.try_lock() {
            Ok(turn) => Some(turn),
            // A panic while this was held left nothing half done.
            Err(TryLockError::Poisoned(turn)) => Some(turn.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        if n_tasks <= 1 || self.threads.is_empty() || turn.is_none() {
            return (0..n_tasks).for_each(job);
        }
        let closing = self.open(n_tasks, job);
        self.shared.take_tasks(job, n_tasks);
        drop(closing);
        assert!(!self.shared.panicked.load(Ordering::Relaxed), "a task of the pool panicked");
    }

    fn open<'a>(&'a self, n_tasks: usize, job: &'a Job<'a>) -> Closing<'a> {
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes; `Closing` ends the job before 'a does.
        let job = unsafe { std::mem::transmute::<*const Job<'a>, *const Job<'static>>(job) };
        // SAFETY: the job before was closed and left by all, and `turn` keeps other submitters out.
        unsafe { *shared.job.get() = Some((job, n_tasks)) };
        shared.next.0.store(0, Ordering::Relaxed);
        // A submitter that panicked itself has not checked whether helpers panicked.
        shared.panicked.store(false, Ordering::Relaxed);
        let number = (shared.state.0.load(Ordering::Relaxed) >> NUMBER) + 1;
        // The submitter takes a task too.
        let n_helpers = self.threads.len().min(n_tasks - 1);
        shared.state.0.store(number << NUMBER | (n_helpers as u64) << HELPERS | OPEN, Ordering::SeqCst);
        for (sleeping, thread) in shared.sleeping.iter().zip(&self.threads).take(n_helpers) {
            if sleeping.swap(false, Ordering::SeqCst) {
                thread.thread().unpark();
            }
        }
        Closing { shared }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // A thread's panics were caught and reported where they belong.
            let _ = thread.join();
        }
    }
}

/// Ends a job, also when the submitter's own task panics.
struct Closing<'a> {
    shared: &'a Shared,
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        // Skips the tasks that nobody has taken: there are some only if the submitter panicked.
        self.shared.next.0.store(usize::MAX / 2, Ordering::Relaxed);
        self.shared.state.0.fetch_and(!OPEN, Ordering::AcqRel);
        let mut looks = 0_u32;
        while self.shared.state.0.load(Ordering::Acquire) & INSIDE != 0 {
            look_again(&mut looks);
        }
    }
}

impl Shared {
    /// The loop of a thread.
    fn serve(&self, index: usize) {
        let mut last = 0;
        let mut looks = 0;
        while !self.stop.load(Ordering::Relaxed) {
            match self.enter(index, last) {
                Some(number) => {
                    // SAFETY: inside an open job, which stays until this thread has left.
                    if let Some((job, n_tasks)) = unsafe { *self.job.get() } {
                        // SAFETY: as above.
                        let job = unsafe { &*job };
                        let done = panic::catch_unwind(AssertUnwindSafe(|| self.take_tasks(job, n_tasks)));
                        if done.is_err() {
                            self.panicked.store(true, Ordering::Relaxed);
                        }
                    }
                    self.state.0.fetch_sub(1, Ordering::Release);
                    (last, looks) = (number, 0);
                }
                None if looks < SPINS + YIELDS => look_again(&mut looks),
                None => {
                    self.sleeping[index].store(true, Ordering::SeqCst);
                    let state = self.state.0.load(Ordering::SeqCst);
                    if !wants(state, index, last) && !self.stop.load(Ordering::SeqCst) {
                        thread::park();
                    }
                    self.sleeping[index].store(false, Ordering::SeqCst);
                    looks = 0;
                }
            }
        }
    }

    /// Enters the open job if it wants this thread and is not number `last`; returns its number.
    fn enter(&self, index: usize, last: u64) -> Option<u64> {
        let state = self.state.0.load(Ordering::Relaxed);
        let entered = wants(state, index, last)
            && self.state.0.compare_exchange(state, state + 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        entered.then_some(state >> NUMBER)
    }

    fn take_tasks(&self, job: &Job<'_>, n_tasks: usize) {
        loop {
            let task = self.next.0.fetch_add(1, Ordering::Relaxed);
            if task >= n_tasks {
                return;
            }
            job(task);
        }
    }
}

/// Whether a job is open that wants thread `index` and is not number `last`.
fn wants(state: u64, index: usize, last: u64) -> bool {
    state & OPEN != 0 && state >> NUMBER != last && (index as u64) < state >> HELPERS & MAX_HELPERS
}

/// Waits a moment between two looks.
fn look_again(looks: &mut u32) {
    *looks = looks.saturating_add(1);
    if *looks < SPINS { hint::spin_loop() } else { thread::yield_now() }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("state", &self.state.0).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn each_once(pool: &Pool, n_tasks: usize) {
        let counts: Vec<AtomicUsize> = (0..n_tasks).map(|_| AtomicUsize::new(0)).collect();
        pool.run(n_tasks, &|task| {
            counts[task].fetch_add(1, Ordering::Relaxed);
        });
        assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
    }

    #[test]
    fn every_task_runs_once_whoever_is_awake() {
        for n_threads in [0, 1, 2, 5] {
            let pool = Pool::new(n_threads);
            assert_eq!(pool.n_threads(), n_threads.max(1));
            for n_tasks in (0..40).chain([10_000]) {
                each_once(&pool, n_tasks);
            }
            thread::sleep(Duration::from_millis(20)); // long enough for all to sleep
            each_once(&pool, 100);
        }
    }

    #[test]
    fn a_job_of_few_tasks_wakes_few_threads() {
        let pool = Pool::new(6);
        let n_asleep = || pool.shared.sleeping.iter().filter(|sleeps| sleeps.load(Ordering::SeqCst)).count();
        while n_asleep() < 5 {
            thread::sleep(Duration::from_millis(1));
        }
        for _ in 0..100 {
            each_once(&pool, 3);
        }
        assert!(n_asleep() >= 3, "two helpers are enough");
    }

    #[test]
    fn jobs_from_many_threads_and_from_within_jobs() {
        let pool = Pool::new(3);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..500).for_each(|n| each_once(&pool, n % 7)));
            }
        });
        pool.run(3, &|_| each_once(&pool, 3));
    }

    #[test]
    fn a_panic_reaches_the_submitter_and_the_pool_goes_on() {
        let pool = Pool::new(2);
        for bad in [0, 50, 99] {
            let run = || pool.run(100, &|task| assert_ne!(task, bad));
            assert!(panic::catch_unwind(AssertUnwindSafe(run)).is_err());
            each_once(&pool, 100);
        }
    }

    #[test]
    fn a_job_in_which_everybody_panics_is_not_held_against_the_next() {
        let pool = Pool::new(2);
        let n_inside = AtomicUsize::new(0);
        let run = || {
            pool.run(2, &|_| {
                n_inside.fetch_add(1, Ordering::SeqCst);
                while n_inside.load(Ordering::SeqCst) < 2 {
                    thread::yield_now();
                }
                panic!("as the test wants it");
            });
        };
        assert!(panic::catch_unwind(AssertUnwindSafe(run)).is_err());
        each_once(&pool, 100);
    }
}
