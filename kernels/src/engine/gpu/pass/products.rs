//! The operations that are products with matrices: projections, MLPs, experts.

use std::ops::RangeInclusive;

use super::{
    compile::{Builder, MAX_ROWS, View},
    one_row::{RowDown, RowGateUp},
    places::PlaceId,
    tiles::{Extent, FEW_ROWS, InOrder, When},
};
use crate::{
    ExpertFormat, ExpertShape, WeightFormat,
    engine::gpu::{
        device::GpuDevice,
        int8::{self, Cut, Int8Step, WIDE_PANELS},
        shaders::{Constants, Resource},
        structs::Shape,
    },
    graph::{MatrixId, Op, Prepared, Projection, RowCount, TensorId},
    quant::row_stride,
    simd::{PackedExpertShape, PackedShape, ROWS},
};

/// Columns of a router's part, and the most parts.
const ROUTER_COLS: usize = 64;
const MAX_ROUTER_PARTS: usize = 16;

/// Lanes of a router's part, `LANES` in `shader/row_router.wgsl`.
const ROUTER_LANES: usize = 16;

/// The constants of a router's matrix whose columns so many parts share.
pub(super) fn router_parts(matrix: &PackedShape, n_parts: usize) -> Constants {
    let part = matrix.cols.div_ceil(4 * n_parts);
    let mut constants = int8::router(matrix.format);
    constants.extend([("PART", part as f64), ("LANE", part.div_ceil(ROUTER_LANES) as f64)]);
    constants
}

/// The pairs that experts, or a dense MLP, are computed for.
pub(super) struct Pairs {
    pub(super) most: usize,
    /// Of each row.
    pub(super) n_chosen: usize,
    pub(super) rows: RowCount,
    /// All of them.
    pub(super) in_order: InOrder,
    /// Tiles in steps of few rows.
    pub(super) few: (Extent, wgpu::Buffer),
    /// Wide tiles in steps of many.
    pub(super) many: (Extent, wgpu::Buffer),
    /// Of wide tiles; none if the pairs are rows in order.
    pub(super) list: Option<wgpu::Buffer>,
    /// One row's gates and ups, where they have kernels of their own.
    pub(super) gate_up: Option<RowGateUp>,
}

