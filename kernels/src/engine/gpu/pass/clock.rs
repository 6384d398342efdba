//! Times the dispatches of a step by the GPU's own timestamps, and what they are compared with: the speed of its memory, and the
//! least that a dispatch takes. The pass writes timestamps only where a clock is given to it.

use super::{
    compile::{Step, bind_group},
    structs::Width,
    tiles::Counts,
};
use crate::engine::{
    EngineError,
    gpu::{
        device::{GpuDevice, TIMESTAMPS},
        pipeline::allocate,
        shaders::{Resource, int8_shader},
    },
};

/// The most timestamps of a step, as many as a query set may have.
const MAX_STAMPS: u32 = 4096;
/// Dispatches, each of which waits for the one before, that the least time of one is taken from.
const N_EMPTY: u32 = 256;
/// Times that memory is read, of which the fastest counts.
const N_READS: usize = 8;
/// Workgroups that read it.
const READERS: u32 = 2048;

/// Where a step has timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamps {
    /// Before the first and after the last dispatch.
    Ends,
    /// After each dispatch as well.
    Each,
}

/// How long a step took on the GPU.
#[derive(Clone, Debug)]
pub struct StepTime {
    /// From the first dispatch to the end of the last.
    pub micros: f64,
    /// With [`Stamps::Each`] every dispatch, else none.
    pub dispatches: Vec<DispatchTime>,
}

/// How long a dispatch took, from the end of the one before to its own.
#[derive(Clone, Copy, Debug)]
pub struct DispatchTime {
    /// The name of its shader.
    pub kernel: &'static str,
    /// What it gives, where the shader's name does not say it.
    pub of: &'static str,
    /// Microseconds.
    pub micros: f64,
    /// Bytes of weights, keys and values that a step of one row reads.
    pub bytes: usize,
    /// Its workgroups.
    pub n_workgroups: u32,
    /// Threads of each workgroup.
    pub n_threads: u32,
}

/// Timestamps of a GPU, for measurements.
#[derive(Debug)]
pub struct GpuClock {
    device: GpuDevice,
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    mapped: wgpu::Buffer,
}

impl GpuClock {
    /// None where the device has no timestamps, or was not opened with [`GpuDevice::open_timed`].
    pub fn new(device: &GpuDevice) -> Option<Self> {
        use wgpu::BufferUsages as Usage;

        let wgpu = device.wgpu();
        wgpu.features().contains(TIMESTAMPS).then(|| {
            let (ty, count) = (wgpu::QueryType::Timestamp, MAX_STAMPS);
            let queries = wgpu.create_query_set(&wgpu::QuerySetDescriptor { label: None, ty, count });
            let mut n_buffers = 0;
            let mut buffer =
                |usage| allocate(device, "timestamps", 8 * u64::from(MAX_STAMPS), usage, &mut n_buffers);
            let resolved = buffer(Usage::QUERY_RESOLVE | Usage::COPY_SRC);
            let mapped = buffer(Usage::MAP_READ | Usage::COPY_DST);
            Self { device: device.clone(), queries, resolved, mapped }
        })
    }

    /// Bytes a second that the GPU reads from a buffer of about `bytes`, at least 32 MiB; more than its caches hold, it should be.
    ///
    /// # Errors
    /// If the device fails.
    pub fn read_rate(&self, bytes: u64) -> Result<f64, EngineError> {
        use wgpu::BufferUsages as Usage;

        let most = self.device.wgpu().limits().max_storage_buffer_binding_size;
        // What the threads of all workgroups read at a time.
        let round = u64::from(READERS) * 256 * 64;
        let bytes = (bytes.min(most) / round * round).max(round);
        let mut n_buffers = 0;
        let mut buffer = |bytes| allocate(&self.device, "read", bytes, Usage::STORAGE, &mut n_buffers);
        let (x, result) = (buffer(bytes), buffer(256));
        let compiled = self.device.compiled().get(self.device.wgpu(), int8_shader("read_all"), Vec::new());
        let bound = [(3, (x, 0, None)), (4, (result, 0, None))];
        let bound = bound.iter().map(|(index, bound)| (*index, bound));
        let group = bind_group(&self.device, &compiled.bind_group_layout, bound);
        let mut best = f64::MAX;
        for _ in 0..N_READS {
            let time = self.time(|pass| {
                pass.set_pipeline(&compiled.pipeline);
                pass.set_bind_group(0, &group, &[]);
                pass.dispatch_workgroups(READERS, 1, 1);
            })?;
            best = best.min(time);
        }
        Ok(bytes as f64 / (best * 1e-6))
    }

