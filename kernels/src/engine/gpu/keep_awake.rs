//! Keeps a GPU's clock up while its worker waits for messages.
//!
//! Between the layers of a token a worker's GPU waits for the hub, and a GPU that is busy for less than a third of the time
//! lowers its clock within seconds: on an H200 from 1,980 to 345 MHz, and the experts of one row take 140 us instead of 83.
//! One workgroup that computes for a few microseconds, again and again, prevents it: behind a hub, whose worker looks at its
//! sockets in between, the clock stays between 1,050 and 1,980 MHz. It delays no message that can be measured, and takes
//! about 50 W.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use super::{
    device::GpuDevice,
    pipeline::{Pipeline, allocate},
    shaders::int8_shader,
};

/// Keeps a GPU's clock up, as long as [`Self::turn`] is called.
#[derive(Debug)]
pub struct KeepAwake {
    device: GpuDevice,
    pipeline: Pipeline,
    is_under_way: Arc<AtomicBool>,
}

impl KeepAwake {
    /// For a device whose clock is worth it: one with memory of its own, which shares its power with no processor.
    pub fn new(device: &GpuDevice) -> Option<Self> {
        let info = device.info();
        (info.discrete && !info.software).then(|| Self::of(device))
    }

    pub(super) fn of(device: &GpuDevice) -> Self {
        let shader = int8_shader("keep_awake");
        let result = allocate(device, "keep awake", 256, wgpu::BufferUsages::STORAGE, &mut 0);
        let bind = |layout: &wgpu::BindGroupLayout| {
            let entry = wgpu::BindGroupEntry { binding: 4, resource: result.as_entire_binding() };
            let descriptor =
                wgpu::BindGroupDescriptor { label: Some(shader.entry_point), layout, entries: &[entry] };
            vec![device.wgpu().create_bind_group(&descriptor)]
        };
        let pipeline = Pipeline::new(device, shader, Vec::new(), bind);
        Self { device: device.clone(), pipeline, is_under_way: Arc::default() }
    }

    /// Submits the work, unless the last is still under way; whether it did. To be called as often as the thread looks for a
    /// message.
    pub fn turn(&self) -> bool {
        // Calls back what is done. The polling thread reports errors.
        let _ = self.device.wgpu().poll(wgpu::PollType::Poll);
        if self.is_under_way.swap(true, Ordering::AcqRel) {
            return false;
        }
        let mut encoder = self.device.wgpu().create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(self.pipeline.pipeline());
        pass.set_bind_group(0, self.pipeline.bind_group(0), &[]);
        pass.dispatch_workgroups(1, 1, 1);
        drop(pass);
        self.device.queue().submit([encoder.finish()]);
        let is_under_way = Arc::clone(&self.is_under_way);
        self.device.queue().on_submitted_work_done(move || is_under_way.store(false, Ordering::Release));
        true
    }
}
