//! Where everything lies on the GPU: sizes, places and tables, computed from a plan before anything is allocated. Knows
//! no wgpu.

use bytemuck::Zeroable;

#[cfg(not(target_arch = "wasm32"))]
use super::variants::Way;
use super::{
    shaders::{Constants, Kernel, Units},
    structs::{Run, Shape, TILE_PAIRS, Tile},
};
use crate::{
    ExpertKind, ExpertShape, WeightFormat,
    engine::{ActivationFormat, Batch, EngineError, EnginePlan},
    quant::row_stride,
    simd::PackedExpertShape,
};

/// Threads of a workgroup, `WORKGROUP` in `shader/shared/reduce.wgsl`.
const WORKGROUP: u32 = 64;
/// A binding of a buffer may start at multiples of this, on every device.
const BINDING_ALIGN: u64 = 256;
/// A mapped buffer is written from multiples of this on.
pub(super) const MAP_ALIGN: u64 = 8;
/// Rows of x and h are padded to multiples of this, a chunk of int4: a kernel may read past their end.
const ROW_ALIGN: usize = 32;
/// The most steps that an expert is computed in.
const MAX_STEPS: u64 = 3;
/// Workgroups of one dispatch in y, on every device: the most tiles, and so the most pairs.
const MAX_TILES: u32 = 65_535;

/// A plan's sizes and places.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Layout {
    plan: EnginePlan,
    /// Experts in one slab; a slab is one buffer and one binding.
    pub(super) slots_per_slab: u32,
    pub(super) n_slabs: u32,
    /// Bytes of a slot: those of the largest block.
    pub(super) block_bytes: u64,
}

/// One message's contents of the table buffer, and its dispatches.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tables {
    /// A [`Run`] for each slab and shape, each where a binding may start, then the [`Tile`]s.
    pub(super) bytes: Vec<u8>,
    /// In the order of their runs.
    pub(super) dispatches: Vec<TilesOf>,
}

/// The tiles of one dispatch: those of a slab whose experts have the same formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TilesOf {
    pub(super) slab: u32,
    /// The shape's index among the plan's.
    pub(super) shape: u32,
    pub(super) n_tiles: u32,
    #[cfg(not(target_arch = "wasm32"))]
    pub(super) way: Way,
}

impl Layout {
    /// # Errors
    /// [`EngineError::Plan`] if the plan does not fit a binding of `max_binding_bytes`, or a dispatch.
    pub(super) fn new(plan: EnginePlan, max_binding_bytes: u64) -> Result<Self, EngineError> {
        plan.check()?;
        let refuse = |reason: String| Err(EngineError::Plan(reason));
        let shapes = plan.shapes;
        let is_int8 = plan.activations == ActivationFormat::Int8;
        if !is_int8 && (!shapes.hidden.is_multiple_of(8) || !shapes.inner.is_multiple_of(8)) {
            return refuse(format!(
                "on a GPU, widths are multiples of 8, not {} and {}",
                shapes.hidden, shapes.inner
            ));
        }
        if plan.n_slots == 0 || plan.max_rows == 0 || plan.max_pairs == 0 {
            return refuse("it has no slots, no rows or no pairs".to_owned());
        }
        if plan.max_pairs > MAX_TILES {
            return refuse(format!("on a GPU, at most {MAX_TILES} pairs, not {}", plan.max_pairs));
        }
        let block_bytes = match is_int8 {
            false => shapes.block_bytes(),
            true => shapes.iter().map(|shape| PackedExpertShape::from(shape).bytes()).max().unwrap_or(0),
        } as u64;
        let fitting = u32::try_from(max_binding_bytes / block_bytes).unwrap_or(u32::MAX);
        let slots_per_slab = fitting.min(plan.n_slots);
        if slots_per_slab == 0 {
            return refuse(format!("an expert of {block_bytes} bytes in bindings of {max_binding_bytes}"));
        }
        let n_slabs = plan.n_slots.div_ceil(slots_per_slab);
        let layout = Self { plan, slots_per_slab, n_slabs, block_bytes };
        let others = [
            layout.message_bytes(),
            layout.h_bytes(),
            layout.h_rows_bytes(),
            layout.y_bytes(plan.max_pairs as usize),
        ];
        match others.into_iter().max() {
            Some(most) if most > max_binding_bytes => {
                refuse(format!("intermediates of {most} bytes in bindings of {max_binding_bytes}"))
            }
            _ => Ok(layout),
        }
    }

