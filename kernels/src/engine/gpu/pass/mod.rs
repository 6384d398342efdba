//! The forward pass on a GPU: activations stay there between operations, weights are copied once, and a step of up to
//! [`compile::MAX_ROWS`] rows is one submission and one mapping, and one more of each for every layer whose experts are elsewhere.
//!
//! Products with int8 activations have the CPU's bits, given the same rows. Norms, rotations, attention and gates are rounded in
//! another order. Only the embedding is looked up on the CPU.

mod attention;
mod away;
mod best;
mod clock;
mod compile;
mod layer;
mod one_row;
mod pages;
mod places;
mod products;
mod request;
mod room;
mod row_attend;
mod row_norm;
pub(super) mod structs;
mod support;
#[cfg(test)]
mod tests;
mod tiles;
mod weights;

pub use clock::{DispatchTime, GpuClock, Stamps, StepTime};
pub use room::ResidentExperts;

use std::{any::Any, fmt, ops::Range, sync::Mutex};

use away::{Asked, Pause};
use clock::Stamped;
use compile::{Builder, MAX_ROWS, MAX_WANTED, Routed, Step, View};
use pages::{GpuPages, page_bytes, pollster};
use request::Request;
use tiles::{Counts, TileTable};

use super::{
    device::GpuDevice,
    pipeline::allocate,
    signal::{Signal, lock},
};
use crate::{
    cpu::{self, Rope},
    graph::{
        DeviceError, DeviceOutput, DevicePass, ExpertsElsewhere, KvLayout, KvPool, LayerRouting, MAX_BEST,
        MatrixSource, PackedExperts, PlanBytes, Program, Span,
    },
};

/// A token and its logit.
const BEST_BYTES: usize = 8;
/// How often a result is looked for before the thread sleeps until it is there: for a few milliseconds.
const MAX_LOOKS: usize = 5_000;

/// A program's forward pass on a GPU.
pub struct GpuPass {
    device: GpuDevice,
    steps: Vec<Step>,
    /// Ascending.
    pauses: Vec<Pause>,
    steps_before_wanted: usize,
    tiles: Vec<TileTable>,
    routers: Vec<Routed>,
    ropes: Vec<Rope>,
    /// Heads, and rows of a tile.
    attention: (u32, usize),
    embedding: std::sync::Arc<dyn MatrixSource>,
    scale: f32,
    /// (T, D).
    embedded: wgpu::Buffer,
    /// (W, V).
    logits: wgpu::Buffer,
    /// (W, MAX_BEST).
    best: wgpu::Buffer,
    vocabulary: usize,
    /// Words of a step.
    step: wgpu::Buffer,
    routing: wgpu::Buffer,
    readback: wgpu::Buffer,
    weight_bytes: u64,
    plan_bytes: PlanBytes,
    buffers_created: u64,
    /// Held from a step's first write until its result was read.
    state: Mutex<State>,
}

/// What a step writes, reused by the next.
#[derive(Default)]
struct State {
    request: Request,
    /// (T, D).
    rows: Vec<f32>,
    /// The counts that the tables of tiles were written for.
    counts: Option<(u32, u32)>,
    recorded: Option<Recorded>,
    asked: Asked,
}

/// The commands of a step to come, recorded while the GPU computes one like it: recording takes as long as a small model's step.
struct Recorded {
    counts: Counts,
    /// The number of its pages.
    pages: u64,
    /// One for each segment.
    commands: Vec<wgpu::CommandBuffer>,
}

/// Steps up to a pause, or to the end.
struct Segment<'a> {
    steps: Range<usize>,
    pause: Option<&'a Pause>,
}

