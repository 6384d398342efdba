//! Copies weights to a GPU, once: panels as the CPU packs them.

use std::{sync::mpsc, thread};

use super::pages::pollster;
use crate::{
    engine::{
        EngineError,
        gpu::{
            device::GpuDevice,
            layout::MAP_ALIGN,
            pipeline::allocate,
            upload::{Parcel, Upload},
        },
    },
    graph::PackedExperts,
};

/// Bytes of a buffer that the CPU fills while others are copied.
const STAGING_BYTES: u64 = 32 << 20;
const N_STAGING: usize = 4;

/// The weights of a pass.
pub(super) struct Weights<'a> {
    device: &'a GpuDevice,
    pub(super) n_bytes: u64,
    pub(super) n_buffers: u64,
    staging_bytes: u64,
    way: Way,
}

/// Where weights go.
enum Way {
    /// Nothing is copied: a buffer stands for all of them.
    Nowhere(wgpu::Buffer),
    /// To the device, in parcels of which one may be half full.
    Device(Upload, Option<Parcel>),
}

impl<'a> Weights<'a> {
    pub(super) fn new(device: &'a GpuDevice) -> Self {
        Self::staged(device, STAGING_BYTES)
    }

    /// By way of buffers of so many bytes, a multiple of 8.
    fn staged(device: &'a GpuDevice, staging_bytes: u64) -> Self {
        let usage = wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC;
        // None of the pass's: they go with this.
        let staging = (0..N_STAGING).map(|_| allocate(device, "staging", staging_bytes, usage, &mut 0));
        let way = Way::Device(Upload::new(device, staging.collect()), None);
        Self { device, n_bytes: 0, n_buffers: 0, staging_bytes, way }
    }

    /// Copies nothing: for a pass whose intermediates are being planned.
    pub(super) fn left_out(device: &'a GpuDevice) -> Self {
        let nothing = allocate(device, "nothing", 64, wgpu::BufferUsages::STORAGE, &mut 0);
        Self { device, n_bytes: 0, n_buffers: 0, staging_bytes: 0, way: Way::Nowhere(nothing) }
    }

    /// Sends off what is left. To be called before the weights are used.
    pub(super) fn finish(&mut self) {
        if let Way::Device(_, parcel) = &mut self.way
            && let Some(parcel) = parcel.take()
        {
            send(self.device, parcel);
        }
    }

    /// Parts of a slab, one after another.
    ///
    /// # Errors
    /// If no binding is as large, or the device fails.
    pub(super) fn upload(&mut self, parts: &[&[u8]]) -> Result<wgpu::Buffer, String> {
        let slab = self.slab(parts.iter().map(|part| part.len()).sum())?;
        let mut start = 0;
        for part in parts {
            self.write(&slab, start, part)?;
            start += part.len();
        }
        Ok(slab)
    }

    /// A vector.
    ///
    /// # Errors
    /// As [`Self::upload`].
    pub(super) fn upload_floats(&mut self, values: &[f32]) -> Result<wgpu::Buffer, String> {
        self.upload(&[bytemuck::cast_slice(values)])
    }

    /// All experts of a layer, `(how many, bytes of each)`.
    ///
    /// # Errors
    /// If no binding is as large, an expert cannot be read, or the device fails.
    pub(super) fn upload_experts(
        &mut self,
        experts: &dyn PackedExperts,
        layer: usize,
        (n_experts, expert_bytes): (usize, usize),
    ) -> Result<wgpu::Buffer, String> {
        let slab = self.slab(n_experts.saturating_mul(expert_bytes))?;
        if matches!(self.way, Way::Nowhere(_)) {
            return Ok(slab);
        }
        // One expert is packed while the one before it is staged.
        let ((full, packed), (empty, free)) = (mpsc::sync_channel::<Vec<u8>>(1), mpsc::channel());
        thread::scope(|scope| {
            let packing = scope.spawn(move || {
                for expert in 0..n_experts {
                    let mut panels = free.try_recv().unwrap_or_default();
                    experts.copy(layer, expert, &mut panels)?;
                    // Whoever stages them has failed.
                    let Ok(()) = full.send(panels) else { break };
                }
                Ok::<(), String>(())
            });
            for (expert, panels) in packed.into_iter().enumerate() {
                self.write(&slab, expert * expert_bytes, &panels)?;
                // Fails when the last one is packed.
                let _ = empty.send(panels);
            }
            packing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
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
        if let Way::Nowhere(nothing) = &self.way {
            return Ok(nothing.clone());
        }
        self.n_bytes += bytes as u64;
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        let bytes = (bytes as u64).next_multiple_of(16).max(64);
        Ok(allocate(self.device, "weights", bytes, usage, &mut self.n_buffers))
    }

    fn write(&mut self, slab: &wgpu::Buffer, start: usize, bytes: &[u8]) -> Result<(), String> {
        let Way::Device(upload, parcel) = &mut self.way else { return Ok(()) };
        let failed = |error: EngineError| error.to_string();
        let (mut at, mut rest) = (start as u64, bytes);
        while !rest.is_empty() {
            let mut filled = match parcel.take() {
                Some(filled) => filled,
                None => pollster(upload.parcel()).map_err(failed)?,
            };
            let room = self.staging_bytes - filled.n_bytes().next_multiple_of(MAP_ALIGN);
            let piece = rest.split_off(..rest.len().min(room as usize)).unwrap_or_default();
            filled.put(self.device, slab, at, piece).map_err(failed)?;
            at += piece.len() as u64;
            if filled.n_bytes().next_multiple_of(MAP_ALIGN) >= self.staging_bytes {
                send(self.device, filled);
            } else {
                *parcel = Some(filled);
            }
        }
        Ok(())
    }
}

fn send(device: &GpuDevice, parcel: Parcel) {
    let mut encoder = device.wgpu().create_command_encoder(&Default::default());
    parcel.record(&mut encoder);
    parcel.close();
    let submission = device.queue().submit([encoder.finish()]);
    parcel.submitted();
    device.watch(submission);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::gpu::tests::device;

    #[test]
    fn weights_of_any_length_arrive_whole_through_small_buffers() {
        let Some(device) = device() else { return };
        let mut weights = Weights::staged(&device, 64);
        let usage = wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::MAP_READ;
        let lengths = [60, 4, 64, 68, 8, 200, 52, 12, 128, 4, 300];
        let all: Vec<u8> = (0..lengths.iter().sum::<usize>()).map(|i| (i % 251) as u8).collect();
        let slab = allocate(&device, "slab", all.len() as u64, usage, &mut 0);
        let mut start = 0;
        for length in lengths {
            weights.write(&slab, start, &all[start..start + length]).unwrap();
            start += length;
        }
        weights.finish();
        slab.map_async(wgpu::MapMode::Read, .., |mapped| mapped.expect("mapped"));
        device.wgpu().poll(wgpu::PollType::wait_indefinitely()).expect("the device works");
        assert!(slab.get_mapped_range(..).expect("mapped")[..] == all[..]);
    }
}
