//! Compiles the operations of a program to dispatches: chooses kernels, copies weights, and gives every intermediate a buffer.

use std::collections::BTreeMap;

use super::{
    away::Pause,
    layers::PartOps,
    pages::is_q8_0,
    places::{PlaceId, Places},
    request::{AttentionGrid, Request},
    row_attend::RowHeads,
    row_norm::RowNorm,
    tiles::{Counts, Extent, InOrder, TileTable, When},
    weights::Weights,
};
use crate::{
    WeightFormat,
    engine::gpu::{
        compiled::Compiled,
        device::GpuDevice,
        int8,
        shaders::{Binding, BindingKind, Constants, Resource, Shader, int8_shader},
        structs::Shape,
    },
    graph::{KvLayout, MatrixId, Op, PackedExperts, Program, RowCount, TensorId},
    quant::{Geometry, row_stride},
};

/// Rows that a pass computes at once; longer steps take several. Each weight is read once for all of them.
pub(super) const MAX_ROWS: usize = 512;
/// Rows of them whose logits are wanted.
pub(super) const MAX_WANTED: usize = 64;
/// A binding of a buffer may start at multiples of this, on every device.
const BINDING_ALIGN: u64 = 256;
/// More dispatches than any operation takes.
const MAX_STEPS_OF_OP: u64 = 8;

/// One dispatch.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) kernel: &'static str,
    /// What it gives.
    pub(super) of: &'static str,
    /// Threads of a workgroup.
    pub(super) threads: u32,
    pub(super) reads: Reads,
    pub(super) pipeline: wgpu::ComputePipeline,
    /// None where it reads or writes pages.
    pub(super) bind_group: Option<wgpu::BindGroup>,
    pub(super) paged: Option<Paged>,
    /// Workgroups in x, y and z.
    pub(super) grid: [Extent; 3],
    /// Which steps it is part of.
    pub(super) when: When,
}

/// Bytes of weights and of the cache that a dispatch reads for one row.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reads {
    pub(super) weights: usize,
    /// For each position of the row's sequence.
    pub(super) of_position: usize,
}

/// What a dispatch binds that reads or writes pages, but for the pages themselves.
#[derive(Debug)]
pub(super) struct Paged {
    pub(super) slot: usize,
    /// Where the pages are bound.
    pub(super) binding: u32,
    pub(super) layout: wgpu::BindGroupLayout,
    pub(super) entries: Vec<(u32, Bound)>,
}

/// A part of a buffer: from a byte on, and how many bytes if not all.
pub(super) type Bound = (wgpu::Buffer, u64, Option<u64>);

/// A router: its layer, and which rows it routes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Routed {
    pub(super) layer: usize,
    pub(super) n_chosen: usize,
    pub(super) rows: RowCount,
    /// Whether the experts are on the GPU.
    pub(super) is_resident: bool,
}

/// Where the values of a tensor are.
#[derive(Clone, Copy)]
pub(super) enum View {
    /// Rows of f32, `stride` apart.
    Rows { place: PlaceId, start: usize, stride: usize },
    /// Experts' results (P, D), and each row's pairs among them (T, K). Of one row it may be their sum (1, D).
    Pairs { place: PlaceId, of_rows: PlaceId, n_chosen: usize, is_sum_of_one: bool },
    /// What ranges of positions gave (T, H, slots, C + 2).
    Ranges { place: PlaceId, head_width: usize },
}

