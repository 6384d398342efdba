//! The engine on a GPU, one code for native adapters and for browsers. Only this folder knows wgpu.
//!
//! [`GpuEngine::new`] allocates everything: slabs of weights; the tables and rows, h and y of one message; and rings of
//! buffers that the CPU can map, for messages, for results and for staging weights. A message is one submission, which
//! begins with its copies to the device and ends with that of its results, and one wait. The queue runs submissions in
//! order, so messages share all but the mapped buffers, and several can be under way.

#![cfg_attr(
    target_arch = "wasm32",
    expect(
        clippy::arc_with_non_send_sync,
        reason = "natively, where the same code has threads, wgpu's types can cross them"
    )
)]

#[cfg(not(target_arch = "wasm32"))]
mod ahead;
mod compiled;
mod device;
#[cfg(not(target_arch = "wasm32"))]
mod free_memory;
mod int8;
#[cfg(not(target_arch = "wasm32"))]
mod keep_awake;
mod layout;
mod message;
#[cfg(not(target_arch = "wasm32"))]
mod multiprocessors;
mod observer;
mod pack;
#[cfg(not(target_arch = "wasm32"))]
mod pass;
mod pipeline;
mod ring;
mod self_test;
mod shaders;
mod signal;
mod structs;
#[cfg(test)]
mod tests;
mod tuning;
mod upload;
#[cfg(not(target_arch = "wasm32"))]
mod variants;

pub use device::{GpuDevice, GpuInfo, GpuSelect};
#[cfg(not(target_arch = "wasm32"))]
pub use keep_awake::KeepAwake;
#[cfg(not(target_arch = "wasm32"))]
pub use pass::{DispatchTime, GpuClock, GpuPass, ResidentExperts, Stamps, StepTime};
pub use self_test::SelfTestReport;
pub use tuning::GpuTuning;

use std::{
    collections::BTreeSet,
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use int8::{Int8Kernel, Int8Step};
use layout::{Layout, Projection};
use pack::Pack;
use pipeline::{Pipeline, allocate, slab_bind_groups};
use ring::Ring;
use shaders::{Kernel, Resource, Shader, int8_shader, shader};
use signal::lock;
use upload::Upload;
#[cfg(not(target_arch = "wasm32"))]
use variants::Variants;

#[cfg(not(target_arch = "wasm32"))]
use ahead::Ahead;

use super::{ActivationFormat, Batch, Computed, EngineError, EnginePlan, Wanted};
use crate::{
    ExpertFormat, ExpertShape,
    pool::Pool,
    quant::Activations,
    simd::{PackedExpertShape, Simd},
};

/// Messages whose results can be read back at the same time.
const READBACK_BUFFERS: usize = 4;
/// Buffers through which weights are staged.
const STAGING_BUFFERS: usize = 3;
/// The most bytes of a staging buffer: a 30B-A3B expert in int4 in one piece.
const MAX_STAGING_BYTES: u64 = 4 << 20;
/// Round trips that [`GpuEngine::measure_sync`] takes the median of.
const SYNCS: usize = 9;

/// Experts on a GPU.
#[derive(Debug)]
pub struct GpuEngine {
    device: GpuDevice,
    plan: EnginePlan,
    layout: Layout,
    slabs: Vec<wgpu::Buffer>,
    /// A message's tables, then x (R, D), padded.
    message: wgpu::Buffer,
    /// Rounds the rows to int8, if the plan says so.
    int8: Option<Mutex<Int8Rows>>,
    /// h (P, F), then the products with gate and up (P, 2F).
    h: wgpu::Buffer,
    /// y (P, D).
    y: wgpu::Buffer,
    pack: Pack,
    /// For each of the plan's shapes.
    kernels: Vec<Kernels>,
    upload: Upload,
    readback: Arc<Ring>,
    /// For messages of one row, with int8 activations.
    #[cfg(not(target_arch = "wasm32"))]
    ahead: Option<Ahead>,
    staging: Arc<Ring>,
    staging_bytes: u64,
    buffers_created: u64,
    /// Held from a message's first write to its submission, so that messages do not mix.
    slots: Mutex<Vec<Slot>>,
}

/// The kernels for experts of one shape.
#[derive(Debug)]
struct Kernels {
    shape: ExpertShape,
    /// In order, with the workgroups of each in x.
    steps: Vec<(Pipeline, u32)>,
    /// Others for messages of one row and of many pairs.
    #[cfg(not(target_arch = "wasm32"))]
    variants: Option<Variants>,
}

/// A step of the experts of one shape of the plan.
struct StepOf<'a> {
    /// The shape's index.
    place: u32,
    /// The step's index.
    step: usize,
    x: &'a wgpu::Buffer,
    result: &'a wgpu::Buffer,
}