/// Products with matrices of one format.
#[derive(Clone, Copy)]
struct Product {
    format: WeightFormat,
    cols: usize,
    rows: RowCount,
    /// Rows of weights that a workgroup takes at most, of few rows of activations.
    most_rows: usize,
    /// What they give, and the bytes of weights that one row reads.
    bytes: (&'static str, usize),
    /// The most rows of activations that `int8_product.wgsl` takes; `int8_matrix.wgsl` takes more, if there are more.
    few_rows: u32,
}

/// The most rows of a step whose experts of these formats have small tiles: there are wide ones for integers alone.
pub(super) fn few_rows(formats: ExpertFormat) -> u32 {
    let is_integer = |format: WeightFormat| format.geometry().is_some();
    if is_integer(formats.gate_up) && is_integer(formats.down) { FEW_ROWS } else { MAX_ROWS as u32 }
}

/// Rows of activations, times rows of weights, for which a multiprocessor takes as long in `int8_product.wgsl` as a workgroup of
/// `int8_matrix.wgsl` takes for the latter's columns: measured on an H200 with 512, 2,048 and 5,120 rows of weights.
const ROWS_OF_PROCESSOR: u32 = 1_000;
/// What that may come to: a card that is filled with workgroups multiplies some rows faster by the latter, whatever the matrix.
const FEW_OF_PROCESSORS: RangeInclusive<u32> = 7..=128;

/// The most rows of a step that are few for an integer matrix of `rows` rows: where it has few workgroups of `int8_matrix.wgsl`, most
/// of a large card would have nothing to do.
fn few_rows_of(rows: usize, device: &GpuDevice) -> u32 {
    let of_card = |n: u32| n * ROWS_OF_PROCESSOR / rows.max(1) as u32;
    device
        .n_multiprocessors()
        .map_or(FEW_ROWS, |n| of_card(n).clamp(*FEW_OF_PROCESSORS.start(), *FEW_OF_PROCESSORS.end()))
}

impl Builder<'_> {
    /// Multiplies `x` by matrices: those of one format, one after another, as one.
    pub(super) fn linears(&mut self, x: TensorId, projections: &[Projection]) -> Result<(), String> {
        let program = self.program;
        let packed = |projection: &Projection| match &program.matrices[projection.matrix.0 as usize] {
            Prepared::Packed { shape, panels } => (*shape, &panels[..]),
            _ => unreachable!("a projection's matrix is packed"),
        };
        let norm = self.row_norm.take();
        let count = self.row_count(x);
        let mut rest = projections;
        while let Some(first) = rest.first() {
            let is_first = rest.len() == projections.len();
            let format = packed(first).0.format;
            let mut n = 1;
            while n < rest.len()
                && packed(&rest[n]).0.format == format
                && packed(&rest[n - 1]).0.fills_panels()
            {
                n += 1;
            }
            let (group, others) = rest.split_at(n);
            rest = others;
            let cols = packed(first).0.cols;
            let rows: usize = group.iter().map(|projection| packed(projection).0.rows).sum();
            let matrix = PackedShape { format, rows, cols };
            let mut parts: Vec<&[u8]> = group.iter().map(|projection| packed(projection).1).collect();
            let panel_bytes: usize = parts.iter().map(|part| part.len()).sum();
            let biases = program.biases(group, matrix.rows);
            parts.extend(biases.as_deref().map(bytemuck::cast_slice));
            let slab = self.weights.upload(&parts)?;

            self.when = norm.as_ref().map_or(When::Always, |_| When::Several(count));
            let activations = self.activations(x, format, cols);
            // A router's few rows leave a GPU idle unless its columns are shared by many threads and workgroups.
            let is_router = format.geometry().is_none() && biases.is_none() && self.is_router(first);
            let n_parts = if is_router { cols.div_ceil(ROUTER_COLS).min(MAX_ROUTER_PARTS) } else { 1 };
            if self.is_router(first) {
                self.n_logit_parts = n_parts;
            }
            let out_bytes = 4 * self.max_rows(x) * rows * n_parts;
            // So that one row's later groups are computed beside the first.
            let is_beside = norm.is_some() && !is_first;
            let out = if is_beside { self.places.take_apart(out_bytes) } else { self.places.take(out_bytes) };
            let shape = Shape {
                kind: u32::from(biases.is_some()),
                bias: (panel_bytes / 4) as u32,
                ..int8::matrix_shape(&matrix)
            };
            let [activations, result] = [activations, out].map(|place| self.places.get(place));
            let parameters = bytemuck::bytes_of(&shape);
            let name = program.graph.tensor(first.out).name;
            let buffers = |tiles| {
                vec![
                    (Resource::Tiles, tiles),
                    (Resource::Weights, slab.clone()),
                    (Resource::X, activations.clone()),
                    (Resource::Result, result.clone()),
                ]
            };
            let gives = (name, panel_bytes);
            if is_router {
                let panels = Extent::Fixed(rows.div_ceil(ROWS) as u32);
                let in_order = InOrder::router(count);
                let grid = [panels, in_order.extent(), Extent::Fixed(n_parts as u32)];
                let buffers = buffers(self.tile_table(in_order));
                let constants = router_parts(&matrix, n_parts);
                self.push("router_logits", constants, parameters, buffers.clone(), grid)
                    .gives(name, panel_bytes);
                self.when = When::One(count);
                if let Some(norm) = &norm {
                    self.row_router(norm, (matrix, n_parts), &buffers, gives);
                }
            } else {
                let in_order = InOrder::few(count, 0);
                let few = self.tile_table(in_order);
                let panels = |of: usize| Extent::Fixed(rows.div_ceil(of * ROWS) as u32);
                let one_row = norm.as_ref().map(|norm| (norm, (matrix, shape), is_first));
                let has_matrix = format.geometry().is_some();
                let few_rows = if has_matrix { few_rows_of(rows, self.device) } else { MAX_ROWS as u32 };
                let product = Product { format, cols, rows: count, most_rows: ROWS, bytes: gives, few_rows };
                let grid = [panels(1), in_order.extent(), Extent::Fixed(1)];
                self.product(&product, (one_row.is_none(), shape), &buffers(few.clone()), grid);
                if let Some((norm, of_matrix, is_first)) = one_row {
                    self.when = When::One(count);
                    self.row_product(norm, of_matrix, is_first, &buffers(few), gives);
                }
                if has_matrix {
                    let in_order = InOrder::many(count);
                    let many = self.tile_table(in_order);
                    let grid = [panels(WIDE_PANELS), in_order.extent(), Extent::Fixed(1)];
                    self.matrix(&product, parameters, (buffers(many), None), grid);
                }
            }
            self.when = When::Always;
            let mut start = 0;
            for projection in group {
                self.places.share(out);
                self.views.insert(projection.out, View::Rows { place: out, start, stride: rows });
                start += packed(projection).0.rows;
            }
            self.places.release(out);
        }
        norm.into_iter().flat_map(|norm| norm.held).for_each(|place| self.places.release(place));
        Ok(())
    }