/// A part of a pass that is being compiled.
pub(super) struct Builder<'a> {
    pub(super) device: &'a GpuDevice,
    pub(super) program: &'a Program,
    pub(super) ops: &'a [Op],
    /// Of the pages that the dispatches read and write.
    pub(super) layout: &'a KvLayout,
    pub(super) experts: &'a dyn PackedExperts,
    pub(super) weights: Weights<'a>,
    pub(super) places: Places<'a>,
    pub(super) views: BTreeMap<TensorId, View>,
    /// Activations made of tensors so far.
    activations: Vec<(TensorId, Option<Geometry>, PlaceId)>,
    pub(super) steps: Vec<Step>,
    /// Which steps the next dispatches are part of.
    pub(super) when: When,
    /// The last norm, if the products behind it take it themselves in steps of one row.
    pub(super) row_norm: Option<RowNorm>,
    /// The last heads, if attention takes them itself in steps of one row.
    pub(super) row_heads: Option<RowHeads>,
    /// Of so many layers the experts are on the GPU.
    pub(super) n_resident: usize,
    pub(super) pauses: Vec<Pause>,
    /// How many steps come before the rows whose logits are wanted are chosen.
    pub(super) steps_before_wanted: usize,
    pub(super) tiles: Vec<TileTable>,
    pub(super) routers: Vec<Routed>,
    /// How many parts of each of the last router's logits there are.
    pub(super) n_logit_parts: usize,
    pub(super) attention: AttentionGrid,
    /// The best logits of each row.
    pub(super) best: Option<PlaceId>,
    /// The rows that a step begins with.
    pub(super) rows: Option<PlaceId>,
    /// The embedding that they are looked up in, and their factor; none where they come from another GPU.
    pub(super) embedding: Option<(MatrixId, f32)>,
    pub(super) step: wgpu::Buffer,
    pub(super) routing: wgpu::Buffer,
    run: wgpu::Buffer,
    parameters: wgpu::Buffer,
    n_parameters: u64,
}

