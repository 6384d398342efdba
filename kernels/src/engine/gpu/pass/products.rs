//! The operations that are products with matrices: projections, MLPs, experts.

use super::{
    compile::{Builder, MAX_ROWS, View},
    one_row::{RowDown, RowGateUp, When},
    places::PlaceId,
    tiles::Extent,
};
use crate::{
    ExpertShape,
    engine::gpu::{
        int8::{self, Cut, Int8Step},
        shaders::Resource,
        structs::Shape,
    },
    graph::{MatrixId, Op, Prepared, Projection, TensorId},
    quant::row_stride,
    simd::{PackedExpertShape, PackedShape, ROWS},
};

/// Columns of a router's part, and the most parts.
const ROUTER_COLS: usize = 64;
const MAX_ROUTER_PARTS: usize = 16;

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
        let when = norm.as_ref().map_or(When::Always, |_| When::Several(count));
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

            self.when = when;
            let activations = self.activations(x, format, cols);
            // A router's few rows leave a GPU idle unless its columns are shared by many threads and workgroups.
            let is_router = format.geometry().is_none() && biases.is_none() && self.is_router(first);
            let n_parts = if is_router { cols.div_ceil(ROUTER_COLS).min(MAX_ROUTER_PARTS) } else { 1 };
            if self.is_router(first) {
                self.n_logit_parts = n_parts;
            }
            let out = self.places.take(4 * MAX_ROWS * rows * n_parts);
            let shape = Shape {
                kind: u32::from(biases.is_some()),
                bias: (panel_bytes / 4) as u32,
                ..int8::matrix_shape(&matrix)
            };
            let tiles = self.tile_table(count, 0);
            let [activations, result] = [activations, out].map(|place| self.places.get(place));
            let (shader, constants, grid) = match is_router {
                true => {
                    let panels = Extent::Fixed(rows.div_ceil(ROWS) as u32);
                    let parts = Extent::Fixed(n_parts as u32);
                    ("router_logits", int8::router(format), [panels, Extent::Rows(count), parts])
                }
                false => {
                    let cut = Cut::of(format, cols, ROWS, self.max_threads());
                    let panels = Extent::Fixed(rows.div_ceil(cut.rows) as u32);
                    let constants = int8::product(format, cut, self.device.info().software);
                    ("int8_product", constants, [panels, Extent::Tiles(count), Extent::Fixed(1)])
                }
            };
            let buffers = vec![
                (Resource::Tiles, tiles),
                (Resource::Weights, slab),
                (Resource::X, activations),
                (Resource::Result, result),
            ];
            let gives = (program.graph.tensor(first.out).name, panel_bytes);
            self.push(shader, constants, bytemuck::bytes_of(&shape), buffers.clone(), grid)
                .gives(gives.0, gives.1);
            self.when = When::One(count);
            match &norm {
                Some(norm) if is_router => self.row_router(norm, (matrix, n_parts), &buffers, gives),
                Some(norm) => self.row_product(norm, (matrix, shape), is_first, &buffers, gives),
                None => {}
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

    /// The most threads of a workgroup.
    pub(super) fn max_threads(&self) -> usize {
        self.device.wgpu().limits().max_compute_invocations_per_workgroup as usize
    }

    pub(super) fn is_router(&self, projection: &Projection) -> bool {
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
        let tiles = self.tile_table(count, stride as u32);
        let place = self.rows_of(out);
        self.expert_steps(
            (*shape, None),
            (slab, tiles),
            (Extent::Tiles(count), 1),
            MAX_ROWS,
            [activations, place],
        );
        Ok(())
    }

    /// The three steps of experts of a shape, with another of gate and up for one row or none, for up to `n_pairs` pairs, `n_chosen` of each row: from activations to results. Says
    /// whether one row's results are their sum.
    pub(super) fn expert_steps(
        &mut self,
        (shape, gate_up): (PackedExpertShape, Option<&RowGateUp>),
        (slab, tiles): (wgpu::Buffer, wgpu::Buffer),
        (extent, n_chosen): (Extent, usize),
        n_pairs: usize,
        [x, y]: [PlaceId; 2],
    ) -> bool {
        let packed = shape;
        let PackedExpertShape { hidden, inner, format } = packed;
        let shape = ExpertShape { hidden, inner, format };
        let h_stride = row_stride(format.down.geometry(), inner);
        // The products of gate and up follow h.
        let h = self.places.take(4 * 3 * n_pairs * inner);
        let h_rows = self.places.take(4 * n_pairs * h_stride);
        let row_down = RowDown::of(&packed, n_chosen, self.device);
        for step in Int8Step::ALL {
            let has_own = if step == Int8Step::GateUp { gate_up.is_some() } else { row_down.is_some() };
            self.when = if has_own { When::Several(extent.rows()) } else { When::Always };
            let (shader, [from, to]) = match step {
                Int8Step::GateUp => ("int8_product", [x, h]),
                Int8Step::Rows => ("int8_rows", [h, h_rows]),
                Int8Step::Down => ("int8_product", [h_rows, y]),
            };
            let parameters = step.shape(&shape, h_stride, (n_pairs * inner) as u64);
            let [from, to] = [from, to].map(|place| self.places.get(place));
            let buffers = vec![
                (Resource::Tiles, tiles.clone()),
                (Resource::Weights, slab.clone()),
                (Resource::X, from),
                (Resource::Result, to),
            ];
            let (format, cols) = match step {
                Int8Step::GateUp => (format.gate_up, hidden),
                Int8Step::Rows | Int8Step::Down => (format.down, inner),
            };
            let cut = Cut::of(format, cols, 2 * ROWS, self.max_threads());
            let constants = step.constants(&shape, cut, self.device.info().software);
            let grid = [Extent::Fixed(step.workgroups(&shape)), extent, Extent::Fixed(1)];
            let (gives, bytes) = match step {
                Int8Step::GateUp => ("gate and up", packed.gate_up_bytes()),
                Int8Step::Rows => ("h, rounded", 0),
                Int8Step::Down => ("down", packed.bytes() - packed.gate_up_bytes()),
            };
            self.push(shader, constants, bytemuck::bytes_of(&parameters), buffers, grid)
                .gives(gives, n_chosen * bytes);
            if let (Int8Step::GateUp, Some(gate_up)) = (step, gate_up) {
                self.row_gate_up(gate_up, (slab.clone(), tiles.clone()), extent.rows(), [x, h]);
            }
        }
        self.when = When::Always;
        if let Some(down) = &row_down {
            self.row_down(down, (slab, tiles), extent.rows(), [h, y]);
        }
        self.places.release(h);
        self.places.release(h_rows);
        row_down.is_some()
    }
}
