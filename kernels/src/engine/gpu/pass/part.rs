//! A part of a pass on one GPU: its dispatches, what a step writes for them, and what they give.

use std::{
    fmt,
    ops::Range,
    sync::{Arc, Mutex},
    vec,
};

use super::{
    away::{Asked, Pause},
    best::BEST_ENTRIES,
    clock::Stamped,
    compile::{Builder, MAX_ROWS, MAX_WANTED, Routed, Step, View},
    layers::PartOps,
    pages::{GpuPages, pollster},
    request::{AttentionGrid, Request},
    tiles::{Counts, TileTable},
};
use crate::{
    cpu::{self, Rope},
    engine::{
        EngineError,
        gpu::{device::GpuDevice, pipeline::allocate, signal::Signal},
    },
    graph::{
        DeviceError, DeviceOutput, ExpertsElsewhere, KvLayout, MAX_BEST, MatrixSource, PackedExperts,
        PlanBytes, Program, Span, TensorId,
    },
    simd::Draw,
};

/// A token and its logit.
const BEST_BYTES: usize = 8;
/// How often a result is looked for before the thread sleeps until it is there: for a few milliseconds.
const MAX_LOOKS: usize = 5_000;

/// Neighbouring layers on one GPU.
pub(super) struct Part {
    pub(super) device: GpuDevice,
    pub(super) steps: Vec<Step>,
    /// Ascending.
    pauses: Vec<Pause>,
    pub(super) steps_before_wanted: usize,
    tiles: Vec<TileTable>,
    pub(super) routers: Vec<Routed>,
    ropes: Vec<Rope>,
    pub(super) attention: AttentionGrid,
    from: From,
    /// (T, D): the rows that a step begins with.
    rows: wgpu::Buffer,
    to: To,
    /// Words of a step.
    step: wgpu::Buffer,
    pub(super) routing: wgpu::Buffer,
    pub(super) readback: wgpu::Buffer,
    pub(super) weight_bytes: u64,
    pub(super) plan_bytes: PlanBytes,
    pub(super) buffers_created: u64,
    /// Held from a step's first write until its result was read.
    pub(super) state: Mutex<State>,
}

/// Where the rows come from that a step begins with.
enum From {
    /// The rows of the step's tokens, times a factor.
    Embedding(Arc<dyn MatrixSource>, f32),
    /// The part before.
    Part,
}

/// What a step ends with.
enum To {
    /// (W, V), and of each row the best of them and the token that is drawn (W, BEST_ENTRIES).
    Logits { logits: wgpu::Buffer, best: wgpu::Buffer, vocabulary: usize },
    /// (T, D), for the part behind.
    Part { rows: wgpu::Buffer, width: usize },
}

/// What a step writes, reused by the next.
#[derive(Default)]
pub(super) struct State {
    request: Request,
    /// (T, D): the rows that a step begins with.
    pub(super) rows: Vec<f32>,
    /// The counts that the tables of tiles were written for.
    counts: Option<(u32, u32)>,
    pub(super) recorded: Option<Recorded>,
    asked: Asked,
}

/// The commands of a step to come, recorded while the GPU computes one like it: recording takes as long as a small model's step.
pub(super) struct Recorded {
    counts: Counts,
    /// The number of its pages.
    pages: u64,
    /// One for each segment.
    commands: Vec<wgpu::CommandBuffer>,
}

/// Rows that the GPU is computing.
pub(super) struct Begun {
    pub(super) counts: Counts,
    /// The first segment.
    submission: wgpu::SubmissionIndex,
    /// The other segments, if they are recorded.
    commands: vec::IntoIter<wgpu::CommandBuffer>,
}

/// Steps up to a pause, or to the end.
struct Segment<'a> {
    steps: Range<usize>,
    pause: Option<&'a Pause>,
}

/// Where a part's results go.
pub(super) struct Given<'a> {
    /// The logits, and from index `first_router` of the routing on the choices of this part's routers whose experts are here.
    pub(super) out: &'a mut DeviceOutput,
    pub(super) first_router: usize,
    /// (T, D): what the part behind begins with.
    pub(super) rows: &'a mut Vec<f32>,
}

impl Part {
    /// Copies the weights of a part of `program` to the device, with the experts of its first layers, and allocates all but the
    /// pages, which are to be as `layout` says.
    ///
    /// # Errors
    /// As [`super::GpuPass::new`].
    pub(super) fn new(
        device: &GpuDevice,
        (program, ops): (&Program, &PartOps),
        experts: (&dyn PackedExperts, usize),
        layout: &KvLayout,
    ) -> Result<Self, String> {
        device.health().check().map_err(|error| error.to_string())?;
        let scopes =
            [wgpu::ErrorFilter::Internal, wgpu::ErrorFilter::Validation, wgpu::ErrorFilter::OutOfMemory]
                .map(|filter| device.wgpu().push_error_scope(filter));
        let part = Builder::compile(device, (program, ops), experts, layout)
            .map(|builder| Self::of(builder, ops.to));
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
        part
    }