    /// Bytes of slab `slab`. All slabs but the last are full.
    pub(super) fn slab_bytes(&self, slab: u32) -> u64 {
        let slots = (self.plan.n_slots - slab * self.slots_per_slab).min(self.slots_per_slab);
        u64::from(slots) * self.block_bytes
    }

    /// The slab of a slot and the byte in it where the slot starts.
    pub(super) fn place(&self, slot: u32) -> (u32, u64) {
        (slot / self.slots_per_slab, u64::from(slot % self.slots_per_slab) * self.block_bytes)
    }

    fn is_int8(&self) -> bool {
        self.plan.activations == ActivationFormat::Int8
    }

    /// Bytes of a full message as it is staged: each part where a mapped buffer may be written.
    pub(super) fn upload_bytes(&self) -> u64 {
        self.message_bytes() + self.n_shapes() * MAP_ALIGN
    }

    /// Bytes of a full message: its tables, then its rows (R, D), padded. With int8 activations rows are stored once for each
    /// shape, since formats differ in their words.
    pub(super) fn message_bytes(&self) -> u64 {
        match self.is_int8() {
            false => {
                self.rows_start(0)
                    + u64::from(self.plan.max_rows) * padded(self.plan.shapes.hidden) as u64 * 4
            }
            true => self.rows_start(u32::MAX),
        }
    }

    /// Where the rows for a shape of the plan start in a message.
    pub(super) fn rows_start(&self, shape: u32) -> u64 {
        let n = if self.is_int8() { shape as usize } else { 0 };
        let words: usize = self.plan.shapes.iter().take(n).map(|shape| self.x_stride(&shape)).sum();
        self.tables_bytes().next_multiple_of(BINDING_ALIGN) + u64::from(self.plan.max_rows) * words as u64 * 4
    }

    /// Words from one int8 row for a shape to the next.
    fn x_stride(&self, shape: &ExpertShape) -> usize {
        int8_stride(shape.format.gate_up, shape.hidden)
    }

    /// Words from the start of one int8 row of h to that of the next: the widest of all shapes.
    pub(super) fn h_stride(&self) -> usize {
        self.plan.shapes.iter().map(|shape| int8_stride(shape.format.down, shape.inner)).max().unwrap_or(0)
    }

    /// Bytes of the runs and tiles of a full message, and of what wide tiles need.
    pub(super) fn tables_bytes(&self) -> u64 {
        #[cfg(not(target_arch = "wasm32"))]
        if self.is_int8() {
            return self.pairs_start() + u64::from(self.plan.max_pairs) * size_of::<[u32; 2]>() as u64;
        }
        self.tiles_start() + u64::from(self.plan.max_pairs) * size_of::<Tile>() as u64
    }

    /// Where the wide tiles of int8 activations start in the tables, behind all others.
    #[cfg(not(target_arch = "wasm32"))]
    pub(super) fn wide_tiles_start(&self) -> u64 {
        let tiles = u64::from(self.plan.max_pairs) * size_of::<Tile>() as u64;
        (self.tiles_start() + tiles).next_multiple_of(BINDING_ALIGN)
    }

    /// Where the list of their pairs starts.
    #[cfg(not(target_arch = "wasm32"))]
    pub(super) fn pairs_start(&self) -> u64 {
        let tiles = u64::from(self.plan.max_pairs) * size_of::<Tile>() as u64;
        (self.wide_tiles_start() + tiles).next_multiple_of(BINDING_ALIGN)
    }

    /// Where the run of a slab's experts of one shape starts in the tables.
    pub(super) fn run_start(&self, slab: u32, shape: u32) -> u64 {
        (u64::from(slab) * self.n_shapes() + u64::from(shape)) * BINDING_ALIGN
    }

    /// Where the parameters of a step for a shape of the plan start, among those of all steps for all shapes.
    pub(super) fn shape_start(&self, place: u32, step: usize) -> u64 {
        (u64::from(place) * MAX_STEPS + step as u64) * BINDING_ALIGN
    }

    /// Bytes of the parameters of all steps for all shapes.
    pub(super) fn shapes_bytes(&self) -> u64 {
        self.n_shapes() * MAX_STEPS * BINDING_ALIGN
    }

    /// Bytes of the tables up to the last of so many tiles.
    #[cfg(not(target_arch = "wasm32"))]
    pub(super) fn tables_bytes_of(&self, n_tiles: usize) -> u64 {
        self.tiles_start() + (n_tiles * size_of::<Tile>()) as u64
    }