    /// Products of one row, unless another kernel has them, and of few.
    fn product(
        &mut self,
        product: &Product,
        (has_one, shape): (bool, Shape),
        buffers: &[(Resource, wgpu::Buffer)],
        grid: [Extent; 3],
    ) {
        let Product { format, cols, rows, most_rows, bytes: (of, bytes), few_rows } = *product;
        let cut = Cut::of(format, cols, most_rows, self.device.usual_threads());
        let few = int8::product(format, cut, self.device.info().software);
        let one = int8::of_one_row(few.clone(), shape.items);
        let has_matrix = few_rows < MAX_ROWS as u32;
        let variants = match (has_matrix, has_one) {
            (true, true) => vec![(When::One(rows), one), (When::Few(rows, few_rows), few)],
            (true, false) => vec![(When::Few(rows, few_rows), few)],
            (false, true) => vec![(When::Always, few)],
            (false, false) => vec![(When::Several(rows), few)],
        };
        for (when, constants) in variants {
            self.when = when;
            self.push("int8_product", constants, bytemuck::bytes_of(&shape), buffers.to_vec(), grid)
                .gives(of, bytes);
        }
        self.when = When::Always;
    }

    /// Products of many rows, with a list of pairs or of rows in order.
    fn matrix(
        &mut self,
        product: &Product,
        parameters: &[u8],
        (mut buffers, list): (Vec<(Resource, wgpu::Buffer)>, Option<wgpu::Buffer>),
        grid: [Extent; 3],
    ) {
        let constants = int8::matrix(product.format, list.is_none());
        let unused = self.places.take(0);
        buffers.push((Resource::Pairs, list.unwrap_or_else(|| self.places.get(unused))));
        self.when = When::Many(product.rows, product.few_rows);
        self.push("int8_matrix", constants, parameters, buffers, grid)
            .gives(product.bytes.0, product.bytes.1);
        self.when = When::Always;
        self.places.release(unused);
    }

    pub(super) fn is_router(&self, projection: &Projection) -> bool {
        let is_it = |op: &Op| matches!(op, Op::Route { logits, .. } if *logits == projection.out);
        self.ops.iter().any(is_it)
    }

    pub(super) fn mlp(&mut self, x: TensorId, gate: MatrixId, out: TensorId) -> Result<(), String> {
        let Prepared::Mlp { shape, panels } = &self.program.matrices[gate.0 as usize] else {
            unreachable!("an MLP's matrices are packed together");
        };
        let slab = self.weights.upload(&[panels])?;
        let activations = self.activations(x, shape.format.gate_up, shape.hidden);
        let count = self.row_count(x);
        let stride = row_stride(shape.format.gate_up.geometry(), shape.hidden);
        let (few, many) = (InOrder::few(count, stride as u32), InOrder::many(count));
        let pairs = Pairs {
            most: MAX_ROWS,
            n_chosen: 1,
            rows: count,
            in_order: few,
            few: (few.extent(), self.tile_table(few)),
            many: (many.extent(), self.tile_table(many)),
            list: None,
            gate_up: None,
        };
        let place = self.rows_of(out);
        self.expert_steps(*shape, slab, &pairs, [activations, place]);
        Ok(())
    }

