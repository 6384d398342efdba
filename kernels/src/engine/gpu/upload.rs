//! Takes what a message's kernels read to the GPU: natively through buffers that stay mapped between messages and copies
//! among the message's own commands, in browsers by the queue, which maps nothing.

#[cfg(not(target_arch = "wasm32"))]
pub(super) use mapped::{N_BUFFERS, Parcel, Upload};
#[cfg(target_arch = "wasm32")]
pub(super) use queued::{N_BUFFERS, Parcel, Upload};

#[cfg(not(target_arch = "wasm32"))]
mod mapped {
    use std::sync::Arc;

    use crate::engine::{
        EngineError,
        gpu::{
            device::GpuDevice,
            layout::MAP_ALIGN,
            ring::{Lease, Ring},
        },
    };

    /// Messages that can be on their way at the same time: as many as results.
    pub(in super::super) const N_BUFFERS: usize = crate::engine::gpu::READBACK_BUFFERS;

    /// The way of messages to a device.
    #[derive(Debug)]
    pub(in super::super) struct Upload(Arc<Ring>);

    /// One message on its way.
    #[derive(Debug)]
    pub(in super::super) struct Parcel {
        lease: Lease,
        bytes: u64,
        /// What is copied where: (start in the parcel, buffer, start in it, bytes).
        copies: Vec<(u64, wgpu::Buffer, u64, u64)>,
    }

    impl Upload {
        /// For messages of at most the bytes of these buffers, which are mapped for writing.
        pub(in super::super) fn new(device: &GpuDevice, buffers: Vec<wgpu::Buffer>) -> Self {
            Self(Ring::new(device, buffers))
        }

        /// An empty message, once a buffer is free.
        pub(in super::super) async fn parcel(&self) -> Result<Parcel, EngineError> {
            Ok(Parcel::new(self.0.lend().await?))
        }

        /// An empty message, if a buffer is free.
        pub(in super::super) fn try_parcel(&self) -> Option<Parcel> {
            Some(Parcel::new(self.0.try_lend()?))
        }
    }

    impl Parcel {
        fn new(lease: Lease) -> Self {
            Self { lease, bytes: 0, copies: Vec::new() }
        }

        /// Makes room for bytes for the place `start` of a buffer; returns where to [`Self::fill`] them in.
        pub(in super::super) fn reserve(&mut self, to: &wgpu::Buffer, start: u64, n_bytes: u64) -> u64 {
            let at = self.bytes.next_multiple_of(MAP_ALIGN);
            self.bytes = at + n_bytes;
            self.copies.push((at, to.clone(), start, n_bytes));
            at
        }

        /// Bytes up to which it is full.
        pub(in super::super) fn n_bytes(&self) -> u64 {
            self.bytes
        }

        /// Fills the start of a room.
        pub(in super::super) fn fill(&self, at: u64, bytes: &[u8]) -> Result<(), EngineError> {
            self.lease.fill(at, bytes)
        }

        /// Adds bytes for the place `start` of a buffer.
        pub(in super::super) fn put(
            &mut self,
            _: &GpuDevice,
            to: &wgpu::Buffer,
            start: u64,
            bytes: &[u8],
        ) -> Result<(), EngineError> {
            let at = self.reserve(to, start, bytes.len() as u64);
            self.fill(at, bytes)
        }

        /// Records the copies, before all that reads them.
        pub(in super::super) fn record(&self, encoder: &mut wgpu::CommandEncoder) {
            for (from, to, start, bytes) in &self.copies {
                encoder.copy_buffer_to_buffer(self.lease.buffer(), *from, to, *start, *bytes);
            }
        }

        /// All is filled in: what was recorded can be submitted.
        pub(in super::super) fn close(&self) {
            self.lease.buffer().unmap();
        }

        /// Frees the buffer once what was submitted last is done, which somebody else must watch.
        pub(in super::super) fn submitted(self) {
            self.lease.map_after();
        }
    }
}

#[cfg(target_arch = "wasm32")]
mod queued {
    use crate::engine::{EngineError, gpu::device::GpuDevice};

    /// The queue has its own.
    pub(in super::super) const N_BUFFERS: usize = 0;

    /// The way of messages to a device.
    #[derive(Debug)]
    pub(in super::super) struct Upload;

    /// One message on its way.
    #[derive(Debug)]
    pub(in super::super) struct Parcel;

    impl Upload {
        /// Needs no buffers of its own.
        pub(in super::super) fn new(_: &GpuDevice, _: Vec<wgpu::Buffer>) -> Self {
            Self
        }

        /// An empty message.
        pub(in super::super) async fn parcel(&self) -> Result<Parcel, EngineError> {
            Ok(Parcel)
        }
    }

    impl Parcel {
        /// Writes bytes to the place `start` of a buffer.
        pub(in super::super) fn put(
            &mut self,
            device: &GpuDevice,
            to: &wgpu::Buffer,
            start: u64,
            bytes: &[u8],
        ) -> Result<(), EngineError> {
            device.queue().write_buffer(to, start, bytes);
            Ok(())
        }

        pub(in super::super) fn record(&self, _: &mut wgpu::CommandEncoder) {}

        pub(in super::super) fn close(&self) {}

        pub(in super::super) fn submitted(self) {}
    }
}