    /// Bytes of one int8 row for a shape of the plan.
    #[cfg(not(target_arch = "wasm32"))]
    pub(super) fn row_bytes(&self, shape: u32) -> u64 {
        (self.rows_start(shape + 1) - self.rows_start(shape)) / u64::from(self.plan.max_rows)
    }

    /// The most dispatches of a step: one for each slab and shape.
    #[cfg(not(target_arch = "wasm32"))]
    pub(super) fn n_dispatches(&self) -> u64 {
        u64::from(self.n_slabs) * self.n_shapes()
    }

    /// Where the tiles start in the tables.
    pub(super) fn tiles_start(&self) -> u64 {
        self.run_start(self.n_slabs, 0)
    }

    fn n_shapes(&self) -> u64 {
        self.plan.shapes.iter().count() as u64
    }

    /// Bytes of h (P, F), padded, then the products with gate and up (P, 2F).
    pub(super) fn h_bytes(&self) -> u64 {
        4 * self.products_start() + self.products_bytes(self.plan.max_pairs as usize)
    }

    /// Where the products start behind h, in floats.
    pub(super) fn products_start(&self) -> u64 {
        (u64::from(self.plan.max_pairs) * padded(self.plan.shapes.inner) as u64)
            .next_multiple_of(BINDING_ALIGN / 4)
    }

    /// Where the products of a full message start behind its rows where both are packed in f16.
    pub(super) fn packed_products_start(&self) -> u64 {
        (self.y_bytes(self.plan.max_pairs as usize) / 2).next_multiple_of(BINDING_ALIGN)
    }

    /// Bytes of the rows and the products of a full message in f16.
    pub(super) fn packed_bytes(&self) -> u64 {
        let products = self.products_bytes(self.plan.max_pairs as usize) / 2;
        self.packed_products_start() + products.next_multiple_of(4)
    }

    /// Bytes of the products with gate and up (P, 2F) of `n_pairs` pairs.
    pub(super) fn products_bytes(&self, n_pairs: usize) -> u64 {
        n_pairs as u64 * 2 * self.plan.shapes.inner as u64 * 4
    }

    /// Bytes of h as rows of int8 activations (P, F); 0 without int8.
    pub(super) fn h_rows_bytes(&self) -> u64 {
        if self.is_int8() { u64::from(self.plan.max_pairs) * self.h_stride() as u64 * 4 } else { 0 }
    }

    /// Bytes of y (P, D) of `n_pairs` pairs.
    pub(super) fn y_bytes(&self, n_pairs: usize) -> u64 {
        n_pairs as u64 * self.plan.shapes.hidden as u64 * 4
    }

    /// The rows of a batch as the kernels read them: each padded with zeros. `None` where no padding is needed.
    pub(super) fn padded_rows(&self, rows: &[f32]) -> Option<Vec<f32>> {
        let (hidden, stride) = (self.plan.shapes.hidden, padded(self.plan.shapes.hidden));
        if hidden == stride {
            return None;
        }
        let mut padded_rows = vec![0.0; rows.len() / hidden * stride];
        for (padded, row) in padded_rows.chunks_exact_mut(stride).zip(rows.chunks_exact(hidden)) {
            padded[..hidden].copy_from_slice(row);
        }
        Some(padded_rows)
    }

