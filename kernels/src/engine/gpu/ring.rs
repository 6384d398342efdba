//! Rings of buffers that the CPU maps: for messages, for reading results back and for staging weights.

use std::sync::{Arc, Mutex, Weak};

use super::{
    device::GpuDevice,
    signal::{Health, Signal, lock},
};
use crate::engine::{EngineError, Stage};

/// Buffers of one size, lent one at a time; a borrower waits until one is free.
#[derive(Debug)]
pub(super) struct Ring {
    /// Not the device itself: a callback that holds a lease must never hold the device's last handle.
    health: Arc<Health>,
    buffers: Vec<wgpu::Buffer>,
    state: Mutex<RingState>,
}

#[derive(Debug)]
struct RingState {
    free: Vec<usize>,
    waiting: Vec<Weak<Signal>>,
}

impl Ring {
    pub(super) fn new(device: &GpuDevice, buffers: Vec<wgpu::Buffer>) -> Arc<Self> {
        let state = RingState { free: (0..buffers.len()).rev().collect(), waiting: Vec::new() };
        Arc::new(Self { health: Arc::clone(device.health()), buffers, state: Mutex::new(state) })
    }

    /// Lends a buffer if one is free.
    #[cfg(not(target_arch = "wasm32"))]
    pub(super) fn try_lend(self: &Arc<Self>) -> Option<Lease> {
        let index = lock(&self.state).free.pop()?;
        Some(Lease { ring: Arc::clone(self), index, mapping: false })
    }

    /// Lends a free buffer, once there is one.
    pub(super) async fn lend(self: &Arc<Self>) -> Result<Lease, EngineError> {
        loop {
            let signal = {
                let mut state = lock(&self.state);
                self.health.check()?;
                if let Some(index) = state.free.pop() {
                    return Ok(Lease { ring: Arc::clone(self), index, mapping: false });
                }
                let signal = self.health.signal();
                state.waiting.push(Arc::downgrade(&signal));
                signal
            };
            signal.wait().await?;
        }
    }

    /// Takes a buffer back and wakes all waiters: a single one that has given up meanwhile would swallow the news.
    fn take_back(&self, index: usize) {
        let mut state = lock(&self.state);
        state.free.push(index);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for signal in waiting.iter().filter_map(Weak::upgrade) {
            signal.fire(Ok(()));
        }
    }
}

/// One buffer of a ring, lent until dropped.
#[derive(Debug)]
pub(super) struct Lease {
    ring: Arc<Ring>,
    index: usize,
    /// Whether it is mapped, or about to be mapped, for reading.
    mapping: bool,
}

impl Lease {
    pub(super) fn buffer(&self) -> &wgpu::Buffer {
        &self.ring.buffers[self.index]
    }

    /// Shows the first `n_bytes` to `take`, after the submission that writes them.
    pub(super) async fn read(
        mut self,
        device: &GpuDevice,
        n_bytes: u64,
        after: wgpu::SubmissionIndex,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<(), EngineError> {
        let signal = self.ring.health.signal();
        let fired = Arc::clone(&signal);
        self.mapping = true;
        self.buffer().map_async(wgpu::MapMode::Read, ..n_bytes, move |result| {
            fired.fire(result.map_err(|e| EngineError::Device(format!("reading back: {e}"))));
        });
        // Watched only after the mapping was requested: the poll that completes the submission also completes the
        // mapping.
        device.watch_closely(after, &signal);
        signal.wait().await?;
        device.tell(Stage::Ready);
        let view = self.buffer().get_mapped_range(..n_bytes);
        let view = view.map_err(|e| EngineError::Device(format!("reading back: {e}")))?;
        take(&view);
        device.tell(Stage::Read);
        Ok(())
    }

    /// Writes `bytes` from `start` on, a multiple of 8, to a buffer that is mapped for writing; a multiple of 4.
    pub(super) fn fill(&self, start: u64, bytes: &[u8]) -> Result<(), EngineError> {
        let mut view = self
            .buffer()
            .get_mapped_range_mut(start..start + bytes.len() as u64)
            .map_err(|e| EngineError::Device(format!("staging: {e}")))?;
        view.copy_from_slice(bytes);
        Ok(())
    }

    /// Writes `bytes` to a buffer that is mapped for writing, and unmaps it.
    pub(super) fn write(&self, bytes: &[u8]) -> Result<(), EngineError> {
        self.fill(0, bytes)?;
        self.buffer().unmap();
        Ok(())
    }

    /// Gives the buffer back once it is mapped for writing again, after the submission that reads it.
    pub(super) fn map_again(self, device: &GpuDevice, after: wgpu::SubmissionIndex) {
        self.map_after();
        device.watch(after);
    }

    /// [`Self::map_again`] after a submission that somebody else watches.
    pub(super) fn map_after(self) {
        let buffer = self.buffer().clone();
        buffer.map_async(wgpu::MapMode::Write, .., move |result| match result {
            Ok(()) => drop(self),
            Err(e) => {
                self.ring.health.fail(EngineError::Device(format!("staging: {e}")));
            }
        });
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.mapping {
            // This also ends a mapping that nobody waits for any more.
            self.buffer().unmap();
        }
        self.ring.take_back(self.index);
    }
}