impl<'a> Builder<'a> {
    /// Compiles all operations of a part.
    ///
    /// # Errors
    /// If no binding is as large as its weights, or the experts cannot be read; with the reason.
    pub(super) fn compile(
        device: &'a GpuDevice,
        of: (&'a Program, &'a PartOps),
        experts: (&'a dyn PackedExperts, usize),
        layout: &'a KvLayout,
    ) -> Result<Self, String> {
        let unplanned = (Places::unplanned(device), Weights::left_out(device));
        let plan = Self::compile_with(unplanned, device, of, experts, layout)?.places.plan();
        let planned = (Places::planned(device, plan), Weights::new(device));
        let mut compiled = Self::compile_with(planned, device, of, experts, layout)?;
        compiled.weights.finish();
        Ok(compiled)
    }

    fn compile_with(
        (mut places, weights): (Places<'a>, Weights<'a>),
        device: &'a GpuDevice,
        (program, PartOps { ops, from, to }): (&'a Program, &'a PartOps),
        (experts, n_resident): (&'a dyn PackedExperts, usize),
        layout: &'a KvLayout,
    ) -> Result<Self, String> {
        use wgpu::BufferUsages as Usage;

        let n_chosen: usize =
            ops.iter().map(|op| if let Op::Route { n_chosen, .. } = op { *n_chosen } else { 0 }).sum();
        let step_words = Request::max_words(MAX_ROWS, &program.graph.ropes, layout.max_positions);
        let step = places.buffer("step", 4 * step_words as u64, Usage::STORAGE | Usage::COPY_DST);
        let routing_bytes = (8 * n_chosen.max(1) * MAX_ROWS) as u64;
        let routing = places.buffer("routing", routing_bytes, Usage::STORAGE | Usage::COPY_SRC);
        // Zeros, as every new buffer.
        let run = places.buffer("run", BINDING_ALIGN, Usage::UNIFORM);
        let parameter_bytes = ops.len() as u64 * MAX_STEPS_OF_OP * BINDING_ALIGN;
        let parameters = places.buffer("parameters", parameter_bytes, Usage::UNIFORM | Usage::COPY_DST);
        let mut builder = Self {
            device,
            program,
            ops,
            layout,
            experts,
            weights,
            places,
            views: BTreeMap::new(),
            activations: Vec::new(),
            steps: Vec::new(),
            when: When::Always,
            row_norm: None,
            row_heads: None,
            n_resident,
            pauses: Vec::new(),
            steps_before_wanted: 0,
            tiles: Vec::new(),
            routers: Vec::new(),
            n_logit_parts: 1,
            attention: AttentionGrid::NONE,
            best: None,
            rows: None,
            embedding: None,
            step,
            routing,
            run,
            parameters,
            n_parameters: 0,
        };
        let mut last_use = BTreeMap::new();
        for (index, op) in ops.iter().enumerate() {
            op.tensors(|id| {
                last_use.insert(id, index);
            });
        }
        if let Some(from) = from {
            builder.rows = Some(builder.rows_of(*from));
        }
        let result = to.or(program.graph.logits);
        for index in 0..ops.len() {
            builder.op(index)?;
            for (id, _) in last_use.iter().filter(|(id, last)| **last == index && Some(**id) != result) {
                builder.forget(*id);
            }
        }
        match to {
            Some(_) => builder.steps_before_wanted = builder.steps.len(),
            None => builder.best_logits(),
        }
        Ok(builder)
    }

    fn op(&mut self, index: usize) -> Result<(), String> {
        match self.ops[index] {
            Op::Embed { table, out } => {
                self.rows = Some(self.rows_of(out));
                self.embedding = Some((table, 1.0));
            }
            Op::Scale { by, .. } => {
                if let Some((_, scale)) = &mut self.embedding {
                    *scale *= by;
                }
            }
            Op::Norm { x, weight, eps, out } => self.norm(index, x, None, Some((weight, eps, out)))?,
            Op::Add { x, y } => self.norm(index, x, Some(y), None)?,
            Op::AddNorm { x, y, weight, eps, out } => {
                self.norm(index, x, Some(y), Some((weight, eps, out)))?;
            }
            Op::Linear { x, projection } => self.linears(x, &[projection])?,
            Op::Linears { x, ref projections } => self.linears(x, projections)?,
            Op::Mlp { x, matrices: [gate, ..], out } => self.mlp(x, gate, out)?,
            Op::HeadsToCache { slot, q, k, v } => self.heads((index, slot), q, k, v)?,
            Op::Attend { slot, q, attention, out } => self.attend(slot, q, attention, out)?,
            Op::Route { logits, n_chosen, renormalise, .. } => {
                self.route(index, logits, n_chosen, renormalise)?;
            }
            Op::KeepWanted { x, out } => {
                self.steps_before_wanted = self.steps.len();
                self.keep_wanted(x, out);
            }
            // The router has done what is left to be done for experts; the others are refused.
            _ => {}
        }
        Ok(())
    }

    /// `x` as activations for matrices of `format`, `cols` wide: made now, or before.
    pub(super) fn activations(&mut self, x: TensorId, format: WeightFormat, cols: usize) -> PlaceId {
        let geometry = format.geometry();
        let known = self.activations.iter().find(|(of, as_for, _)| *of == x && *as_for == geometry);
        if let Some((_, _, place)) = known {
            return *place;
        }
        let result_stride = row_stride(geometry, cols);
        let out = self.places.take(4 * MAX_ROWS * result_stride);
        let count = self.row_count(x);
        let result = self.places.get(out);
        match self.views[&x] {
            View::Rows { place, start, stride } => {
                assert_eq!(start, 0, "rows that are rounded lie by themselves");
                let shape = Shape {
                    items: cols as u32,
                    x_stride: stride as u32,
                    result_stride: result_stride as u32,
                    ..Shape::default()
                };
                let in_order = InOrder::few(count, 0);
                let buffers = vec![
                    (Resource::Tiles, self.tile_table(in_order)),
                    (Resource::X, self.places.get(place)),
                    (Resource::Result, result),
                ];
                let grid =
                    [Extent::Fixed(4 * cols.div_ceil(256) as u32), in_order.extent(), Extent::Fixed(1)];
                self.push("int8_rows", int8::rows(format), bytemuck::bytes_of(&shape), buffers, grid);
            }
            View::Ranges { place, head_width } => {
                self.join_ranges((place, head_width), (format, cols), (result, result_stride), count);
            }
            View::Pairs { .. } => unreachable!("what experts give is added, not multiplied"),
        }
        self.keep_activations(x, geometry, out);
        out
    }

    /// Notes that `place` has the activations of `x`, as long as `x` lives.
    pub(super) fn keep_activations(&mut self, x: TensorId, geometry: Option<Geometry>, place: PlaceId) {
        self.activations.push((x, geometry, place));
    }

    /// The table of tiles in order.
    pub(super) fn tile_table(&mut self, of: InOrder) -> wgpu::Buffer {
        if let Some(known) = self.tiles.iter().find(|table| table.is_of(of)) {
            return known.buffer().clone();
        }
        self.tiles.push(TileTable::new(&mut self.places, of, MAX_ROWS));
        self.tiles[self.tiles.len() - 1].buffer().clone()
    }

    /// A place for the rows of `out`.
    pub(super) fn rows_of(&mut self, out: TensorId) -> PlaceId {
        let stride = self.program.graph.width(out);
        let place = self.places.take(4 * MAX_ROWS * stride);
        self.views.insert(out, View::Rows { place, start: 0, stride });
        place
    }

    /// What is computed after operation `index`.
    pub(super) fn ops_after(&self, index: usize) -> impl Iterator<Item = &'a Op> + use<'a> {
        self.ops[index + 1..].iter().filter(|op| !matches!(op, Op::Done(_)))
    }

    /// The most rows of `x` in a step.
    pub(super) fn max_rows(&self, x: TensorId) -> usize {
        match self.row_count(x) {
            RowCount::Step => MAX_ROWS,
            RowCount::WantedLogits => MAX_WANTED,
        }
    }

    pub(super) fn row_count(&self, x: TensorId) -> RowCount {
        self.program.graph.tensor(x).rows
    }

    /// Releases the places of a tensor and of its activations.
    fn forget(&mut self, id: TensorId) {
        match self.views.remove(&id) {
            Some(View::Rows { place, .. } | View::Ranges { place, .. }) => self.places.release(place),
            Some(View::Pairs { place, of_rows, .. }) => {
                self.places.release(place);
                self.places.release(of_rows);
            }
            None => {}
        }
        self.forget_activations(id);
    }

    /// Releases the activations of a tensor, which are not of its values any more.
    pub(super) fn forget_activations(&mut self, id: TensorId) {
        let places = &mut self.places;
        self.activations.retain(|(of, _, place)| {
            if *of == id {
                places.release(*place);
            }
            *of != id
        });
    }

    /// Appends a dispatch that touches no pages.
    pub(super) fn push(
        &mut self,
        shader: &str,
        constants: Constants,
        parameters: &[u8],
        buffers: Vec<(Resource, wgpu::Buffer)>,
        grid: [Extent; 3],
    ) -> &mut Step {
        let threads = constants.iter().find(|(name, _)| *name == "THREADS").map(|(_, value)| *value as u32);
        let (compiled, entries) = self.prepare(shader, constants, parameters, &buffers);
        let bound = entries.iter().map(|(index, bound)| (*index, bound));
        let bind_group = Some(bind_group(self.device, &compiled.bind_group_layout, bound));
        let mut step = Step::new(int8_shader(shader), compiled.pipeline, (bind_group, None), grid);
        step.threads = threads.unwrap_or(step.threads);
        step.when = self.when;
        self.steps.push(step);
        self.places.step_is_over();
        self.steps.last_mut().expect("it was just appended")
    }

    /// Appends a dispatch that reads or writes the pages of `slot`.
    pub(super) fn push_paged(
        &mut self,
        (shader, mut constants): (&str, Constants),
        parameters: &[u8],
        buffers: Vec<(Resource, wgpu::Buffer)>,
        grid: [Extent; 3],
        slot: usize,
    ) -> &mut Step {
        constants.push(("IS_Q8_0", f64::from(u8::from(is_q8_0(self.layout)))));
        let (compiled, entries) = self.prepare(shader, constants, parameters, &buffers);
        let pages = int8_shader(shader).bindings.iter().find(|binding| binding.resource == Resource::Pages);
        let binding = pages.expect("the shader binds pages").index;
        let paged = Some(Paged { slot, binding, layout: compiled.bind_group_layout, entries });
        let step = Step::new(int8_shader(shader), compiled.pipeline, (None, paged), grid);
        self.steps.push(Step { when: self.when, ..step });
        self.places.step_is_over();
        self.steps.last_mut().expect("it was just appended")
    }

    /// Whether what a dispatch writes is bound once: the API refuses a buffer that is read and written, and takes one that is written
    /// under two names.
    fn writes_alone(&self, bound: &[(&Binding, Bound)]) -> bool {
        let is_bound_once = |buffer| bound.iter().filter(|(_, (other, ..))| other == buffer).count() == 1;
        bound.iter().all(|(binding, (buffer, ..))| {
            binding.kind != BindingKind::Storage || self.places.is_nothing(buffer) || is_bound_once(buffer)
        })
    }

    /// Compiles a shader, writes its parameters, and finds what it binds, but for pages.
    fn prepare(
        &mut self,
        shader: &str,
        constants: Constants,
        parameters: &[u8],
        buffers: &[(Resource, wgpu::Buffer)],
    ) -> (Compiled, Vec<(u32, Bound)>) {
        let shader = int8_shader(shader);
        let compiled = self.device.compiled().get(self.device.wgpu(), shader, constants);
        let start = self.n_parameters * BINDING_ALIGN;
        self.n_parameters += 1;
        self.device.queue().write_buffer(&self.parameters, start, parameters);
        let bound = |resource| match resource {
            Resource::Run => (self.run.clone(), 0, Some(8)),
            Resource::Step => (self.step.clone(), 0, None),
            Resource::Routing => (self.routing.clone(), 0, None),
            resource => match buffers.iter().find(|(named, _)| *named == resource) {
                Some((_, buffer)) => (buffer.clone(), 0, None),
                // What is left is the one uniform that a shader has besides.
                None => (self.parameters.clone(), start, Some(parameters.len().next_multiple_of(16) as u64)),
            },
        };
        let bindings = shader.bindings.iter().filter(|binding| binding.resource != Resource::Pages);
        let of_bindings: Vec<_> = bindings.map(|binding| (binding, bound(binding.resource))).collect();
        debug_assert!(self.writes_alone(&of_bindings), "{} writes what it binds besides", shader.entry_point);
        (compiled, of_bindings.into_iter().map(|(binding, bound)| (binding.index, bound)).collect())
    }
}

impl Step {
    fn new(
        shader: &'static Shader,
        pipeline: wgpu::ComputePipeline,
        (bind_group, paged): (Option<wgpu::BindGroup>, Option<Paged>),
        grid: [Extent; 3],
    ) -> Self {
        let (kernel, threads) = (shader.entry_point, shader.threads);
        let (reads, when) = (Reads::default(), When::Always);
        Self { kernel, of: "", threads, reads, pipeline, bind_group, paged, grid, when }
    }

    /// Says for measurements what the dispatch gives, and the bytes of weights that it reads for one row.
    pub(super) fn gives(&mut self, of: &'static str, weights: usize) -> &mut Self {
        self.of = of;
        self.reads.weights = weights;
        self
    }

    /// Workgroups in x, y and z in a step of these counts; none where a step does not have the dispatch.
    pub(super) fn workgroups(&self, counts: &Counts) -> Option<[u32; 3]> {
        let grid = self.grid.map(|extent| extent.of(counts));
        (self.when.holds(counts) && grid.iter().all(|extent| *extent > 0)).then_some(grid)
    }
}

/// A bind group of these parts of buffers.
pub(super) fn bind_group<'b>(
    device: &GpuDevice,
    layout: &wgpu::BindGroupLayout,
    bound: impl Iterator<Item = (u32, &'b Bound)>,
) -> wgpu::BindGroup {
    let entry = |(binding, (buffer, offset, size)): (u32, &'b Bound)| {
        let size = size.and_then(std::num::NonZeroU64::new);
        let resource = wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset: *offset, size });
        wgpu::BindGroupEntry { binding, resource }
    };
    let entries: Vec<_> = bound.map(entry).collect();
    let descriptor = wgpu::BindGroupDescriptor { label: None, layout, entries: &entries };
    device.wgpu().create_bind_group(&descriptor)
}
