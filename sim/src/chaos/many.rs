//! Runs many seeds on all cores: each is an independent world, so they share only a counter.

use std::{
    ops::Range,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use moex_swarm::Totals;

use super::{Outcome, Violation, run};

/// The results of all seeds together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    /// The number of seeds that ran.
    pub seeds: u64,
    /// Events handled.
    pub events: u64,
    /// Virtual time.
    pub time: Duration,
    /// Jobs that ended because nobody held a block.
    pub uncovered: u64,
    /// The swarms' own counts; their percentiles are left at zero.
    pub totals: Totals,
}

/// Runs the seeds on `n_threads` threads and calls `progress` with the number done, now and then.
///
/// # Errors
/// The violation of the lowest seed among those that had failed when the others stopped.
pub fn run_many(
    seeds: Range<u64>,
    n_threads: usize,
    progress: impl Fn(u64) + Sync,
) -> Result<Summary, Box<Violation>> {
    let (next, done) = (AtomicU64::new(seeds.start), AtomicU64::new(0));
    let failed: Mutex<Option<Box<Violation>>> = Mutex::new(None);
    let work = || {
        let mut summary = Summary::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return summary;
            }
            match run(seed, false) {
                Ok(outcome) => summary.add(&Summary::of(&outcome)),
                Err(violation) => {
                    // No thread begins another seed.
                    next.store(seeds.end, Ordering::Relaxed);
                    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                    if failed.as_ref().is_none_or(|other| other.seed > seed) {
                        *failed = Some(violation);
                    }
                    return summary;
                }
            }
            progress(done.fetch_add(1, Ordering::Relaxed) + 1);
        }
    };
    let mut all = Summary::default();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..n_threads.max(1)).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            let part = thread.join().expect("a seed's panic is caught and is its violation");
            all.add(&part);
        }
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(violation) => Err(violation),
        None => Ok(all),
    }
}

impl Summary {
    fn of(outcome: &Outcome) -> Self {
        let &Outcome { time, uncovered, traffic, totals, .. } = outcome;
        Self { seeds: 1, events: traffic.events, time, uncovered, totals }
    }

    fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.events += other.events;
        self.time += other.time;
        self.uncovered += other.uncovered;
        self.totals = self.totals.plus(&other.totals);
    }
}
