//! Bytes of weights sent over HTTP, in all and to each worker that says who it is.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use moex_protocol::WorkerId;
use moex_swarm::SwarmStatus;

/// Workers whose bytes are counted apart.
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
    /// The count of this worker; none if as many are counted as may be.
    pub(super) fn of_worker(&self, worker: WorkerId) -> Option<WorkerBytes> {
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        if workers.len() >= MAX_COUNTED_WORKERS && !workers.contains_key(&worker) {
            return None;
        }
        Some(WorkerBytes(workers.entry(worker).or_default().clone()))
    }

    /// So many bytes were sent, to this worker if it is known.
    pub(super) fn count(&self, n_bytes: u64, worker: Option<&WorkerBytes>) {
        self.total.fetch_add(n_bytes, Ordering::Relaxed);
        if let Some(WorkerBytes(bytes)) = worker {
            bytes.fetch_add(n_bytes, Ordering::Relaxed);
        }
    }

    /// Fills the counts into a status.
    pub(super) fn fill_in(&self, status: &mut SwarmStatus) {
        status.weights_served_bytes = self.total.load(Ordering::Relaxed);
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        for worker in &mut status.workers {
            let bytes = workers.get(&worker.id);
            worker.weights_served_bytes = bytes.map_or(0, |bytes| bytes.load(Ordering::Relaxed));
        }
    }
}