    /// Microseconds of a dispatch of one workgroup that copies four bytes and waits for the one before it.
    ///
    /// # Errors
    /// If the device fails.
    pub fn empty_dispatch(&self) -> Result<f64, EngineError> {
        use wgpu::BufferUsages as Usage;

        let device = &self.device;
        let shader = int8_shader("keep_rows");
        let compiled = device.compiled().get(device.wgpu(), shader, Vec::new());
        let mut n_buffers = 0;
        let mut buffer = |usage| allocate(device, "empty", 256, usage | Usage::COPY_DST, &mut n_buffers);
        let width = buffer(Usage::UNIFORM);
        device.queue().write_buffer(&width, 0, bytemuck::bytes_of(&Width { columns: 1 }));
        let [step, a, b] = [(); 3].map(|()| buffer(Usage::STORAGE));
        let groups = [(&a, &b), (&b, &a)].map(|(from, to)| {
            let bound = |resource| match resource {
                Resource::Step => (step.clone(), 0, None),
                Resource::X => (from.clone(), 0, None),
                Resource::Result => (to.clone(), 0, None),
                _ => (width.clone(), 0, Some(16)),
            };
            let entries: Vec<_> =
                shader.bindings.iter().map(|binding| (binding.index, bound(binding.resource))).collect();
            let entries = entries.iter().map(|(index, bound)| (*index, bound));
            bind_group(device, &compiled.bind_group_layout, entries)
        });
        let time = self.time(|pass| {
            pass.set_pipeline(&compiled.pipeline);
            for group in groups.iter().cycle().take(N_EMPTY as usize) {
                pass.set_bind_group(0, group, &[]);
                pass.dispatch_workgroups(1, 1, 1);
            }
        });
        Ok(time? / f64::from(N_EMPTY))
    }

    /// Microseconds that what `record` records takes on the GPU.
    fn time(&self, record: impl FnOnce(&mut wgpu::ComputePass<'_>)) -> Result<f64, EngineError> {
        let mut encoder = self.device.wgpu().create_command_encoder(&Default::default());
        let timestamp_writes = Some(Stamped { clock: self, stamps: Stamps::Ends }.ends());
        let mut pass =
            encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes });
        record(&mut pass);
        drop(pass);
        self.resolve(&mut encoder, 2);
        self.device.queue().submit([encoder.finish()]);
        Ok(self.read(2)?[1])
    }

    /// What the last step took, whose dispatches are those of `steps` that `counts` gives workgroups.
    pub(super) fn step_time(
        &self,
        stamps: Stamps,
        steps: &[Step],
        counts: &Counts,
        n_positions: usize,
    ) -> Result<StepTime, EngineError> {
        let grid = |step: &Step| step.workgroups(counts).iter().product::<u32>();
        let dispatched: Vec<_> =
            steps.iter().map(|step| (step, grid(step))).filter(|(_, n)| *n > 0).collect();
        let n_stamps = if stamps == Stamps::Each { 2 + dispatched.len() as u32 } else { 2 };
        let times = self.read(n_stamps.min(MAX_STAMPS))?;
        let mut before = 0.0;
        let dispatches = dispatched.iter().zip(&times[2..]).map(|((step, n_workgroups), at)| DispatchTime {
            kernel: step.kernel,
            of: step.of,
            micros: at - std::mem::replace(&mut before, *at),
            bytes: step.reads.weights + n_positions * step.reads.of_position,
            n_workgroups: *n_workgroups,
            n_threads: step.threads,
        });
        Ok(StepTime { dispatches: dispatches.collect(), micros: times[1] })
    }

    fn resolve(&self, encoder: &mut wgpu::CommandEncoder, n: u32) {
        encoder.resolve_query_set(&self.queries, 0..n, &self.resolved, 0);
        encoder.copy_buffer_to_buffer(&self.resolved, 0, &self.mapped, 0, 8 * u64::from(n));
    }

    /// Microseconds from the first timestamp to each of the first `n`.
    fn read(&self, n: u32) -> Result<Vec<f64>, EngineError> {
        let failed = |error: &dyn std::fmt::Display| EngineError::Device(error.to_string());
        let bytes = ..8 * u64::from(n);
        self.mapped.map_async(wgpu::MapMode::Read, bytes, |_| {});
        self.device.wgpu().poll(wgpu::PollType::wait_indefinitely()).map_err(|error| failed(&error))?;
        let view = self.mapped.get_mapped_range(bytes).map_err(|error| failed(&error))?;
        let ticks: Vec<u64> = view.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        drop(view);
        self.mapped.unmap();
        let micros = f64::from(self.device.queue().get_timestamp_period()) * 1e-3;
        Ok(ticks.iter().map(|tick| tick.saturating_sub(ticks[0]) as f64 * micros).collect())
    }
}

/// A clock, and where a step has its timestamps: the first and second at its ends, then one after each dispatch.
#[derive(Clone, Copy)]
pub(super) struct Stamped<'a> {
    pub(super) clock: &'a GpuClock,
    pub(super) stamps: Stamps,
}

impl<'a> Stamped<'a> {
    pub(super) fn ends(self) -> wgpu::ComputePassTimestampWrites<'a> {
        wgpu::ComputePassTimestampWrites {
            query_set: &self.clock.queries,
            beginning_of_pass_write_index: Some(0),
            end_of_pass_write_index: Some(1),
        }
    }

    /// Dispatch `n` of the step is recorded.
    pub(super) fn stamp(self, pass: &mut wgpu::ComputePass<'_>, n: u32) {
        if self.stamps == Stamps::Each && 2 + n < MAX_STAMPS {
            pass.write_timestamp(&self.clock.queries, 2 + n);
        }
    }

    /// All `n` dispatches of the step are recorded.
    pub(super) fn resolve(self, encoder: &mut wgpu::CommandEncoder, n: u32) {
        let n = if self.stamps == Stamps::Each { 2 + n } else { 2 };
        self.clock.resolve(encoder, n.min(MAX_STAMPS));
    }
}