    fn of(mut builder: Builder<'_>, to: Option<TensorId>) -> Self {
        let graph = &builder.program.graph;
        let result = to.or(graph.logits).expect("a recorded pass ends with logits");
        let View::Rows { place, .. } = builder.views[&result] else {
            unreachable!("a part's result lies in rows");
        };
        let (result, width) = (builder.places.get(place), graph.width(result));
        let to = match builder.best {
            Some(best) => To::Logits { logits: result, best: builder.places.get(best), vocabulary: width },
            None => To::Part { rows: result, width },
        };
        let from = match builder.embedding {
            Some((table, scale)) => From::Embedding(graph.matrices[table.0 as usize].0.clone(), scale),
            None => From::Part,
        };
        let readback_bytes = builder.most_paused_bytes().max(to.most_bytes() + builder.routing.size());
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let readback =
            allocate(builder.device, "readback", readback_bytes, usage, &mut builder.places.n_buffers);
        Self {
            device: builder.device.clone(),
            rows: builder.places.get(builder.rows.expect("a part begins with rows")),
            from,
            to,
            buffers_created: builder.places.n_buffers + builder.weights.n_buffers,
            weight_bytes: builder.weights.n_bytes,
            plan_bytes: builder.places.plan_bytes(),
            ropes: graph.ropes.clone(),
            steps: builder.steps,
            pauses: builder.pauses,
            steps_before_wanted: builder.steps_before_wanted,
            tiles: builder.tiles,
            routers: builder.routers,
            attention: builder.attention,
            step: builder.step,
            routing: builder.routing,
            readback,
            state: Mutex::default(),
        }
    }

    /// Its routers whose experts are on the GPU.
    pub(super) fn resident(&self) -> impl Iterator<Item = &Routed> {
        self.routers.iter().filter(|router| router.is_resident)
    }

