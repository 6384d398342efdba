//! Kernels of experts with int8 activations for messages of one row: where every tile of a dispatch has one pair, all loads of a
//! row of weights are under way together. They give the same bits.

#[cfg(test)]
mod tests;

use super::{
    Kernels,
    device::GpuDevice,
    int8::{self, Cut, Int8Step},
    layout::{Layout, Tables, TilesOf},
    pipeline::Pipeline,
    shaders::Constants,
    structs::Tile,
};
use crate::{ExpertShape, WeightFormat, simd::ROWS};

/// How the tiles of one dispatch are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By the kernels for all tiles.
    Few,
    /// Each has one pair.
    One,
}

/// The steps of experts of one shape, each with its workgroups in x.
#[derive(Debug)]
pub(super) struct Variants {
    one: Vec<(Pipeline, u32)>,
}

/// Which of its variants a step is compiled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    /// For tiles of one pair.
    One,
}

impl Variants {
    /// Those of experts of `shape`, if its formats are integers; `step` makes one, with its workgroups.
    pub(super) fn new(
        shape: &ExpertShape,
        step: impl Fn(Int8Step, Variant) -> (Pipeline, u32),
    ) -> Option<Self> {
        let is_integer = |format: WeightFormat| format.geometry().is_some();
        let has_them = is_integer(shape.format.gate_up) && is_integer(shape.format.down);
        let steps = |variant| Int8Step::ALL.map(|of| step(of, variant)).into();
        has_them.then(|| Self { one: steps(Variant::One) })
    }
}

impl Kernels {
    /// A step's kernel for a dispatch, with its workgroups in x and in y; none where it is that for all tiles.
    pub(super) fn variant(&self, step: usize, dispatch: &TilesOf) -> Option<(&Pipeline, &u32, u32)> {
        let variants = self.variants.as_ref()?;
        let (steps, n_tiles) = match dispatch.way {
            Way::Few => return None,
            Way::One => (&variants.one, dispatch.n_tiles),
        };
        let (pipeline, workgroups) = &steps[step];
        Some((pipeline, workgroups, n_tiles))
    }
}

impl Int8Step {
    /// The shader and the constants of a variant for experts of `shape`, and its workgroups in x; none where it has none.
    pub(super) fn variant(
        self,
        variant: Variant,
        shape: &ExpertShape,
        device: &GpuDevice,
    ) -> Option<(&'static str, Constants, u32)> {
        let is_software = device.info().software;
        let (format, cols) = match self {
            Self::GateUp => (shape.format.gate_up, shape.hidden),
            Self::Rows => return None,
            Self::Down => (shape.format.down, shape.inner),
        };
        Some(match variant {
            Variant::One => {
                let most = device.wgpu().limits().max_compute_invocations_per_workgroup as usize;
                let constants = self.constants(shape, Cut::of(format, cols, 2 * ROWS, most), is_software);
                let items = self.shape(shape, 0, 0).items;
                ("int8_product", int8::of_one_row(constants, items), self.workgroups(shape))
            }
        })
    }
}

/// Chooses the way of each dispatch of a message, where there are variants for its shape of experts.
pub(super) fn choose(layout: &Layout, mut tables: Tables, has_variants: impl Fn(u32) -> bool) -> Tables {
    let mut rest = &tables.bytes[layout.tiles_start() as usize..];
    for dispatch in &mut tables.dispatches {
        let (tiles, others) = rest.split_at(dispatch.n_tiles as usize * size_of::<Tile>());
        rest = others;
        let mut tiles = tiles.chunks_exact(size_of::<Tile>()).map(bytemuck::pod_read_unaligned::<Tile>);
        if has_variants(dispatch.shape) && tiles.all(|tile| tile.n_pairs == 1) {
            dispatch.way = Way::One;
        }
    }
    tables
}