impl GpuPass {
    /// Copies the weights of `program` and of the `resident` experts to the device and allocates all but the pages, for sequences
    /// of up to `max_positions`.
    ///
    /// # Errors
    /// In one sentence: if the program has an operation that no kernel is there for, an expert cannot be read, or the device has
    /// too little memory.
    pub fn new(
        device: &GpuDevice,
        program: &Program,
        (experts, resident): (&dyn PackedExperts, ResidentExperts),
        max_positions: usize,
    ) -> Result<Self, String> {
        device.health().check().map_err(|error| error.to_string())?;
        let scopes =
            [wgpu::ErrorFilter::Internal, wgpu::ErrorFilter::Validation, wgpu::ErrorFilter::OutOfMemory]
                .map(|filter| device.wgpu().push_error_scope(filter));
        let n_resident = resident.n_layers(device, program, experts);
        let pass = Builder::compile(device, program, (experts, n_resident), max_positions).map(Self::of);
        let [internal, validation, memory] = scopes;
        let (memory, validation, internal) = (memory.pop(), validation.pop(), internal.pop());
        if pollster(memory).is_some() {
            device.compiled().clear();
            return Err("the GPU has too little memory for this model".to_owned());
        }
        if let Some(error) = pollster(validation).or(pollster(internal)) {
            device.compiled().clear();
            return Err(format!("the GPU failed: {error}"));
        }
        pass
    }

    fn of(mut builder: Builder<'_>) -> Self {
        let program = builder.program;
        let (table, embedded, scale) = builder.embedding.expect("a pass begins with an embedding");
        let logits = program.graph.logits.expect("a recorded pass ends with logits");
        let View::Rows { place: logits_place, .. } = builder.views[&logits] else {
            unreachable!("logits lie in rows");
        };
        let vocabulary = program.graph.width(logits);
        let routing_bytes = builder.routing.size();
        let of_row = (4 * vocabulary).max(BEST_BYTES * MAX_BEST);
        let readback_bytes = builder.most_paused_bytes().max((MAX_WANTED * of_row) as u64 + routing_bytes);
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let readback =
            allocate(builder.device, "readback", readback_bytes, usage, &mut builder.places.n_buffers);
        Self {
            device: builder.device.clone(),
            embedded: builder.places.get(embedded),
            logits: builder.places.get(logits_place),
            best: builder.places.get(builder.best.expect("a pass ends with logits")),
            buffers_created: builder.places.n_buffers + builder.weights.n_buffers,
            weight_bytes: builder.weights.n_bytes,
            plan_bytes: builder.places.plan_bytes(),
            steps: builder.steps,
            pauses: builder.pauses,
            steps_before_wanted: builder.steps_before_wanted,
            tiles: builder.tiles,
            routers: builder.routers,
            ropes: program.graph.ropes.clone(),
            attention: builder.attention,
            embedding: program.graph.matrices[table.0 as usize].0.clone(),
            scale,
            vocabulary,
            step: builder.step,
            routing: builder.routing,
            readback,
            state: Mutex::default(),
        }
    }

    /// GPU buffers made so far, without pages: [`Self::new`] makes them all.
    pub fn buffers_created(&self) -> u64 {
        self.buffers_created
    }

    /// Writes what a step of these rows reads; returns its counts.
    fn write(&self, state: &mut State) -> Result<Counts, DeviceError> {
        let State { request, rows, counts: written, .. } = state;
        let queue = self.device.queue();
        let counts = Counts {
            rows: request.n_rows() as u32,
            wanted: request.n_wanted() as u32,
            splits: request.n_splits,
            attention_tiles: request.n_tiles(),
            best: request.n_best,
        };
        let (_, width) = self.embedding.shape();
        rows.resize(request.n_rows() * width, 0.0);
        cpu::embed(&self.embedding.view(), &request.ids, rows)?;
        if self.scale != 1.0 {
            rows.iter_mut().for_each(|x| *x *= self.scale);
        }
        queue.write_buffer(&self.embedded, 0, bytemuck::cast_slice(rows));
        queue.write_buffer(&self.step, 0, bytemuck::cast_slice(&request.words));
        if *written != Some((counts.rows, counts.wanted)) {
            self.tiles.iter().for_each(|table| table.write(&self.device, &counts));
            *written = Some((counts.rows, counts.wanted));
        }
        Ok(counts)
    }