    /// The steps of experts of `shape`: from activations to results. Says whether one row's results are their sum.
    pub(super) fn expert_steps(
        &mut self,
        shape: PackedExpertShape,
        slab: wgpu::Buffer,
        pairs: &Pairs,
        [x, y]: [PlaceId; 2],
    ) -> bool {
        let PackedExpertShape { hidden, inner, format } = shape;
        let n_pairs = pairs.most;
        let h_stride = row_stride(format.down.geometry(), inner);
        // The products of gate and up follow h.
        let h = self.places.take(4 * 3 * n_pairs * inner);
        let h_rows = self.places.take(4 * n_pairs * h_stride);
        let row_down = RowDown::of(&shape, pairs.n_chosen, self.device);

        self.expert_products(&shape, &slab, pairs, (Int8Step::GateUp, pairs.gate_up.is_some(), [x, h]));
        if let Some(gate_up) = &pairs.gate_up {
            self.row_gate_up(gate_up, (slab.clone(), pairs.few.1.clone()), pairs.rows, [x, h]);
        }

        let step = Int8Step::Rows;
        let expert = ExpertShape { hidden, inner, format };
        let parameters = step.shape(&expert, h_stride, (n_pairs * inner) as u64);
        let buffers = vec![
            (Resource::Tiles, self.tile_table(pairs.in_order)),
            (Resource::X, self.places.get(h)),
            (Resource::Result, self.places.get(h_rows)),
        ];
        let grid = [Extent::Fixed(step.workgroups(&expert)), pairs.in_order.extent(), Extent::Fixed(1)];
        self.when = row_down.as_ref().map_or(When::Always, |_| When::Several(pairs.rows));
        self.push("int8_rows", int8::rows(format.down), bytemuck::bytes_of(&parameters), buffers, grid)
            .gives("h, rounded", 0);
        self.when = When::Always;

        self.expert_products(&shape, &slab, pairs, (Int8Step::Down, row_down.is_some(), [h_rows, y]));
        if let Some(down) = &row_down {
            self.row_down(down, (slab, pairs.few.1.clone()), pairs.rows, [h, y]);
        }
        self.places.release(h);
        self.places.release(h_rows);
        row_down.is_some()
    }

    /// The products of one half of experts, but for one row if another kernel has it.
    fn expert_products(
        &mut self,
        packed: &PackedExpertShape,
        slab: &wgpu::Buffer,
        pairs: &Pairs,
        (step, has_own, [x, result]): (Int8Step, bool, [PlaceId; 2]),
    ) {
        let PackedExpertShape { hidden, inner, format } = *packed;
        let shape = ExpertShape { hidden, inner, format };
        let h_stride = row_stride(format.down.geometry(), inner);
        let parameters = step.shape(&shape, h_stride, (pairs.most * inner) as u64);
        let (format, cols, of, bytes) = match step {
            Int8Step::GateUp => (format.gate_up, hidden, "gate and up", packed.gate_up_bytes()),
            _ => (format.down, inner, "down", packed.bytes() - packed.gate_up_bytes()),
        };
        let bytes = (of, pairs.n_chosen * bytes);
        let few_rows = few_rows(packed.format);
        let product = Product { format, cols, rows: pairs.rows, most_rows: 2 * ROWS, bytes, few_rows };
        let [x, result] = [x, result].map(|place| self.places.get(place));
        let buffers = |tiles: &wgpu::Buffer| {
            vec![
                (Resource::Tiles, tiles.clone()),
                (Resource::Weights, slab.clone()),
                (Resource::X, x.clone()),
                (Resource::Result, result.clone()),
            ]
        };
        let workgroups = step.workgroups(&shape);
        let (extent, tiles) = &pairs.few;
        let grid = [Extent::Fixed(workgroups), *extent, Extent::Fixed(1)];
        self.product(&product, (!has_own, parameters), &buffers(tiles), grid);
        if few_rows < MAX_ROWS as u32 {
            let (extent, tiles) = &pairs.many;
            // A workgroup of the other kernel takes two panels.
            let grid = [Extent::Fixed(workgroups.div_ceil(2)), *extent, Extent::Fixed(1)];
            let with_list = (buffers(tiles), pairs.list.clone());
            self.matrix(&product, bytemuck::bytes_of(&parameters), with_list, grid);
        }
    }
}
