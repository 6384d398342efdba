//! The structs of `shader/shared/tiles.wgsl`, `shape.wgsl` and `run.wgsl`, as they lie in buffers; the build script compares the two.

use bytemuck::{Pod, Zeroable};

/// Pairs of a tile: each weight that is read serves all of them.
pub(super) const TILE_PAIRS: usize = 4;

/// `Tile` in `shader/shared/tiles.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub(super) struct Tile {
    /// Where the expert's block starts in its slab, in 16 bytes.
    pub(super) block: u32,
    /// 1 to 4; 0 where there is none, for kernels of one pair.
    pub(super) n_pairs: u32,
    /// The first pair's row in h and y.
    pub(super) first_pair: u32,
    /// Where in the packed answer the products start, for kernels of one pair, which then put rows and products there in f16;
    /// 0: they put them where the others do, in f32.
    pub(super) packed: u32,
    /// Where each pair's row of x starts, in 16 bytes, or in words of int8 activations.
    pub(super) rows: [u32; TILE_PAIRS],
    /// The router's gates.
    pub(super) gates: [f32; TILE_PAIRS],
}

/// `Shape` in `shader/shared/shape.wgsl`, where the fields are documented.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub(super) struct Shape {
    pub(super) kind: u32,
    pub(super) is_down: u32,
    pub(super) out: u32,
    pub(super) items: u32,
    pub(super) x_stride: u32,
    pub(super) result_stride: u32,
    pub(super) products: u32,
    pub(super) weight_stride: u32,
    pub(super) weights: u32,
    pub(super) scales: u32,
    pub(super) up: u32,
    pub(super) up_scales: u32,
    pub(super) bias: u32,
    pub(super) up_bias: u32,
}

/// `Run` in `shader/shared/run.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub(super) struct Run {
    /// The tile of the dispatch's first workgroup.
    pub(super) first_tile: u32,
    /// Always 0, which no shader compiler knows.
    pub(super) zero: u32,
}