    /// Of how many layers the experts are on the GPU.
    pub fn n_resident(&self) -> usize {
        self.routers.iter().filter(|router| router.is_resident).count()
    }

    /// Bytes of a step's results: `[logits, or the best of them, and routing]`.
    fn result_bytes(&self, counts: &Counts) -> [u64; 2] {
        let routing = self.routing_start(self.routers.len(), counts);
        let of_row = if counts.best > 0 { BEST_BYTES * MAX_BEST } else { 4 * self.vocabulary };
        [of_row as u64 * u64::from(counts.wanted), routing]
    }

    /// Bytes of a step's routing before that of a router.
    fn routing_start(&self, router: usize, counts: &Counts) -> u64 {
        let bytes = |router: &Routed| 8 * router.n_chosen as u64 * u64::from(counts.rows);
        self.routers[..router].iter().map(bytes).sum()
    }

    /// The segments of a step of these counts.
    fn segments(&self, counts: &Counts) -> impl Iterator<Item = Segment<'_>> {
        let n_steps = if counts.wanted == 0 { self.steps_before_wanted } else { self.steps.len() };
        let pauses = self.pauses.iter().take_while(move |pause| pause.step <= n_steps);
        let ends = pauses.map(|pause| (pause.step, Some(pause))).chain([(n_steps, None)]);
        ends.scan(0, |start, (end, pause)| {
            let steps = std::mem::replace(start, end)..end;
            Some(Segment { steps, pause })
        })
    }

    /// Records the dispatches of a segment and the copies of its results.
    fn record(
        &self,
        segment: &Segment<'_>,
        (pages, counts): (&GpuPages, &Counts),
        clock: Option<Stamped<'_>>,
    ) -> wgpu::CommandBuffer {
        let mut encoder = self.device.wgpu().create_command_encoder(&Default::default());
        let timestamp_writes = clock.map(Stamped::ends);
        let mut pass =
            encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes });
        let mut n_dispatches = 0;
        for index in segment.steps.clone() {
            let step = &self.steps[index];
            let Some([x, y, z]) = step.workgroups(counts) else { continue };
            pass.set_pipeline(&step.pipeline);
            pass.set_bind_group(0, step.bind_group.as_ref().or_else(|| pages.bind_group(index)), &[]);
            pass.dispatch_workgroups(x, y, z);
            if let Some(clock) = clock {
                clock.stamp(&mut pass, n_dispatches);
            }
            n_dispatches += 1;
        }
        drop(pass);
        if let Some(clock) = clock {
            clock.resolve(&mut encoder, n_dispatches);
        }
        if let Some(pause) = segment.pause {
            self.record_pause(&mut encoder, pause, counts);
            return encoder.finish();
        }
        let [logits_bytes, routing_bytes] = self.result_bytes(counts);
        let logits = if counts.best > 0 { &self.best } else { &self.logits };
        for (from, bytes, start) in [(logits, logits_bytes, 0), (&self.routing, routing_bytes, logits_bytes)]
        {
            if bytes > 0 {
                encoder.copy_buffer_to_buffer(from, 0, &self.readback, start, bytes);
            }
        }
        encoder.finish()
    }

    /// Waits for a submission and shows the first `n_bytes` of what it gave.
    fn read(
        &self,
        submission: wgpu::SubmissionIndex,
        n_bytes: u64,
        show: impl FnOnce(&[u8]),
    ) -> Result<(), DeviceError> {
        let failed = |error: &dyn fmt::Display| DeviceError::Failed(format!("the GPU failed: {error}"));
        let wgpu = self.device.wgpu();
        let signal = std::sync::Arc::new(Signal::default());
        let fired = signal.clone();
        let n_mapped = n_bytes.max(8);
        self.readback.map_async(wgpu::MapMode::Read, ..n_mapped, move |result| {
            fired.fire(result.map_err(|error| super::EngineError::Device(error.to_string())));
        });
        for _ in 0..MAX_LOOKS {
            wgpu.poll(wgpu::PollType::Poll).map_err(|error| failed(&error))?;
            if signal.has_fired() {
                break;
            }
            std::thread::yield_now();
        }
        if !signal.has_fired() {
            let wait = wgpu::PollType::Wait { submission_index: Some(submission), timeout: None };
            wgpu.poll(wait).map_err(|error| failed(&error))?;
        }
        pollster(signal.wait()).map_err(|error| DeviceError::Failed(error.to_string()))?;
        let view = self.readback.get_mapped_range(..n_mapped).map_err(|error| failed(&error))?;
        show(&view[..n_bytes as usize]);
        drop(view);
        self.readback.unmap();
        self.device.health().check().map_err(|error| DeviceError::Failed(error.to_string()))
    }

    /// Appends what a step of these counts gave.
    fn append(&self, counts: &Counts, bytes: &[u8], out: &mut DeviceOutput) {
        let (logits, routing) = bytes.split_at(self.result_bytes(counts)[0] as usize);
        if counts.best == 0 {
            out.logits.extend(logits.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)));
        } else {
            for row in logits.chunks_exact(BEST_BYTES * MAX_BEST) {
                let best = row.as_chunks::<4>().0.as_chunks().0.iter().take(counts.best as usize);
                let pair =
                    |[token, logit]: &[[u8; 4]; 2]| (u32::from_le_bytes(*token), f32::from_le_bytes(*logit));
                out.best.extend(best.map(pair));
            }
        }
        let resident = self.routers.iter().enumerate().filter(|(_, router)| router.is_resident);
        for ((index, router), of_layer) in resident.zip(&mut out.routing) {
            let first = self.routing_start(index, counts) as usize;
            let n_bytes = 8 * router.n_chosen * counts.of(router.rows) as usize;
            of_layer.extend_from_words(routing[first..][..n_bytes].as_chunks().0);
        }
    }
}