/// Rows of int8 activations on their way to the GPU, and what rounds them.
#[derive(Debug)]
struct Int8Rows {
    simd: Simd,
    pool: Pool,
    rows: Activations,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Counts loads: an older load that is still under way stops at the next piece.
    load: u32,
    /// Whether the latest load is complete.
    full: bool,
    /// The index of its expert's shape among the plan's.
    shape: u32,
}

impl GpuEngine {
    /// Plans and allocates everything; its slots are empty.
    ///
    /// # Errors
    /// [`EngineError::Plan`] for a plan that this device cannot run, [`EngineError::OutOfMemory`], or the device's own
    /// failure.
    pub async fn new(device: &GpuDevice, plan: EnginePlan) -> Result<Self, EngineError> {
        Self::with_tuning(device, plan, GpuTuning::of(device)).await
    }

    /// [`Self::new`] with kernels that the caller chooses among those that the device can run.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_tuning(
        device: &GpuDevice,
        plan: EnginePlan,
        tuning: GpuTuning,
    ) -> Pin<Box<dyn Future<Output = Result<Self, EngineError>> + '_>> {
        // Boxed, so that bundles contain the code once.
        Box::pin(Self::make(device, plan, tuning))
    }

    async fn make(device: &GpuDevice, plan: EnginePlan, tuning: GpuTuning) -> Result<Self, EngineError> {
        let offered = GpuTuning::of(device);
        if (tuning.shader_f16 && !offered.shader_f16) || (tuning.subgroups && !offered.subgroups) {
            return Err(EngineError::Plan(format!("{tuning:?} on a device that offers {offered:?}")));
        }
        let layout = Layout::new(plan, tuning.max_slab_bytes.min(offered.max_slab_bytes))?;
        let simd = Simd::from_env().map_err(|error| EngineError::Plan(error.to_string()))?;
        device.health().check()?;
        // Nothing is awaited between the start and the end of the scopes, since scopes belong to a thread.
        let scopes =
            [wgpu::ErrorFilter::Internal, wgpu::ErrorFilter::Validation, wgpu::ErrorFilter::OutOfMemory]
                .map(|filter| device.wgpu().push_error_scope(filter));
        let engine = Self::allocate(device, plan, layout, tuning, simd);
        let [internal, validation, memory] = scopes;
        let (memory, validation, internal) = (memory.pop(), validation.pop(), internal.pop());
        let is_short = memory.await.is_some();
        let error = validation.await.or(internal.await);
        if is_short || error.is_some() {
            device.compiled().clear();
        }
        if is_short {
            return Err(EngineError::OutOfMemory);
        }
        if let Some(error) = error {
            return Err(EngineError::Device(error.to_string()));
        }
        device.health().check()?;
        Ok(engine)
    }

    fn allocate(device: &GpuDevice, plan: EnginePlan, layout: Layout, tuning: GpuTuning, simd: Simd) -> Self {
        use wgpu::BufferUsages as Usage;

        let mut buffers_created = 0;
        let mut buffer = |label, size, usage| allocate(device, label, size, usage, &mut buffers_created);
        let slabs: Vec<_> = (0..layout.n_slabs)
            .map(|slab| buffer("weights", layout.slab_bytes(slab), Usage::STORAGE | Usage::COPY_DST))
            .collect();
        let message =
            buffer("message", layout.message_bytes(), Usage::STORAGE | Usage::UNIFORM | Usage::COPY_DST);
        let h = buffer("h", layout.h_bytes(), Usage::STORAGE | Usage::COPY_SRC);
        let is_int8 = plan.activations == ActivationFormat::Int8;
        let h_rows = is_int8.then(|| buffer("h in int8", layout.h_rows_bytes(), Usage::STORAGE));
        let y_bytes = layout.y_bytes(plan.max_pairs as usize);
        let y = buffer("y", y_bytes, Usage::STORAGE | Usage::COPY_SRC | Usage::COPY_DST);
        let packed = buffer("packed", layout.packed_bytes(), Usage::STORAGE | Usage::COPY_SRC);
        let upload = (0..upload::N_BUFFERS)
            .map(|_| buffer("upload", layout.upload_bytes(), Usage::MAP_WRITE | Usage::COPY_SRC))
            .collect();
        let readback_bytes =
            y_bytes.next_multiple_of(layout::MAP_ALIGN) + layout.products_bytes(plan.max_pairs as usize);
        let readback = (0..READBACK_BUFFERS)
            .map(|_| buffer("readback", readback_bytes, Usage::MAP_READ | Usage::COPY_DST))
            .collect();
        #[cfg(not(target_arch = "wasm32"))]
        let ahead = is_int8.then(|| Ahead::new(device, &plan, &layout, &mut buffer));
        let staging_bytes = layout.block_bytes.min(MAX_STAGING_BYTES);
        // A staging buffer is mapped from the start.
        let staging = (0..STAGING_BUFFERS)
            .map(|_| buffer("staging", staging_bytes, Usage::MAP_WRITE | Usage::COPY_SRC))
            .collect();

        let shapes = buffer("shapes", layout.shapes_bytes(), Usage::UNIFORM | Usage::COPY_DST);
        let run_bytes = Some(size_of::<structs::Run>() as u64);
        let shape_bytes = Some(size_of::<structs::Shape>() as u64);
        let pipeline = |shader: &'static Shader, constants, shape: structs::Shape, at: StepOf| {
            let StepOf { place, step, x, result } = at;
            let shape_start = layout.shape_start(place, step);
            device.queue().write_buffer(&shapes, shape_start, bytemuck::bytes_of(&shape));
            Pipeline::new(device, shader, constants, |layout_of| {
                slab_bind_groups(device, shader, layout_of, &slabs, |resource, slab| match resource {
                    Resource::Run => (&message, layout.run_start(slab, place), run_bytes),
                    Resource::Shape => (&shapes, shape_start, shape_bytes),
                    #[cfg(not(target_arch = "wasm32"))]
                    Resource::Tiles if shader.entry_point == variants::MATRIX => {
                        (&message, layout.wide_tiles_start(), None)
                    }
                    #[cfg(not(target_arch = "wasm32"))]
                    Resource::Pairs => (&message, layout.pairs_start(), None),
                    Resource::Tiles => (&message, layout.tiles_start(), None),
                    Resource::Weights | Resource::Halves | Resource::Biases => {
                        (&slabs[slab as usize], 0, None)
                    }
                    Resource::X => (x, 0, None),
                    #[cfg(not(target_arch = "wasm32"))]
                    Resource::Rounded | Resource::H => (x, 0, None),
                    Resource::Result => (result, 0, None),
                    #[cfg(not(target_arch = "wasm32"))]
                    Resource::Packed => (&packed, 0, None),
                    #[cfg(not(target_arch = "wasm32"))]
                    _ => unreachable!("kernels of experts bind nothing of the forward pass"),
                })
            })
        };
        let f32_step = |kernel, shape: &ExpertShape, at| {
            let format = Projection::of(kernel, shape).format;
            let shader = shader(kernel, format, tuning.shader_f16, tuning.subgroups);
            let told = layout.shape(kernel, shape);
            (pipeline(shader, layout::constants(kernel, shape), told, at), layout.workgroups(kernel, shape))
        };
        let int8_step = |step: Int8Step, shape: &ExpertShape, place, h_rows, kernel: Int8Kernel| {
            let Int8Kernel { entry_point, constants, workgroups } = kernel;
            let (x, result) = match step {
                Int8Step::GateUp => (&message, &h),
                Int8Step::Rows => (&h, h_rows),
                #[cfg(not(target_arch = "wasm32"))]
                Int8Step::Down if entry_point == variants::ONE_DOWN => (&h, &y),
                Int8Step::Down => (h_rows, &y),
            };
            let told = step.shape(shape, layout.h_stride(), layout.products_start());
            let at = StepOf { place, step: step as usize, x, result };
            (pipeline(int8_shader(entry_point), constants, told, at), workgroups)
        };
        #[cfg(not(target_arch = "wasm32"))]
        let variants = |place, shape: &ExpertShape| {
            let h_rows = h_rows.as_ref()?;
            Variants::new(shape, |step, variant| {
                Some(int8_step(step, shape, place, h_rows, step.variant(variant, shape, device)?))
            })
        };
        let kernels = |(place, shape): (u32, ExpertShape)| Kernels {
            steps: match &h_rows {
                None => vec![
                    f32_step(Kernel::GateUp, &shape, StepOf { place, step: 0, x: &message, result: &h }),
                    f32_step(Kernel::Down, &shape, StepOf { place, step: 1, x: &h, result: &y }),
                ],
                Some(h_rows) => Int8Step::ALL
                    .map(|step| {
                        let kernel = step.kernel(&shape, device.info().software);
                        int8_step(step, &shape, place, h_rows, kernel)
                    })
                    .into(),
            },
            #[cfg(not(target_arch = "wasm32"))]
            variants: variants(place, &shape),
            shape,
        };
        let int8_rows = || Mutex::new(Int8Rows { simd, pool: Pool::new(1), rows: Activations::default() });
        Self {
            kernels: (0..).zip(plan.shapes.iter()).map(kernels).collect(),
            pack: Pack::new(device, &layout, [&y, &h], packed.clone()),
            device: device.clone(),
            plan,
            layout,
            message,
            int8: is_int8.then(int8_rows),
            h,
            y,
            slabs,
            upload: Upload::new(device, upload),
            #[cfg(not(target_arch = "wasm32"))]
            ahead,
            readback: Ring::new(device, readback),
            staging: Ring::new(device, staging),
            staging_bytes,
            buffers_created,
            slots: Mutex::new(vec![Slot::default(); plan.n_slots as usize]),
        }
    }

    /// The plan that it was made for.
    pub fn plan(&self) -> &EnginePlan {
        &self.plan
    }

    /// The device that it runs on.
    pub fn device(&self) -> &GpuDevice {
        &self.device
    }

    /// GPU buffers made so far. [`Self::new`] makes them all.
    pub fn buffers_created(&self) -> u64 {
        self.buffers_created
    }

    /// Streams an expert of this format into a slot. The slot is empty until the expert is complete; a later load of
    /// the same slot ends an earlier one.
    ///
    /// # Errors
    /// If there is no such slot, the block is of no shape of the plan, a later load took over, or the device fails.
    pub async fn load(&self, slot: u32, format: ExpertFormat, block: &[u8]) -> Result<(), EngineError> {
        let shape = self.plan.shapes.position(format).ok_or(EngineError::NoSuchFormat(format))?;
        let expert = self.kernels[shape].shape.view(block)?;
        let packed = self.int8.as_ref().map(|int8| {
            let packed = PackedExpertShape::of(&expert);
            let mut bytes = vec![0; packed.bytes()];
            packed.pack(&lock(int8).pool, &expert, &mut bytes);
            bytes
        });
        let block = packed.as_deref().unwrap_or(block);
        let this_load = {
            let mut slots = lock(&self.slots);
            let n_slots = self.plan.n_slots;
            let state = slots.get_mut(slot as usize).ok_or(EngineError::NoSuchSlot { slot, n_slots })?;
            *state = Slot { load: state.load.wrapping_add(1), full: false, shape: shape as u32 };
            state.load
        };
        let (slab, mut at) = self.layout.place(slot);
        for piece in block.chunks(self.staging_bytes as usize) {
            let staging = self.staging.lend().await?;
            let slots = lock(&self.slots);
            if slots[slot as usize].load != this_load {
                return Err(EngineError::Superseded(slot));
            }
            staging.write(piece)?;
            let mut encoder = self.device.wgpu().create_command_encoder(&Default::default());
            let slab = &self.slabs[slab as usize];
            encoder.copy_buffer_to_buffer(staging.buffer(), 0, slab, at, piece.len() as u64);
            let submission = self.device.queue().submit([encoder.finish()]);
            drop(slots);
            staging.map_again(&self.device, submission);
            at += piece.len() as u64;
        }
        let mut slots = lock(&self.slots);
        let state = &mut slots[slot as usize];
        if state.load != this_load {
            return Err(EngineError::Superseded(slot));
        }
        state.full = true;
        self.device.health().check()
    }

    /// (P, D): `gate * expert(row)` for every pair of every call, in order.
    ///
    /// # Errors
    /// If the batch does not fit the plan, names an empty slot, or the device fails.
    pub async fn compute(&self, batch: &Batch) -> Result<Vec<f32>, EngineError> {
        Ok(self.floats(batch, false).await?.rows)
    }

    /// [`Self::compute`], with the products of gate and up.
    ///
    /// # Errors
    /// As [`Self::compute`].
    pub async fn compute_with_products(&self, batch: &Batch) -> Result<Computed, EngineError> {
        self.floats(batch, true).await
    }

    async fn floats(&self, batch: &Batch, products: bool) -> Result<Computed, EngineError> {
        let output = self.answer(batch, Wanted { products, halves: false }).await?;
        Ok(output.floats().expect("f16 was not wanted"))
    }

    /// The median time from a minimal submission to its mapped result. Every message costs at least that: 0.5 ms in
    /// Chrome and 100 ms in Firefox. `now` is the caller's clock.
    ///
    /// # Errors
    /// If the device fails.
    pub async fn measure_sync(&self, now: &dyn Fn() -> Duration) -> Result<Duration, EngineError> {
        let n_bytes = self.layout.y_bytes(1);
        let mut times = Vec::with_capacity(SYNCS);
        for _ in 0..SYNCS {
            let readback = self.readback.lend().await?;
            let start = now();
            let mut encoder = self.device.wgpu().create_command_encoder(&Default::default());
            encoder.copy_buffer_to_buffer(&self.y, 0, readback.buffer(), 0, n_bytes);
            let submission = self.device.queue().submit([encoder.finish()]);
            readback.read(&self.device, n_bytes, submission, &mut |_| ()).await?;
            times.push(now().saturating_sub(start));
        }
        times.sort_unstable();
        Ok(times[SYNCS / 2])
    }

    /// Runs the kernels of a plan's formats with its activations, and compares them with their CPU twins: with f32
    /// activations within a tolerance, with int8 to the bit. An engine for that plan reuses the kernels compiled here.
    pub async fn self_test(device: &GpuDevice, plan: &EnginePlan) -> SelfTestReport {
        let formats: BTreeSet<_> = plan.shapes.iter().map(|shape| shape.format).collect();
        self_test::run(
            device,
            GpuTuning::of(device),
            plan.activations,
            formats,
            #[cfg(not(target_arch = "wasm32"))]
            [plan.shapes.hidden, plan.shapes.inner],
        )
        .await
    }

    /// Fills y with a value that no kernel leaves there.
    fn fill_output(&self, sentinel: f32) {
        let values = vec![sentinel; (self.y.size() / 4) as usize];
        self.device.queue().write_buffer(&self.y, 0, bytemuck::cast_slice(&values));
    }
}
