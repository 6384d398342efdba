//! Keeps a GPU's clock up while its worker waits for messages.
//!
//! Between the layers of a token a worker's GPU waits for the hub, and a GPU that is busy for less than a third of the time
//! lowers its clock within seconds: on an H200 from 1,980 to 345 MHz, and the experts of one row take 140 us instead of 83.
//! One workgroup that computes for some microseconds, again and again, prevents it. But a message that comes while it is submitted
//! or computed waits for it: so none is submitted when a message is due, as [`Gaps`] tells. It takes about 50 W.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::{
    device::GpuDevice,
    pipeline::{Pipeline, allocate},
    shaders::int8_shader,
};

/// The longest that a submission keeps the thread and the GPU from a message.
const WORK: Duration = Duration::from_micros(60);
/// Gaps between messages of which the shortest is expected again.
const N_GAPS: usize = 8;

/// Keeps a GPU's clock up, as long as [`Self::look`] is called.
#[derive(Debug)]
pub struct KeepAwake {
    work: Work,
    gaps: Gaps,
    /// Since when a message is waited for.
    since: Option<Instant>,
}

/// How long the last waits for a message were.
#[derive(Debug, Default)]
struct Gaps {
    last: [Duration; N_GAPS],
    n: usize,
}

/// The computation.
#[derive(Debug)]
pub(super) struct Work {
    device: GpuDevice,
    pipeline: Pipeline,
    is_under_way: Arc<AtomicBool>,
}

impl KeepAwake {
    /// For a device whose clock is worth it: one with memory of its own, which shares its power with no processor.
    pub fn new(device: &GpuDevice) -> Option<Self> {
        let info = device.info();
        (info.discrete && !info.software).then(|| Self {
            work: Work::new(device),
            gaps: Gaps::default(),
            since: None,
        })
    }

    /// Submits work where it delays no message. To be called as often as the thread has looked for a message and found none.
    pub fn look(&mut self) {
        let waited = self.since.get_or_insert_with(Instant::now).elapsed();
        if self.gaps.is_quiet(waited) {
            self.work.turn();
        }
    }

    /// A message has come.
    pub fn found(&mut self) {
        if let Some(since) = self.since.take() {
            self.gaps.add(since.elapsed());
        }
    }
}

impl Gaps {
    fn add(&mut self, gap: Duration) {
        self.last[self.n % N_GAPS] = gap;
        self.n += 1;
    }

    /// Whether no message is due for as long as a submission takes, after a wait of `waited`: one is due when the shortest of the last
    /// waits is over, until half of that again has passed; then something else than a layer is computed.
    fn is_quiet(&self, waited: Duration) -> bool {
        let shortest = self.last.into_iter().min().unwrap_or_default();
        waited + WORK < shortest || waited > shortest + shortest / 2
    }
}

impl Work {
    pub(super) fn new(device: &GpuDevice) -> Self {
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

    /// Submits it, unless the last is still under way; whether it did.
    pub(super) fn turn(&self) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_submitted_when_a_message_is_due() {
        let micros = Duration::from_micros;
        let mut gaps = Gaps::default();
        assert!(gaps.is_quiet(micros(1)), "nothing is known");
        // Seven layers and a head.
        for gap in [400, 420, 390, 3000, 410, 500, 400, 405] {
            gaps.add(micros(gap));
        }
        let quiet = [0, 329, 331, 400, 584, 586, 3000].map(|waited| gaps.is_quiet(micros(waited)));
        assert_eq!(quiet, [true, true, false, false, false, true, true]);
        // A hub that needs no time for itself leaves none.
        gaps.add(micros(50));
        let quiet = [0, 70, 80].map(|waited| gaps.is_quiet(micros(waited)));
        assert_eq!(quiet, [false, false, true]);
        for _ in 0..N_GAPS {
            gaps.add(micros(400));
        }
        assert!(gaps.is_quiet(micros(80)), "that is long ago");
    }
}
