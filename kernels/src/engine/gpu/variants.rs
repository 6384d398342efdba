//! Kernels of experts with int8 activations for messages of one row, and for those of many pairs for each expert.
//!
//! Where every tile of a dispatch has one pair, all loads of a row of weights are under way together, and what rounds h is not a
//! dispatch of its own. Where experts have many
//! pairs, wide tiles read their weights once for up to [`WIDE_TILE`] pairs, not once for four. All give the same
//! bits.

#[cfg(test)]
mod tests;

use bytemuck::Zeroable;

use super::{
    Kernels,
    device::GpuDevice,
    int8::{self, Int8Kernel, Int8Step, WIDE_PANELS, WIDE_TILE, lanes},
    layout::{Layout, Tables, TilesOf},
    pipeline::Pipeline,
    structs::Tile,
};
use crate::{ExpertShape, WeightFormat, quant::block_words, simd::ROWS};

/// Tiles that a wide one must replace in the mean. A workgroup of wide tiles takes twice the panels, so that fewer run beside
/// each other.
const REPLACED: u32 = 2;

/// The entry point of kernels with wide tiles.
pub(super) const MATRIX: &str = "int8_matrix";
/// The entry point of the kernel that reads h as gate and up gave it.
pub(super) const ONE_DOWN: &str = "pair_down";

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

/// A kernel, and its workgroups in x.
pub(super) type Step = (Pipeline, u32);

/// The kernels of experts of one shape: gate and up, and down.
#[derive(Debug)]
pub(super) struct Variants {
    /// None where a workgroup does not have as much memory.
    one: Option<[Step; 2]>,
    wide: [Step; 2],
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
    /// Those of experts of `shape`, if its formats are integers; `step` makes one, if there is one.
    pub(super) fn new(shape: &ExpertShape, step: impl Fn(Int8Step, Variant) -> Option<Step>) -> Option<Self> {
        let is_integer = |format: WeightFormat| format.geometry().is_some();
        let has_them = is_integer(shape.format.gate_up) && is_integer(shape.format.down);
        let steps = |variant| Some([step(Int8Step::GateUp, variant)?, step(Int8Step::Down, variant)?]);
        if !has_them {
            return None;
        }
        Some(Self { one: steps(Variant::One), wide: steps(Variant::Wide)? })
    }

    /// Whether there are kernels for tiles of one pair.
    pub(super) fn has_one(&self) -> bool {
        self.one.is_some()
    }

    /// The kernels of a dispatch, where they are not those for all tiles, and its workgroups in y.
    fn of(&self, dispatch: &TilesOf) -> Option<(&[Step; 2], u32)> {
        match dispatch.way {
            Way::Few => None,
            Way::One => Some((self.one.as_ref()?, dispatch.n_tiles)),
            Way::Wide(n_tiles) => Some((&self.wide, n_tiles)),
        }
    }
}

impl Kernels {
    /// A step's kernel for a dispatch, with its workgroups in x and in y; none where another step's does all.
    pub(super) fn launch(&self, step: usize, dispatch: &TilesOf) -> Option<(&Pipeline, u32, u32)> {
        let of_all = (&self.steps[step], dispatch.n_tiles);
        let variants = self.variants.as_ref().and_then(|variants| variants.of(dispatch));
        let ((pipeline, workgroups), n_tiles) = match (variants, Int8Step::ALL.get(step)) {
            (Some(([gate_up, _], n_tiles)), Some(Int8Step::GateUp)) => (gate_up, n_tiles),
            (Some(([_, down], n_tiles)), Some(Int8Step::Down)) => (down, n_tiles),
            // Kernels for one pair round its row for themselves.
            (Some(_), _) if dispatch.way == Way::One => return None,
            _ => of_all,
        };
        Some((pipeline, *workgroups, n_tiles))
    }
}

impl Int8Step {
    /// The kernel of a variant for experts of `shape`; none where it has none.
    pub(super) fn variant(
        self,
        variant: Variant,
        shape: &ExpertShape,
        device: &GpuDevice,
    ) -> Option<Int8Kernel> {
        match (variant, self) {
            (_, Self::Rows) => None,
            (Variant::One, Self::GateUp) => one_gate_up(shape, device),
            (Variant::One, Self::Down) => one_down(shape, device),
            (Variant::Wide, _) => Some(wide(self, shape)),
        }
    }
}

/// Of gate and up, or of down: `shader/int8_matrix.wgsl`.
fn wide(step: Int8Step, shape: &ExpertShape) -> Int8Kernel {
    let (format, n_panels) = match step {
        Int8Step::GateUp => (shape.format.gate_up, 2 * shape.inner.div_ceil(ROWS)),
        Int8Step::Rows | Int8Step::Down => (shape.format.down, shape.hidden.div_ceil(ROWS)),
    };
    let constants = [int8::matrix(format, false), vec![("KEEPS_PRODUCTS", 1.0)]].concat();
    Int8Kernel { entry_point: MATRIX, constants, workgroups: n_panels.div_ceil(WIDE_PANELS) as u32 }
}

/// `shader/pair_gate_up.wgsl`.
fn one_gate_up(shape: &ExpertShape, device: &GpuDevice) -> Option<Int8Kernel> {
    let format = shape.format.gate_up;
    let geometry = format.geometry()?;
    let n_blocks = shape.hidden.div_ceil(geometry.cols);
    let [rows, items, n_words] = [2 * ROWS, n_blocks * geometry.n_units(), n_blocks * block_words(geometry)];
    let capacity = int8::row_products(format, items);
    if n_words + capacity * rows > device.workgroup_words() {
        return None;
    }
    let threads = rows * lanes(items, device.usual_threads() / rows);
    let mut constants = int8::row_product(format, [rows, threads, capacity]);
    constants.extend([("ITEMS", items as f64), ("N_WORDS", n_words as f64)]);
    let workgroups = shape.inner.div_ceil(ROWS) as u32;
    Some(Int8Kernel { entry_point: "pair_gate_up", constants, workgroups })
}

/// `shader/pair_down.wgsl`.
fn one_down(shape: &ExpertShape, device: &GpuDevice) -> Option<Int8Kernel> {
    let format = shape.format.down;
    let geometry = format.geometry()?;
    let n_blocks = shape.inner.div_ceil(geometry.cols);
    let items = n_blocks * geometry.n_units();
    let capacity = int8::row_products(format, items);
    let of_row = n_blocks * (block_words(geometry) + geometry.n_groups());
    if !shape.inner.is_multiple_of(4) || of_row + capacity * ROWS > device.workgroup_words() {
        return None;
    }
    let threads = ROWS * lanes(items, device.usual_threads() / ROWS);
    let mut constants = int8::row_product(format, [ROWS, threads, capacity]);
    let zero = geometry.zero.map_or(0, usize::from);
    let numbers = [("ZERO", zero), ("N_BLOCKS", n_blocks), ("QUADS", shape.inner / 4), ("ITEMS", items)];
    constants.extend(numbers.map(|(name, value)| (name, value as f64)));
    let workgroups = shape.hidden.div_ceil(ROWS) as u32;
    Some(Int8Kernel { entry_point: ONE_DOWN, constants, workgroups })
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
