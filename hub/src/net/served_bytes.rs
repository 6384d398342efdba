//! Counts bytes of weights sent over HTTP, in total and for each worker that identifies itself.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use moex_protocol::WorkerId;
use moex_swarm::SwarmStatus;

/// Maximum number of workers counted individually.
const MAX_COUNTED_WORKERS: usize = 4096;

/// The counts.
#[derive(Debug, Default)]
pub(super) struct ServedBytes {
    total: AtomicU64,
    workers: Mutex<HashMap<WorkerId, Arc<AtomicU64>>>,
}

/// The count of one worker.
#[derive(Debug)]
pub(super) struct WorkerBytes(Arc<AtomicU64>);

impl ServedBytes {
    /// The counter of this worker; none if the maximum is reached.
    pub(super) fn of_worker(&self, worker: WorkerId) -> Option<WorkerBytes> {
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        if workers.len() >= MAX_COUNTED_WORKERS && !workers.contains_key(&worker) {
            return None;
        }
        Some(WorkerBytes(workers.entry(worker).or_default().clone()))
    }

    /// Counts sent bytes, for this worker too if it is known.
    pub(super) fn count(&self, n_bytes: u64, worker: Option<&WorkerBytes>) {
        self.total.fetch_add(n_bytes, Ordering::Relaxed);
        if let Some(WorkerBytes(bytes)) = worker {
            bytes.fetch_add(n_bytes, Ordering::Relaxed);
        }
    }

    /// Fills in the counts of a status.
    pub(super) fn fill_in(&self, status: &mut SwarmStatus) {
        status.weights_served_bytes = self.total.load(Ordering::Relaxed);
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        for worker in &mut status.workers {
            let bytes = workers.get(&worker.id);
            worker.weights_served_bytes = bytes.map_or(0, |bytes| bytes.load(Ordering::Relaxed));
        }
    }
}