    /// Submits the first segment of rows of `spans` from row `first` of all on; `n_best` of the logits of each are enough, if it is
    /// not 0, with a token drawn from all as `draws` say. The part before has left its rows in `state`.
    ///
    /// # Errors
    /// If the device has failed, or a token is none of the vocabulary's.
    pub(super) fn begin(
        &self,
        (state, pages): (&mut State, &GpuPages),
        (spans, first): (&[Span<'_>], usize),
        wanted: (usize, &[Draw]),
        clock: Option<Stamped<'_>>,
    ) -> Result<Begun, DeviceError> {
        state.request.want(spans, first, wanted);
        state.request.fill(spans, first, [MAX_ROWS, MAX_WANTED], &self.ropes, self.attention);
        let counts = self.write(state)?;
        let is_it = |of: &Recorded| (of.counts, of.pages) == (counts, pages.number) && clock.is_none();
        let recorded = state.recorded.take().filter(is_it);
        let mut commands = recorded.map_or(Vec::new(), |recorded| recorded.commands).into_iter();
        let segment = self.segments(&counts).next().expect("a step ends");
        let first = commands.next().unwrap_or_else(|| self.record(&segment, (pages, &counts), clock));
        let submission = self.device.queue().submit([first]);
        Ok(Begun { counts, submission, commands })
    }

    /// Waits for what was begun, with the experts that are elsewhere. Meanwhile it records the next step.
    ///
    /// # Errors
    /// If the device or whoever computes experts fails.
    pub(super) fn finish(
        &self,
        (state, pages): (&mut State, &GpuPages),
        begun: Begun,
        elsewhere: &mut ExpertsElsewhere<'_>,
        (mut given, clock): (Given<'_>, Option<Stamped<'_>>),
    ) -> Result<(), DeviceError> {
        let Begun { counts, submission, mut commands } = begun;
        let at = (pages, &counts);
        let mut next = Vec::new();
        let mut submission = Some(submission);
        for segment in self.segments(&counts) {
            let submission = submission.take().unwrap_or_else(|| {
                let commands = commands.next().unwrap_or_else(|| self.record(&segment, at, clock));
                self.device.queue().submit([commands])
            });
            if clock.is_none() {
                next.push(self.record(&segment, at, None));
            }
            match segment.pause {
                Some(pause) => self.ask((pause, submission), &counts, &mut state.asked, elsewhere)?,
                None => {
                    let n_bytes = self.result_bytes(&counts).iter().sum();
                    self.read(submission, n_bytes, |bytes| self.give(&counts, bytes, &mut given))?;
                }
            }
        }
        state.recorded =
            (clock.is_none()).then_some(Recorded { counts, pages: pages.number, commands: next });
        Ok(())
    }

    /// Writes what a step of these rows reads; returns its counts.
    fn write(&self, state: &mut State) -> Result<Counts, DeviceError> {
        let State { request, rows, counts: written, .. } = state;
        let queue = self.device.queue();
        let counts = Counts {
            rows: request.n_rows() as u32,
            wanted: request.n_wanted() as u32,
            splits: request.n_splits,
            attends: request.attends,
            attention_tiles: request.n_tiles(),
            best: request.n_best,
            draws: request.n_best > 0 && request.has_draws(),
        };
        if let From::Embedding(embedding, scale) = &self.from {
            let (_, width) = embedding.shape();
            rows.resize(request.n_rows() * width, 0.0);
            cpu::embed(&embedding.view(), &request.ids, rows)?;
            if *scale != 1.0 {
                rows.iter_mut().for_each(|x| *x *= scale);
            }
        }
        queue.write_buffer(&self.rows, 0, bytemuck::cast_slice(rows));
        queue.write_buffer(&self.step, 0, bytemuck::cast_slice(&request.words));
        if *written != Some((counts.rows, counts.wanted)) {
            self.tiles.iter().for_each(|table| table.write(&self.device, &counts));
            *written = Some((counts.rows, counts.wanted));
        }
        Ok(counts)
    }

    /// Bytes of a step's results: `[what it ends with, routing]`.
    fn result_bytes(&self, counts: &Counts) -> [u64; 2] {
        [self.to.bytes(counts), self.routing_start(self.routers.len(), counts)]
    }

    /// Bytes of a step's routing before that of a router.
    pub(super) fn routing_start(&self, router: usize, counts: &Counts) -> u64 {
        let bytes = |router: &Routed| 8 * router.n_chosen as u64 * u64::from(counts.of(router.rows));
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
        let [result_bytes, routing_bytes] = self.result_bytes(counts);
        let result = self.to.buffer(counts);
        for (from, bytes, start) in [(result, result_bytes, 0), (&self.routing, routing_bytes, result_bytes)]
        {
            if bytes > 0 {
                encoder.copy_buffer_to_buffer(from, 0, &self.readback, start, bytes);
            }
        }
        encoder.finish()
    }

    /// Waits for a submission and shows the first `n_bytes` of what it gave.
    pub(super) fn read(
        &self,
        submission: wgpu::SubmissionIndex,
        n_bytes: u64,
        show: impl FnOnce(&[u8]),
    ) -> Result<(), DeviceError> {
        let failed = |error: &dyn fmt::Display| DeviceError::Failed(format!("the GPU failed: {error}"));
        let wgpu = self.device.wgpu();
        let signal = Arc::new(Signal::default());
        let fired = signal.clone();
        let n_mapped = n_bytes.max(8);
        self.readback.map_async(wgpu::MapMode::Read, ..n_mapped, move |result| {
            fired.fire(result.map_err(|error| EngineError::Device(error.to_string())));
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

    /// Passes on what rows of these counts gave.
    fn give(&self, counts: &Counts, bytes: &[u8], given: &mut Given<'_>) {
        let (result, routing) = bytes.split_at(self.result_bytes(counts)[0] as usize);
        let floats = |bytes: &[u8], to: &mut Vec<f32>| {
            to.extend(bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)));
        };
        match self.to {
            To::Part { .. } => {
                given.rows.clear();
                floats(result, given.rows);
            }
            To::Logits { .. } if counts.best == 0 => floats(result, &mut given.out.logits),
            To::Logits { .. } => {
                for row in result.chunks_exact(BEST_BYTES * BEST_ENTRIES) {
                    let (entries, _) = row.as_chunks::<4>().0.as_chunks::<2>();
                    let best = entries.iter().take(counts.best as usize);
                    let pair = |[token, logit]: &[[u8; 4]; 2]| {
                        (u32::from_le_bytes(*token), f32::from_le_bytes(*logit))
                    };
                    given.out.best.extend(best.map(pair));
                    if counts.draws {
                        given.out.drawn.push(u32::from_le_bytes(entries[MAX_BEST][0]));
                    }
                }
            }
        }
        let resident = self.routers.iter().enumerate().filter(|(_, router)| router.is_resident);
        for ((index, router), of_layer) in resident.zip(&mut given.out.routing[given.first_router..]) {
            let first = self.routing_start(index, counts) as usize;
            let n_bytes = 8 * router.n_chosen * counts.of(router.rows) as usize;
            of_layer.extend_from_words(routing[first..][..n_bytes].as_chunks().0);
        }
    }
}

impl To {
    /// What a step of these counts reads back.
    fn buffer(&self, counts: &Counts) -> &wgpu::Buffer {
        match self {
            Self::Logits { best, .. } if counts.best > 0 => best,
            Self::Logits { logits: result, .. } | Self::Part { rows: result, .. } => result,
        }
    }

    /// Bytes of it.
    fn bytes(&self, counts: &Counts) -> u64 {
        match self {
            Self::Logits { .. } if counts.best > 0 => {
                (BEST_BYTES * BEST_ENTRIES) as u64 * u64::from(counts.wanted)
            }
            Self::Logits { vocabulary, .. } => 4 * *vocabulary as u64 * u64::from(counts.wanted),
            Self::Part { width, .. } => 4 * *width as u64 * u64::from(counts.rows),
        }
    }

    /// The most bytes of it.
    fn most_bytes(&self) -> u64 {
        let bytes = match self {
            Self::Logits { vocabulary, .. } => MAX_WANTED * (4 * vocabulary).max(BEST_BYTES * BEST_ENTRIES),
            Self::Part { width, .. } => MAX_ROWS * 4 * width,
        };
        bytes as u64
    }
}