impl DevicePass for GpuPass {
    fn kv_pool(&self, layout: KvLayout, budget_bytes: usize, n_sequences: usize) -> KvPool {
        // What is recorded keeps the pages of another pool in memory.
        lock(&self.state).recorded = None;
        let page_bytes = page_bytes(layout.n_kv_heads, layout.head_width);
        let n_slots = layout.windows.len();
        let pool = KvPool::new(layout, budget_bytes, n_sequences);
        let most = self.device.wgpu().limits().max_storage_buffer_binding_size / page_bytes.max(1);
        let mut n_pages = pool.max_pages().min(most as usize).max(1);
        loop {
            match GpuPages::new(&self.device, &self.steps, n_slots, page_bytes, n_pages) {
                Some(pages) => return pool.on_device(pages, n_pages),
                // Without memory for one page every step fails, and says why.
                None if n_pages == 1 => {
                    let reason = "it has no memory for keys and values".to_owned();
                    self.device.health().fail(super::EngineError::Device(reason));
                    return pool;
                }
                None => n_pages /= 2,
            }
        }
    }

    fn step(
        &self,
        spans: &[Span<'_>],
        kv: &KvPool,
        elsewhere: &mut ExpertsElsewhere<'_>,
        out: &mut DeviceOutput,
    ) -> Result<(), DeviceError> {
        self.run(spans, kv, elsewhere, (out, None)).map(|_| ())
    }

    fn n_dispatches(&self) -> usize {
        let counts = Counts { rows: 1, wanted: 1, splits: 1, attention_tiles: 1, best: 0 };
        let is_there = |step: &&Step| step.workgroups(&counts).is_some();
        self.steps.iter().filter(is_there).count()
    }

    fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    fn plan_bytes(&self) -> PlanBytes {
        self.plan_bytes
    }
}

impl GpuPass {
    /// [`DevicePass::step`] of up to 512 rows, of which the logits of up to 64 are wanted, with all experts on the GPU, and how long
    /// it took there.
    ///
    /// # Errors
    /// As [`DevicePass::step`].
    pub fn timed_step(
        &self,
        (clock, stamps): (&GpuClock, Stamps),
        spans: &[Span<'_>],
        kv: &KvPool,
        out: &mut DeviceOutput,
    ) -> Result<StepTime, DeviceError> {
        let mut nowhere = |_: &LayerRouting, _: &[f32], _: &mut [f32]| Err(DeviceError::Experts);
        let counts = self.run(spans, kv, &mut nowhere, (out, Some(Stamped { clock, stamps })))?;
        let n_steps = if counts.wanted == 0 { self.steps_before_wanted } else { self.steps.len() };
        let n_positions = spans.iter().map(|span| span.start + span.ids.len()).sum();
        let time = clock.step_time(stamps, &self.steps[..n_steps], &counts, n_positions);
        time.map_err(|error| DeviceError::Failed(error.to_string()))
    }

    /// [`DevicePass::step`], with a clock that takes times, if there is one.
    fn run(
        &self,
        spans: &[Span<'_>],
        kv: &KvPool,
        elsewhere: &mut ExpertsElsewhere<'_>,
        (out, clock): (&mut DeviceOutput, Option<Stamped<'_>>),
    ) -> Result<Counts, DeviceError> {
        self.device.health().check().map_err(|error| DeviceError::Failed(error.to_string()))?;
        let pages = kv.device().and_then(|pages| (pages as &dyn Any).downcast_ref::<GpuPages>());
        let pages = pages.expect("a step's pages are those of this device");
        out.logits.clear();
        out.best.clear();
        out.routing.resize_with(self.n_resident(), LayerRouting::default);
        let resident = self.routers.iter().filter(|router| router.is_resident);
        for (router, of_layer) in resident.zip(&mut out.routing) {
            (of_layer.layer, of_layer.n_chosen) = (router.layer, router.n_chosen);
            of_layer.experts.clear();
            of_layer.gates.clear();
        }
        let state = &mut *lock(&self.state);
        state.request.n_best = out.n_best.min(MAX_BEST) as u32;
        let n_rows: usize = spans.iter().map(|span| span.ids.len()).sum();
        let mut done = 0;
        let mut last = Counts { rows: 0, wanted: 0, splits: 0, attention_tiles: 0, best: 0 };
        while done < n_rows {
            done += state.request.fill(spans, done, [MAX_ROWS, MAX_WANTED], &self.ropes, self.attention);
            let counts = self.write(state)?;
            last = counts;
            let is_it = |of: &Recorded| (of.counts, of.pages) == (counts, pages.number) && clock.is_none();
            let recorded = state.recorded.take().filter(is_it);
            let mut recorded = recorded.into_iter().flat_map(|recorded| recorded.commands);
            let mut next = Vec::new();
            for segment in self.segments(&counts) {
                let at = (pages, &counts);
                let commands = recorded.next().unwrap_or_else(|| self.record(&segment, at, clock));
                let submission = self.device.queue().submit([commands]);
                if clock.is_none() {
                    next.push(self.record(&segment, at, None));
                }
                match segment.pause {
                    Some(pause) => self.ask((pause, submission), &counts, &mut state.asked, elsewhere)?,
                    None => {
                        let n_bytes = self.result_bytes(&counts).iter().sum();
                        self.read(submission, n_bytes, |bytes| self.append(&counts, bytes, out))?;
                    }
                }
            }
            state.recorded =
                (clock.is_none()).then_some(Recorded { counts, pages: pages.number, commands: next });
        }
        Ok(last)
    }
}

impl fmt::Debug for GpuPass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuPass").field("steps", &self.steps.len()).finish_non_exhaustive()
    }
}
