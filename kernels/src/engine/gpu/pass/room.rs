//! How many layers' experts a GPU's memory has room for, beside all else.

use super::pages::pollster;
use crate::{
    engine::gpu::device::GpuDevice,
    graph::{Op, PackedExperts, Program},
};

/// Which layers' experts are on the GPU; those of the others are computed elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResidentExperts {
    /// Those of the first so many layers with experts.
    First(usize),
    /// Those of as many layers as fit beside the other weights and so many bytes.
    AsFit {
        /// What is left for keys and values.
        beside: u64,
    },
}

/// Intermediates, tables and the driver's own.
const OWN_BYTES: u64 = 256 << 20;
/// Memory is asked for in pieces of at most this many bytes.
const PIECE_BYTES: u64 = 1 << 30;

impl ResidentExperts {
    /// Of how many layers, from the first layer with experts on.
    pub(super) fn n_layers(
        self,
        device: &GpuDevice,
        program: &Program,
        experts: &dyn PackedExperts,
    ) -> usize {
        let bytes_of = |layer: usize| {
            let shape = experts.shape(layer);
            shape.map_or(0, |shape| (experts.n_experts(layer) * shape.bytes()) as u64)
        };
        let layers = program.ops().iter().filter_map(|op| match op {
            Op::Experts { layer, .. } => Some(bytes_of(*layer)),
            _ => None,
        });
        match self {
            Self::First(n) => n.min(layers.count()),
            Self::AsFit { beside } => {
                let mut room = Room { device, held: Vec::new() };
                if !room.take(program.weight_bytes() as u64 + beside + OWN_BYTES) {
                    return 0;
                }
                layers.take_while(|bytes| room.take(*bytes)).count()
            }
        }
    }
}

/// Memory that is held to see whether it is there.
struct Room<'a> {
    device: &'a GpuDevice,
    held: Vec<wgpu::Buffer>,
}

impl Room<'_> {
    /// Holds so many bytes more; false if the GPU does not have them.
    fn take(&mut self, bytes: u64) -> bool {
        let wgpu = self.device.wgpu();
        let piece = PIECE_BYTES.min(wgpu.limits().max_buffer_size);
        let mut left = bytes;
        while left > 0 {
            let size = left.min(piece).next_multiple_of(16);
            let scope = wgpu.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
            let buffer = wgpu.create_buffer(&wgpu::BufferDescriptor {
                label: Some("room"),
                size,
                usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            });
            if pollster(scope.pop()).is_some() {
                return false;
            }
            self.held.push(buffer);
            left = left.saturating_sub(size);
        }
        true
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.held.iter().for_each(wgpu::Buffer::destroy);
        // A device that fails here fails its health, which is looked at later.
        let _ = self.device.wgpu().poll(wgpu::PollType::Poll);
    }
}
