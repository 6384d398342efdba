//! Norms of steps of one row, which the products behind them take themselves: each workgroup finds the sum and its squares anew,
//! in less time than it takes to wait for another dispatch.

use super::{compile::Builder, one_row::When, places::PlaceId, structs::Norm, tiles::Extent};
use crate::{
    engine::gpu::{
        int8,
        shaders::{Constants, Resource},
    },
    graph::{Op, Prepared, RowCount, TensorId},
    simd::{PackedShape, ROWS},
};

/// A norm for the products behind it.
pub(super) struct RowNorm {
    pub(super) norm: Norm,
    /// Those of rounding, with COLUMNS and HAS_ADDEND.
    pub(super) constants: Constants,
    /// What `shader/norm_rows.wgsl` binds.
    pub(super) buffers: Vec<(Resource, wgpu::Buffer)>,
    /// What has one user more until the products are there.
    pub(super) held: Vec<PlaceId>,
}

impl RowNorm {
    fn buffer(&self, of: Resource) -> wgpu::Buffer {
        let found = self.buffers.iter().find(|(resource, _)| *resource == of);
        found.expect("a norm binds them all").1.clone()
    }
}

impl Builder<'_> {
    /// Whether what follows operation `index` takes the norm `out` of one row itself: a router of floats.
    pub(super) fn takes_norm(&self, index: usize, out: TensorId) -> bool {
        let Some(Op::Linear { x, projection }) = self.program.ops().get(index + 1) else { return false };
        let matrix = &self.program.matrices[projection.matrix.0 as usize];
        let is_float = matches!(matrix, Prepared::Packed { shape, .. } if shape.format.geometry().is_none());
        *x == out && is_float && projection.bias.is_none() && self.is_router(projection)
    }

    /// A router's logits of one row, by a matrix whose columns so many parts share, and the norm before.
    pub(super) fn row_router(
        &mut self,
        norm: RowNorm,
        (matrix, n_parts): (PackedShape, usize),
        count: RowCount,
        of_router: &[(Resource, wgpu::Buffer)],
        (of, bytes): (&'static str, usize),
    ) {
        let mut constants = norm.constants.clone();
        let numbers = [
            ("N_EXPERTS", matrix.rows),
            ("PANEL_WORDS", matrix.panel_bytes() / 4),
            ("PART", matrix.cols.div_ceil(n_parts)),
        ];
        constants.extend(numbers.map(|(name, value)| (name, value as f64)));
        constants.extend(int8::router(matrix.format));
        let mut buffers = vec![(Resource::Gains, norm.buffer(Resource::Weights))];
        let of_norm = [Resource::X, Resource::Y, Resource::Normed, Resource::Sum, Resource::Result];
        buffers.extend(of_norm.map(|resource| (resource, norm.buffer(resource))));
        let as_named = |resource: &Resource| match resource {
            Resource::Weights => Some(Resource::Weights),
            Resource::Result => Some(Resource::Logits),
            _ => None,
        };
        buffers.extend(of_router.iter().filter_map(|(of, buffer)| Some((as_named(of)?, buffer.clone()))));
        let panels = Extent::Fixed(matrix.rows.div_ceil(ROWS) as u32);
        let grid = [panels, Extent::Fixed(1), Extent::Fixed(n_parts as u32)];
        self.when = When::One(count);
        self.push("row_router", constants, bytemuck::bytes_of(&norm.norm), buffers, grid).gives(of, bytes);
        self.when = When::Always;
        norm.held.into_iter().for_each(|place| self.places.release(place));
    }
}
