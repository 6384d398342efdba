//! Norms of steps of one row, which the products behind them take themselves: each workgroup finds the sum and its squares anew,
//! in less time than it takes to wait for another dispatch.

use super::{
    compile::Builder, one_row::lines, places::PlaceId, products::router_parts, structs::Norm, tiles::Extent,
};
use crate::{
    engine::gpu::{
        device::GpuDevice,
        int8::{self, lanes},
        shaders::{Constants, Resource},
        structs::Shape,
    },
    graph::{Op, Prepared, Projection, TensorId},
    quant::block_words,
    simd::{PackedShape, ROWS},
};

/// A norm for the products behind it.
pub(super) struct RowNorm {
    pub(super) norm: Norm,
    /// Whether something is added to the row.
    pub(super) has_addend: bool,
    /// Those of rounding, with QUADS.
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

/// Words of a workgroup that a norm's squares take: `shader/shared/norm_scale.wgsl`.
const NORM_WORDS: usize = 256 + 16;

/// The most workgroups of products that take a norm themselves: where there are more, not all of them run beside each other.
const MOST_WORKGROUPS: usize = 1024;

/// Units of a row of activations for `matrix`, threads of a workgroup, and products of a row.
fn cut(matrix: &PackedShape, device: &GpuDevice) -> [usize; 3] {
    let items = int8::matrix_shape(matrix).items as usize;
    [items, ROWS * lanes(items, device.usual_threads() / ROWS), int8::row_products(matrix.format, items)]
}

impl Builder<'_> {
    /// Whether what follows operation `index` takes the norm `out` of one row itself: a router of floats, or products of integers,
    /// if nothing else reads it.
    pub(super) fn takes_norm(&self, index: usize, out: TensorId) -> bool {
        let mut rest = self.ops_after(index);
        let Some(next) = rest.next() else { return false };
        if !matches!(next, Op::Linear { x, .. } | Op::Linears { x, .. } if *x == out) {
            return false;
        }
        let matrix_of = |projection: &Projection| match &self.program.matrices[projection.matrix.0 as usize] {
            Prepared::Packed { shape, .. } => Some(*shape),
            _ => None,
        };
        if let [router] = next.projections()
            && self.is_router(router)
        {
            let is_float = |matrix: PackedShape| matrix.format.geometry().is_none();
            return router.bias.is_none() && matrix_of(router).is_some_and(is_float);
        }
        let mut is_read = false;
        rest.for_each(|op| op.tensors(|id| is_read |= id == out));
        let fits = |matrix: PackedShape| match matrix.format.geometry() {
            Some(geometry) => {
                let [items, _, capacity] = cut(&matrix, self.device);
                let blocks = items / geometry.n_units() * (block_words(geometry) + geometry.n_groups());
                ROWS * capacity + blocks + NORM_WORDS <= self.device.workgroup_words()
                    && matrix.cols.is_multiple_of(4)
            }
            None => false,
        };
        let matrices = next.projections().iter().map(matrix_of);
        let n_rows: usize = matrices.clone().map(|matrix| matrix.map_or(0, |matrix| matrix.rows)).sum();
        !is_read
            && n_rows.div_ceil(ROWS) <= MOST_WORKGROUPS
            && matrices.into_iter().all(|matrix| matrix.is_some_and(fits))
    }

    /// What products of one row that take a norm themselves bind: what the norm does, and what products bind of weights.
    fn with_norm(
        &self,
        norm: &RowNorm,
        names: &[(Resource, Resource)],
        of_products: &[(Resource, wgpu::Buffer)],
    ) -> Vec<(Resource, wgpu::Buffer)> {
        let of_norm = names.iter().map(|(of_norm, here)| (*here, norm.buffer(*of_norm)));
        let of_products = of_products.iter().filter(|(of, _)| *of == Resource::Weights).cloned();
        of_norm.chain(of_products).collect()
    }

    /// A router's logits of one row, by a matrix whose columns so many parts share, and the norm before.
    pub(super) fn row_router(
        &mut self,
        norm: &RowNorm,
        (matrix, n_parts): (PackedShape, usize),
        of_router: &[(Resource, wgpu::Buffer)],
        (of, bytes): (&'static str, usize),
    ) {
        let mut constants = norm.constants.clone();
        let numbers = [
            ("HAS_ADDEND", usize::from(norm.has_addend)),
            ("N_EXPERTS", matrix.rows),
            ("PANEL_WORDS", matrix.panel_bytes() / 4),
        ];
        constants.extend(numbers.map(|(name, value)| (name, value as f64)));
        constants.extend(router_parts(&matrix, n_parts));
        let of_norm = [Resource::X, Resource::Y, Resource::Normed, Resource::Sum, Resource::Result];
        let names = [&of_norm.map(|of| (of, of))[..], &[(Resource::Weights, Resource::Gains)]].concat();
        let logits = of_router.iter().find(|(of, _)| *of == Resource::Result).expect("a router gives them");
        let mut buffers = self.with_norm(norm, &names, of_router);
        buffers.push((Resource::Logits, logits.1.clone()));
        let panels = Extent::Fixed(matrix.rows.div_ceil(ROWS) as u32);
        let grid = [panels, Extent::Fixed(1), Extent::Fixed(n_parts as u32)];
        self.push("row_router", constants, bytemuck::bytes_of(&norm.norm), buffers, grid).gives(of, bytes);
    }

    /// Products of one row with a matrix of integers, and the norm before; the first of them give the sum.
    pub(super) fn row_product(
        &mut self,
        norm: &RowNorm,
        (matrix, shape): (PackedShape, Shape),
        is_first: bool,
        of_products: &[(Resource, wgpu::Buffer)],
        (of, bytes): (&'static str, usize),
    ) {
        let [items, threads, capacity] = cut(&matrix, self.device);
        let geometry = matrix.format.geometry().expect("only integers take norms");
        let gives_sum = norm.has_addend && is_first;
        let mut constants = int8::row_product(matrix.format, [ROWS, threads, capacity]);
        let numbers = [
            ("ZERO", geometry.zero.map_or(0, usize::from)),
            ("N_BLOCKS", items / geometry.n_units()),
            ("HAS_ADDEND", usize::from(norm.has_addend)),
            ("GIVES_SUM", usize::from(gives_sum)),
            ("QUADS", matrix.cols / 4),
            ("ITEMS", items),
            ("LINES", lines(&matrix)),
        ];
        constants.extend(numbers.map(|(name, value)| (name, value as f64)));
        constants.push(("EPS", f64::from(norm.norm.eps)));
        let names =
            [(Resource::X, Resource::Rows), (Resource::Y, Resource::Y), (Resource::Weights, Resource::Gains)];
        let result = of_products.iter().find(|(of, _)| *of == Resource::Result).expect("products are there");
        let mut buffers = self.with_norm(norm, &names, of_products);
        buffers.push(result.clone());
        let sum = if gives_sum {
            norm.buffer(Resource::Sum)
        } else {
            let unwritten = self.places.take_apart(0);
            self.places.get(unwritten)
        };
        buffers.push((Resource::Sum, sum));
        let grid = [Extent::Fixed(matrix.rows.div_ceil(ROWS) as u32), Extent::Fixed(1), Extent::Fixed(1)];
        self.push("row_product", constants, bytemuck::bytes_of(&shape), buffers, grid).gives(of, bytes);
    }
}
