//! Buffers of intermediates: one that is released is the next of its size.

use crate::{
    engine::gpu::{device::GpuDevice, pipeline::allocate},
    graph::PlanBytes,
};

/// A place of a [`Places`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlaceId(usize);

/// All places of a pass.
pub(super) struct Places<'a> {
    device: &'a GpuDevice,
    places: Vec<Place>,
    /// Buffers made so far, others than places included.
    pub(super) n_buffers: u64,
    naive_bytes: u64,
}

struct Place {
    buffer: wgpu::Buffer,
    bytes: u64,
    n_users: usize,
}

impl<'a> Places<'a> {
    pub(super) fn new(device: &'a GpuDevice) -> Self {
        Self { device, places: Vec::new(), n_buffers: 0, naive_bytes: 0 }
    }

    /// A buffer that is no place.
    pub(super) fn buffer(&mut self, label: &str, bytes: u64, usage: wgpu::BufferUsages) -> wgpu::Buffer {
        allocate(self.device, label, bytes.next_multiple_of(4), usage, &mut self.n_buffers)
    }

    /// A place of `bytes` with one user.
    pub(super) fn take(&mut self, bytes: usize) -> PlaceId {
        use wgpu::BufferUsages as Usage;

        // A vector of four words is the smallest that a kernel binds.
        let bytes = (bytes as u64).next_multiple_of(16).max(64);
        self.naive_bytes += bytes;
        let free = self.places.iter().position(|place| place.n_users == 0 && place.bytes == bytes);
        let index = free.unwrap_or_else(|| {
            let usage = Usage::STORAGE | Usage::COPY_SRC | Usage::COPY_DST;
            let buffer = self.buffer("place", bytes, usage);
            self.places.push(Place { buffer, bytes, n_users: 0 });
            self.places.len() - 1
        });
        self.places[index].n_users = 1;
        PlaceId(index)
    }

    /// One more user of a place.
    pub(super) fn share(&mut self, place: PlaceId) {
        self.places[place.0].n_users += 1;
    }

    /// One user less.
    pub(super) fn release(&mut self, place: PlaceId) {
        self.places[place.0].n_users -= 1;
    }

    /// Bytes of all places, and those of as many buffers as were taken.
    pub(super) fn plan_bytes(&self) -> PlanBytes {
        let planned: u64 = self.places.iter().map(|place| place.bytes).sum();
        PlanBytes { planned: planned as usize, naive: self.naive_bytes as usize }
    }

    pub(super) fn get(&self, place: PlaceId) -> wgpu::Buffer {
        self.places[place.0].buffer.clone()
    }
}
