//! Kernels of experts with int8 activations for messages of one row, and for those of many pairs for each expert.
//!
//! Where every tile of a dispatch has one pair, all loads of a row of weights are under way together. Where experts have many
//! pairs, wide tiles read their weights once for up to [`WIDE_TILE`] pairs, not once for four. All give the same
//! bits.

#[cfg(test)]
mod tests;

use bytemuck::Zeroable;

use super::{
    Kernels,
    device::GpuDevice,
    int8::{self, Cut, Int8Step, WIDE_TILE},
    layout::{Layout, Tables, TilesOf},
    pipeline::Pipeline,
    shaders::Constants,
    structs::Tile,
};
use crate::{ExpertShape, WeightFormat, simd::ROWS};

/// Tiles that a wide one must replace in the mean. A workgroup of wide tiles takes twice the panels, so that fewer run beside
/// each other.
const REPLACED: u32 = 2;

/// The entry point of kernels with wide tiles.
pub(super) const MATRIX: &str = "int8_matrix";

/// How the tiles of one dispatch are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By the kernels for all tiles.
    Few,
    /// Each has one pair.
    One,
    /// They are replaced by so many wide ones.
    Wide(u32),
}

/// The contents of the tables that a message's wide tiles need; empty if it has none.
#[derive(Debug, Default)]
pub(super) struct Wide {
    /// Those of a dispatch begin where its other tiles do, so that both have the same run.
    pub(super) tiles: Vec<Tile>,
    /// (P): where each pair's row of x starts, in words, and the bits of its gate.
    pub(super) pairs: Vec<[u32; 2]>,
}

/// The steps of experts of one shape, each with its workgroups in x.
#[derive(Debug)]
pub(super) struct Variants {
    one: Vec<(Pipeline, u32)>,
    wide: Vec<(Pipeline, u32)>,
}

/// Which of its variants a step is compiled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    /// For tiles of one pair.
    One,
    /// For wide tiles.
    Wide,
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
        has_them.then(|| Self { one: steps(Variant::One), wide: steps(Variant::Wide) })
    }
}

impl Kernels {
    /// A step's kernel for a dispatch, with its workgroups in x and in y; none where it is that for all tiles.
    pub(super) fn variant(&self, step: usize, dispatch: &TilesOf) -> Option<(&Pipeline, &u32, u32)> {
        let variants = self.variants.as_ref()?;
        let (steps, n_tiles) = match dispatch.way {
            Way::Few => return None,
            Way::One => (&variants.one, dispatch.n_tiles),
            // Between the products rows are rounded in tiles of four pairs.
            Way::Wide(_) if step == Int8Step::Rows as usize => return None,
            Way::Wide(n_tiles) => (&variants.wide, n_tiles),
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
                let cut = Cut::of(format, cols, 2 * ROWS, device.usual_threads());
                let constants = self.constants(shape, cut, is_software);
                let items = self.shape(shape, 0, 0).items;
                ("int8_product", int8::of_one_row(constants, items), self.workgroups(shape))
            }
            Variant::Wide => {
                let constants = [int8::matrix(format, false), vec![("KEEPS_PRODUCTS", 1.0)]].concat();
                // A workgroup of the other kernel takes two panels, of this four.
                (MATRIX, constants, self.workgroups(shape).div_ceil(2))
            }
        })
    }
}

impl Wide {
    /// Chooses the way of each dispatch of a message, where there are variants for its shape of experts.
    pub(super) fn of(layout: &Layout, tables: &mut Tables, has_variants: impl Fn(u32) -> bool) -> Self {
        let mut rest = &tables.bytes[layout.tiles_start() as usize..];
        let mut wide = Self::default();
        let mut first = 0;
        for dispatch in &mut tables.dispatches {
            let (tiles, others) = rest.split_at(dispatch.n_tiles as usize * size_of::<Tile>());
            rest = others;
            let tiles = tiles.chunks_exact(size_of::<Tile>()).map(bytemuck::pod_read_unaligned::<Tile>);
            if has_variants(dispatch.shape) {
                dispatch.way = match tiles.clone().all(|tile| tile.n_pairs == 1) {
                    true => Way::One,
                    false => wide.way(first, dispatch.n_tiles, tiles),
                };
            }
            first += dispatch.n_tiles as usize;
        }
        wide
    }

    /// The way of several pairs' tiles, the first of which is number `first` of the message. Keeps wide ones if they pay.
    fn way(&mut self, first: usize, n_tiles: u32, tiles: impl Iterator<Item = Tile> + Clone) -> Way {
        let mut wide: Vec<Tile> = Vec::new();
        for tile in tiles.clone() {
            match wide.last_mut() {
                Some(last)
                    if last.block == tile.block
                        && last.first_pair + last.n_pairs == tile.first_pair
                        && last.n_pairs + tile.n_pairs <= WIDE_TILE =>
                {
                    last.n_pairs += tile.n_pairs;
                }
                _ => wide.push(tile),
            }
        }
        let n_wide = wide.len() as u32;
        if n_tiles < REPLACED * n_wide {
            return Way::Few;
        }
        for tile in tiles {
            let (start, n) = (tile.first_pair as usize, tile.n_pairs as usize);
            self.pairs.resize(self.pairs.len().max(start + n), [0; 2]);
            for (pair, (row, gate)) in
                self.pairs[start..start + n].iter_mut().zip(tile.rows.iter().zip(tile.gates))
            {
                *pair = [*row, gate.to_bits()];
            }
        }
        self.tiles.resize(first, Tile::zeroed());
        self.tiles.append(&mut wide);
        Way::Wide(n_wide)
    }
}
