//! Counters of an engine, readable while it runs.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Counters that only grow, except for the KV pages in use.
#[derive(Debug, Default)]
pub struct Counts {
    rows: AtomicU64,
    tokens: AtomicU64,
    cached: AtomicU64,
    steps: AtomicU64,
    stepped_micros: AtomicU64,
    waited_micros: AtomicU64,
    kv_pages: AtomicU64,
    max_kv_pages: AtomicU64,
}

impl Counts {
    /// Rows computed by the model: prompt tokens that were not cached, and generated ones.
    pub fn rows(&self) -> u64 {
        self.rows.load(Relaxed)
    }

    /// Generated tokens.
    pub fn tokens(&self) -> u64 {
        self.tokens.load(Relaxed)
    }

    /// Tokens whose keys and values were in the prefix cache.
    pub fn cached(&self) -> u64 {
        self.cached.load(Relaxed)
    }

    /// Forward passes.
    pub fn steps(&self) -> u64 {
        self.steps.load(Relaxed)
    }

    /// Time spent in forward passes.
    pub fn stepped(&self) -> Duration {
        Duration::from_micros(self.stepped_micros.load(Relaxed))
    }

    /// Part of that time spent waiting for experts with nothing else to compute: the bubble.
    pub fn waited(&self) -> Duration {
        Duration::from_micros(self.waited_micros.load(Relaxed))
    }

    /// Fraction of the KV cache that sequences use now, 0 to 1; pages kept for later sequences do not count.
    pub fn kv_usage(&self) -> f64 {
        self.kv_pages.load(Relaxed) as f64 / self.max_kv_pages.load(Relaxed).max(1) as f64
    }

    pub(super) fn set_kv(&self, pages: usize, max_pages: usize) {
        self.kv_pages.store(pages as u64, Relaxed);
        self.max_kv_pages.store(max_pages as u64, Relaxed);
    }

    pub(super) fn add_step(&self, n_rows: usize, n_tokens: usize, took: Duration, waited: Duration) {
        self.steps.fetch_add(1, Relaxed);
        self.stepped_micros.fetch_add(took.as_micros() as u64, Relaxed);
        self.waited_micros.fetch_add(waited.as_micros() as u64, Relaxed);
        self.rows.fetch_add(n_rows as u64, Relaxed);
        self.tokens.fetch_add(n_tokens as u64, Relaxed);
    }

    pub(super) fn add_cached(&self, n: usize) {
        self.cached.fetch_add(n as u64, Relaxed);
    }
}
