//! Copies weights to a GPU, once: panels as the CPU packs them.

use crate::{
    engine::gpu::{device::GpuDevice, pipeline::allocate},
    graph::PackedExperts,
};

/// Bytes that are written at once.
const PIECE_BYTES: usize = 8 << 20;
/// Bytes that may be on their way: the driver keeps a copy of each piece until it has arrived.
const MAX_UNDER_WAY: usize = 128 << 20;

/// The weights of a pass.
pub(super) struct Weights<'a> {
    device: &'a GpuDevice,
    pub(super) n_bytes: u64,
    pub(super) n_buffers: u64,
    under_way: usize,
    /// Stands for all of them, where nothing is copied.
    nothing: Option<wgpu::Buffer>,
}

impl<'a> Weights<'a> {
    pub(super) fn new(device: &'a GpuDevice) -> Self {
        Self { device, n_bytes: 0, n_buffers: 0, under_way: 0, nothing: None }
    }

    /// Copies nothing: for a pass whose intermediates are being planned.
    pub(super) fn left_out(device: &'a GpuDevice) -> Self {
        let nothing = allocate(device, "nothing", 64, wgpu::BufferUsages::STORAGE, &mut 0);
        Self { nothing: Some(nothing), ..Self::new(device) }
    }

    /// Parts of a slab, one after another.
    ///
    /// # Errors
    /// If no binding is as large.
    pub(super) fn upload(&mut self, parts: &[&[u8]]) -> Result<wgpu::Buffer, String> {
        let slab = self.slab(parts.iter().map(|part| part.len()).sum())?;
        let mut start = 0;
        for part in parts {
            self.write(&slab, start, part);
            start += part.len();
        }
        Ok(slab)
    }

    /// A vector.
    pub(super) fn upload_floats(&mut self, values: &[f32]) -> wgpu::Buffer {
        let slab = self.upload(&[bytemuck::cast_slice(values)]);
        slab.expect("a vector is far smaller than the smallest binding that devices have")
    }

    /// All experts of a layer, `(how many, bytes of each)`.
    ///
    /// # Errors
    /// If no binding is as large, or an expert cannot be read.
    pub(super) fn upload_experts(
        &mut self,
        experts: &dyn PackedExperts,
        layer: usize,
        (n_experts, expert_bytes): (usize, usize),
    ) -> Result<wgpu::Buffer, String> {
        let slab = self.slab(n_experts.saturating_mul(expert_bytes))?;
        let n_copied = if self.nothing.is_none() { n_experts } else { 0 };
        for expert in 0..n_copied {
            experts.read(layer, expert, &mut |panels| self.write(&slab, expert * expert_bytes, panels))?;
        }
        Ok(slab)
    }

    fn slab(&mut self, bytes: usize) -> Result<wgpu::Buffer, String> {
        let most = self.device.wgpu().limits().max_storage_buffer_binding_size;
        if bytes as u64 > most {
            let [weights, most] = [bytes as u64, most].map(|bytes| bytes.div_ceil(1 << 20));
            return Err(format!(
                "a matrix, or a layer's experts, of {weights} MiB: this GPU binds {most} MiB at most"
            ));
        }
        if let Some(nothing) = &self.nothing {
            return Ok(nothing.clone());
        }
        self.n_bytes += bytes as u64;
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        let bytes = (bytes as u64).next_multiple_of(16).max(64);
        Ok(allocate(self.device, "weights", bytes, usage, &mut self.n_buffers))
    }

    fn write(&mut self, slab: &wgpu::Buffer, start: usize, bytes: &[u8]) {
        if self.nothing.is_some() {
            return;
        }
        for (index, piece) in bytes.chunks(PIECE_BYTES).enumerate() {
            self.device.queue().write_buffer(slab, (start + index * PIECE_BYTES) as u64, piece);
            self.under_way += piece.len();
            if self.under_way >= MAX_UNDER_WAY {
                let submission_index = Some(self.device.queue().submit([]));
                // A device that fails here fails its health, which is looked at when all is there.
                let _ = self.device.wgpu().poll(wgpu::PollType::Wait { submission_index, timeout: None });
                self.under_way = 0;
            }
        }
    }
}