    /// The tables of a batch that [`Batch::check`] has passed; `shape_of` returns the index of a slot's shape among the
    /// plan's.
    pub(super) fn tables(&self, batch: &Batch, shape_of: impl Fn(u32) -> u32) -> Tables {
        let strides: Vec<(u32, u32)> = (0..)
            .zip(self.plan.shapes.iter())
            .map(|(place, shape)| match self.is_int8() {
                false => ((self.rows_start(0) / 16) as u32, (padded(shape.hidden) / 4) as u32),
                true => ((self.rows_start(place) / 4) as u32, self.x_stride(&shape) as u32),
            })
            .collect();
        // By slab and shape, ascending; few enough to be kept in order by hand.
        let mut tiles: Vec<((u32, u32), Vec<Tile>)> = Vec::new();
        let mut first_pair = 0;
        for call in &batch.calls {
            let (slab, start) = self.place(call.slot);
            let shape = shape_of(call.slot);
            let (rows_start, stride) = strides[shape as usize];
            let place = tiles.binary_search_by_key(&(slab, shape), |(place, _)| *place);
            let place = place.unwrap_or_else(|place| {
                tiles.insert(place, ((slab, shape), Vec::new()));
                place
            });
            let tiles = &mut tiles[place].1;
            for pairs in call.pairs.chunks(TILE_PAIRS) {
                let mut tile = Tile {
                    block: (start / 16) as u32,
                    n_pairs: pairs.len() as u32,
                    first_pair,
                    ..Tile::zeroed()
                };
                for (i, pair) in pairs.iter().enumerate() {
                    (tile.rows[i], tile.gates[i]) = (rows_start + pair.row * stride, pair.gate);
                }
                tiles.push(tile);
                first_pair += tile.n_pairs;
            }
        }
        let mut tables = Tables { bytes: vec![0; self.tiles_start() as usize], dispatches: Vec::new() };
        let mut first_tile = 0;
        for ((slab, shape), tiles) in tiles {
            if tiles.is_empty() {
                continue;
            }
            let run = Run { first_tile, zero: 0 };
            tables.bytes[self.run_start(slab, shape) as usize..][..size_of::<Run>()]
                .copy_from_slice(bytemuck::bytes_of(&run));
            tables.bytes.extend_from_slice(bytemuck::cast_slice(&tiles));
            let n_tiles = tiles.len() as u32;
            tables.dispatches.push(TilesOf {
                slab,
                shape,
                n_tiles,
                #[cfg(not(target_arch = "wasm32"))]
                way: Way::Few,
            });
            first_tile += n_tiles;
        }
        tables
    }

    /// Workgroups in x of one dispatch of `kernel` over experts of `shape`.
    pub(super) fn workgroups(&self, kernel: Kernel, shape: &ExpertShape) -> u32 {
        let projection = Projection::of(kernel, shape);
        (projection.out as u32).div_ceil(WORKGROUP / projection.lanes())
    }

    /// The parameters that `kernel` reads for experts of `shape`.
    pub(super) fn shape(&self, kernel: Kernel, shape: &ExpertShape) -> Shape {
        let projection = Projection::of(kernel, shape);
        let Projection { out, cols, format } = projection;
        let block = shape.layout();
        let [gate_bias, up_bias, down_bias] = block.biases;
        let (first, bias) = match kernel {
            Kernel::GateUp => (block.gate, gate_bias),
            Kernel::Down => (block.down, down_bias),
        };
        let place = |bytes: usize| (bytes / 16) as u32;
        Shape {
            kind: kind(shape),
            is_down: u32::from(kernel == Kernel::Down),
            out: out as u32,
            items: projection.chunks() as u32,
            x_stride: (padded(cols) / 4) as u32,
            result_stride: if kernel == Kernel::GateUp { padded(out) } else { out } as u32,
            products: self.products_start() as u32,
            weight_stride: (format.value_bytes(1, cols) / Units::of(format).row_unit) as u32,
            weights: place(first.values),
            scales: place(first.scales),
            up: place(block.up.values),
            up_scales: place(block.up.scales),
            bias: place(bias),
            up_bias: place(up_bias),
        }
    }
}

/// The shaders' number for a shape's kind of experts.
pub(super) fn kind(shape: &ExpertShape) -> u32 {
    u32::from(shape.format.kind == ExpertKind::ClampedSwiglu)
}

/// The values of the override constants that `kernel` is compiled with for experts of `shape`.
pub(super) fn constants(kernel: Kernel, shape: &ExpertShape) -> Constants {
    vec![("LANES", f64::from(Projection::of(kernel, shape).lanes()))]
}

/// The matrices that a kernel reads: (out, cols) in a format.
#[derive(Clone, Copy, Debug)]
pub(super) struct Projection {
    out: usize,
    cols: usize,
    pub(super) format: WeightFormat,
}

impl Projection {
    pub(super) fn of(kernel: Kernel, shape: &ExpertShape) -> Self {
        let ExpertShape { hidden, inner, format } = *shape;
        match kernel {
            Kernel::GateUp => Self { out: inner, cols: hidden, format: format.gate_up },
            Kernel::Down => Self { out: hidden, cols: inner, format: format.down },
        }
    }

    /// Chunks of a row of weights, without those that are only padding.
    fn chunks(&self) -> usize {
        self.cols.div_ceil(Units::of(self.format).chunk_cols)
    }

