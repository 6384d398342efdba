//! The operations that are products with matrices: projections, MLPs, experts.

use super::{
    compile::{Builder, MAX_ROWS, View},
    places::PlaceId,
    tiles::{Extent, FEW_ROWS, InOrder, When},
};
use crate::{
    ExpertFormat, ExpertShape, WeightFormat,
    engine::gpu::{
        int8::{self, Cut, Int8Step},
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

/// Panels of a workgroup of `int8_matrix`.
const MATRIX_PANELS: usize = 4;

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
}

/// The most rows of a step whose experts of these formats have small tiles: there are wide ones for integers alone.
pub(super) fn few_rows(formats: ExpertFormat) -> u32 {
    let is_integer = |format: WeightFormat| format.geometry().is_some();
    if is_integer(formats.gate_up) && is_integer(formats.down) { FEW_ROWS } else { MAX_ROWS as u32 }
}

/// The variants of a product for one row and for few; for any number where there is none for many.
fn one_and_few(
    rows: RowCount,
    has_matrix: bool,
    constants: Constants,
    items: u32,
) -> impl Iterator<Item = (When, Constants)> {
    let one = has_matrix.then(|| (When::One(rows), int8::of_one_row(constants.clone(), items)));
    let others = if has_matrix { When::Few(rows) } else { When::Always };
    one.into_iter().chain([(others, constants)])
}

impl Builder<'_> {
    /// Multiplies `x` by matrices: those of one format, one after another, as one.
    pub(super) fn linears(&mut self, x: TensorId, projections: &[Projection]) -> Result<(), String> {
        let program = self.program;
        let packed = |projection: &Projection| match &program.matrices[projection.matrix.0 as usize] {
            Prepared::Packed { shape, panels } => (*shape, &panels[..]),
            _ => unreachable!("a projection's matrix is packed"),
        };
        let mut rest = projections;
        while let Some(first) = rest.first() {
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

            let activations = self.activations(x, format, cols);
            let count = self.row_count(x);
            // A router's few rows leave a GPU idle unless its columns are shared by many threads and workgroups.
            let is_router = format.geometry().is_none() && biases.is_none() && self.is_router(first);
            let n_parts = if is_router { cols.div_ceil(ROUTER_COLS).min(MAX_ROUTER_PARTS) } else { 1 };
            if self.is_router(first) {
                self.n_logit_parts = n_parts;
            }
            let out = self.places.take(4 * self.max_rows(x) * rows * n_parts);
            let shape = Shape {
                kind: u32::from(biases.is_some()),
                bias: (panel_bytes / 4) as u32,
                ..int8::matrix_shape(&matrix)
            };
            let [activations, result] = [activations, out].map(|place| self.places.get(place));
            let parameters = bytemuck::bytes_of(&shape);
            let in_order = InOrder::few(count, 0);
            let name = program.graph.tensor(first.out).name;
            let few = self.tile_table(in_order);
            let buffers = |tiles| {
                vec![
                    (Resource::Tiles, tiles),
                    (Resource::Weights, slab.clone()),
                    (Resource::X, activations.clone()),
                    (Resource::Result, result.clone()),
                ]
            };
            if is_router {
                let panels = Extent::Fixed(rows.div_ceil(ROWS) as u32);
                let grid = [panels, Extent::Rows(count), Extent::Fixed(n_parts as u32)];
                self.push("router_logits", int8::router(format), parameters, buffers(few), grid)
                    .gives(name, panel_bytes);
            } else {
                let cut = Cut::of(format, cols, ROWS, self.max_threads());
                let panels = Extent::Fixed(rows.div_ceil(cut.rows) as u32);
                let constants = int8::product(format, cut, self.device.info().software);
                let grid = [panels, in_order.extent(), Extent::Fixed(1)];
                let has_matrix = format.geometry().is_some();
                for (when, constants) in one_and_few(count, has_matrix, constants, shape.items) {
                    self.push("int8_product", constants, parameters, buffers(few.clone()), grid)
                        .gives(name, panel_bytes)
                        .only(when);
                }
                if has_matrix {
                    let in_order = InOrder::many(count);
                    let many = self.tile_table(in_order);
                    let unused = self.places.take(0);
                    let mut buffers = buffers(many);
                    buffers.push((Resource::Pairs, self.places.get(unused)));
                    self.places.release(unused);
                    let panels = Extent::Fixed(rows.div_ceil(MATRIX_PANELS * ROWS) as u32);
                    let grid = [panels, in_order.extent(), Extent::Fixed(1)];
                    self.push("int8_matrix", int8::matrix(format, true), parameters, buffers, grid)
                        .gives(name, panel_bytes)
                        .only(When::Many(count));
                }
            }
            let mut start = 0;
            for projection in group {
                self.places.share(out);
                self.views.insert(projection.out, View::Rows { place: out, start, stride: rows });
                start += packed(projection).0.rows;
            }
            self.places.release(out);
        }
        Ok(())
    }

    /// The most threads of a workgroup.
    pub(super) fn max_threads(&self) -> usize {
        self.device.wgpu().limits().max_compute_invocations_per_workgroup as usize
    }

    fn is_router(&self, projection: &Projection) -> bool {
        let is_it = |op: &Op| matches!(op, Op::Route { logits, .. } if *logits == projection.out);
        self.program.ops().iter().any(is_it)
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
        };
        let place = self.rows_of(out);
        self.expert_steps(*shape, slab, &pairs, [activations, place]);
        Ok(())
    }

    /// The steps of experts of `shape`: from activations to results.
    pub(super) fn expert_steps(
        &mut self,
        shape: PackedExpertShape,
        slab: wgpu::Buffer,
        pairs: &Pairs,
        [x, y]: [PlaceId; 2],
    ) {
        let PackedExpertShape { hidden, inner, format } = shape;
        let n_pairs = pairs.most;
        let h_stride = row_stride(format.down.geometry(), inner);
        // The products of gate and up follow h.
        let h = self.places.take(4 * 3 * n_pairs * inner);
        let h_rows = self.places.take(4 * n_pairs * h_stride);
        let [x, y, h_floats, h_ints] = [x, y, h, h_rows].map(|place| self.places.get(place));
        let gate_up = (Int8Step::GateUp, format.gate_up, hidden, [x, h_floats.clone()]);
        let down = (Int8Step::Down, format.down, inner, [h_ints.clone(), y]);
        self.expert_products(&shape, &slab, pairs, (h_stride, gate_up));

        let step = Int8Step::Rows;
        let expert = ExpertShape { hidden, inner, format };
        let parameters = step.shape(&expert, h_stride, (n_pairs * inner) as u64);
        let buffers = vec![
            (Resource::Tiles, self.tile_table(pairs.in_order)),
            (Resource::X, h_floats),
            (Resource::Result, h_ints),
        ];
        let grid = [Extent::Fixed(step.workgroups(&expert)), pairs.in_order.extent(), Extent::Fixed(1)];
        let constants = int8::rows(format.down);
        self.push("int8_rows", constants, bytemuck::bytes_of(&parameters), buffers, grid)
            .gives("h, rounded", 0);

        self.expert_products(&shape, &slab, pairs, (h_stride, down));
        self.places.release(h);
        self.places.release(h_rows);
    }

    /// The products of one half of experts, for few rows and for many.
    fn expert_products(
        &mut self,
        packed: &PackedExpertShape,
        slab: &wgpu::Buffer,
        pairs: &Pairs,
        (h_stride, (step, format, cols, [from, to])): (
            usize,
            (Int8Step, WeightFormat, usize, [wgpu::Buffer; 2]),
        ),
    ) {
        let PackedExpertShape { hidden, inner, format: formats } = *packed;
        let shape = ExpertShape { hidden, inner, format: formats };
        let parameters = step.shape(&shape, h_stride, (pairs.most * inner) as u64);
        let items = parameters.items;
        let parameters = bytemuck::bytes_of(&parameters);
        let (of, bytes) = match step {
            Int8Step::GateUp => ("gate and up", packed.gate_up_bytes()),
            _ => ("down", packed.bytes() - packed.gate_up_bytes()),
        };
        let buffers = |tiles: &wgpu::Buffer| {
            vec![
                (Resource::Tiles, tiles.clone()),
                (Resource::Weights, slab.clone()),
                (Resource::X, from.clone()),
                (Resource::Result, to.clone()),
            ]
        };
        let has_matrix = few_rows(formats) < MAX_ROWS as u32;
        let cut = Cut::of(format, cols, 2 * ROWS, self.max_threads());
        let constants = step.constants(&shape, cut, self.device.info().software);
        let workgroups = step.workgroups(&shape);
        let (extent, tiles) = &pairs.few;
        let grid = [Extent::Fixed(workgroups), *extent, Extent::Fixed(1)];
        for (when, constants) in one_and_few(pairs.rows, has_matrix, constants, items) {
            self.push("int8_product", constants, parameters, buffers(tiles), grid)
                .gives(of, pairs.n_chosen * bytes)
                .only(when);
        }
        if !has_matrix {
            return;
        }
        let (extent, tiles) = &pairs.many;
        let mut buffers = buffers(tiles);
        let list = pairs.list.clone().unwrap_or_else(|| {
            let unused = self.places.take(0);
            self.places.release(unused);
            self.places.get(unused)
        });
        buffers.push((Resource::Pairs, list));
        // A workgroup of the other kernel takes two panels.
        let grid = [Extent::Fixed(workgroups.div_ceil(2)), *extent, Extent::Fixed(1)];
        self.push("int8_matrix", int8::matrix(format, pairs.list.is_none()), parameters, buffers, grid)
            .gives(of, pairs.n_chosen * bytes)
            .only(When::Many(pairs.rows));
    }
}