    /// Threads that share a row of weights: enough to read whole cache lines together, and so many that the fewest of
    /// them are idle in the last round.
    fn lanes(&self) -> u32 {
        let chunks = self.chunks() as u32;
        let rounded = |lanes: u32| chunks.next_multiple_of(lanes);
        [16, 8, 4].into_iter().min_by_key(|&lanes| rounded(lanes)).unwrap_or(16)
    }
}

/// Words from the start of one row of int8 activations for `format` to that of the next.
fn int8_stride(format: WeightFormat, cols: usize) -> usize {
    row_stride(format.geometry(), cols)
}

fn padded(width: usize) -> usize {
    width.next_multiple_of(ROW_ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Call, Pair};

    fn plan(hidden: usize, inner: usize, format: WeightFormat) -> EnginePlan {
        EnginePlan {
            shapes: ExpertShape::uniform(hidden, inner, format).into(),
            activations: ActivationFormat::F32,
            n_slots: 100,
            max_rows: 64,
            max_pairs: 512,
        }
    }

    #[test]
    fn qwen3_30b_a3b_has_55_experts_in_a_slab() {
        let layout = Layout::new(plan(2048, 768, WeightFormat::Int4G128), 128 << 20).unwrap();
        assert_eq!((layout.slots_per_slab, layout.n_slabs), (55, 2));
        assert_eq!(layout.slab_bytes(1), 45 * layout.block_bytes);
        assert_eq!(layout.place(56), (1, layout.block_bytes));
        // A row of 2048 is 64 chunks, four rounds of 16 threads; one of 768 is 24, three rounds of 8.
        let shape = ExpertShape::uniform(2048, 768, WeightFormat::Int4G128);
        let [gate_up, down] = [Kernel::GateUp, Kernel::Down];
        assert_eq!([gate_up, down].map(|kernel| Projection::of(kernel, &shape).lanes()), [16, 8]);
        assert_eq!([gate_up, down].map(|kernel| layout.workgroups(kernel, &shape)), [192, 256]);
    }

    #[test]
    fn tiles_are_cut_from_calls_and_sorted_by_slab() {
        let mut plan = plan(40, 32, WeightFormat::F16);
        plan.n_slots = 2;
        let layout = Layout { slots_per_slab: 1, n_slabs: 2, ..Layout::new(plan, 1 << 20).unwrap() };
        let pairs = |rows: std::ops::Range<u32>| rows.map(|row| Pair { row, gate: row as f32 }).collect();
        let calls = vec![Call { slot: 1, pairs: pairs(3..8) }, Call { slot: 0, pairs: pairs(0..1) }];
        let tables = layout.tables(&Batch { rows: vec![0.0; 40 * 8], calls }, |_| 0);

        let tiles_of = |slab, n_tiles| TilesOf { slab, shape: 0, n_tiles, way: Way::Few };
        assert_eq!(tables.dispatches, [tiles_of(0, 1), tiles_of(1, 2)]);
        assert_eq!(tables.bytes[256..260], 1_u32.to_le_bytes());
        let tiles: Vec<Tile> = bytemuck::pod_collect_to_vec(&tables.bytes[512..]);
        let tile =
            |n_pairs, first_pair, rows, gates| Tile { block: 0, n_pairs, first_pair, packed: 0, rows, gates };
        // A row of 40 is padded to 64, 16 times 16 bytes.
        let row = |i: u32| layout.rows_start(0) as u32 / 16 + 16 * i;
        assert_eq!(
            tiles,
            [
                tile(1, 5, [row(0), 0, 0, 0], [0.0; 4]),
                tile(4, 0, [3, 4, 5, 6].map(row), [3.0, 4.0, 5.0, 6.0]),
                tile(1, 4, [row(7), 0, 0, 0], [7.0, 0.0, 0.0, 0.0]),
            ]
        );
    }

    #[test]
    fn what_fits_no_binding_is_refused() {
        let refused = |plan, binding| matches!(Layout::new(plan, binding), Err(EngineError::Plan(_)));
        let good = plan(64, 32, WeightFormat::F32);
        assert!(!refused(good, 1 << 20));
        assert!(refused(good, 1 << 10));
        assert!(refused(plan(60, 32, WeightFormat::F32), 1 << 20));
        assert!(refused(EnginePlan { max_rows: 60_000, ..good }, 1 << 20));
        assert!(refused(EnginePlan { max_pairs: 70_000, ..good }, 1 << 30));
        assert!(refused(EnginePlan { n_slots: 0, ..good }, 1 << 20));
    }
}
