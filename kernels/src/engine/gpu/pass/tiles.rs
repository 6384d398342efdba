//! How many workgroups a dispatch has, and the tiles of rows in order.

use bytemuck::Zeroable;

use super::places::Places;
use crate::{
    engine::gpu::{
        device::GpuDevice,
        int8::WIDE_TILE,
        structs::{TILE_PAIRS, Tile},
    },
    graph::RowCount,
};

/// Workgroups of a dispatch in one direction.
#[derive(Clone, Copy, Debug)]
pub(super) enum Extent {
    /// As many in every step.
    Fixed(u32),
    /// One for each row.
    Rows(RowCount),
    /// One for each tile of rows in order, or of `of_row` pairs of each.
    Tiles { rows: RowCount, of_row: u32, size: u32 },
    /// One for each tile of pairs that a router's choices can make.
    Pairs { rows: RowCount, n_experts: u32, n_chosen: u32, size: u32 },
    /// One for each part of the positions.
    Splits,
    /// One for each tile of attention.
    AttentionTiles,
}

/// Rows of a step whose experts have tiles of [`TILE_PAIRS`]; others have wide ones.
pub(super) const FEW_ROWS: u32 = 16;
/// Rows of a router's tile: `TILE` in `shader/router_logits.wgsl`.
pub(super) const ROUTER_TILE: u32 = 64;

/// Which steps have a dispatch, by their rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// All.
    Always,
    /// Those of one row.
    One(RowCount),
    /// Those of several rows.
    Several(RowCount),
    /// Those of two to so many.
    Few(RowCount, u32),
    /// Those of more than so many.
    Many(RowCount, u32),
    /// Those whose rows attend so.
    Attends(Attends),
    /// All but those of [`Attends::ShallowRow`].
    ButShallowRow,
    /// Those whose rows' best logits are enough.
    BestOnly,
    /// Those of them where a token of some row is drawn from all.
    Draws,
}

impl When {
    pub(super) fn holds(self, counts: &Counts) -> bool {
        match self {
            Self::Always => true,
            Self::Several(rows) => counts.of(rows) > 1,
            Self::One(rows) => counts.of(rows) == 1,
            Self::Few(rows, most) => (2..=most).contains(&counts.of(rows)),
            Self::Many(rows, few) => counts.of(rows) > few,
            Self::Attends(how) => counts.attends == how,
            Self::ButShallowRow => counts.attends != Attends::ShallowRow,
            Self::BestOnly => counts.best > 0,
            Self::Draws => counts.draws,
        }
    }
}

/// The kernel by which a step's rows attend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Attends {
    /// `shader/row_attend.wgsl`: a step's one row, which attends to few positions.
    ShallowRow,
    /// `shader/attend.wgsl` in tiles of few queries.
    #[default]
    InNarrowTiles,
    /// `shader/attend.wgsl` in tiles of many.
    InWideTiles,
}

/// The counts of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// T.
    pub(super) rows: u32,
    /// W.
    pub(super) wanted: u32,
    pub(super) splits: u32,
    pub(super) attends: Attends,
    pub(super) attention_tiles: u32,
    /// Of each row's best logits; 0 if all are wanted.
    pub(super) best: u32,
    /// Whether, beside these, a token of some row is drawn from all.
    pub(super) draws: bool,
}

impl Counts {
    /// T or W.
    pub(super) fn of(&self, rows: RowCount) -> u32 {
        match rows {
            RowCount::Step => self.rows,
            RowCount::WantedLogits => self.wanted,
        }
    }
}

impl Extent {
    /// Workgroups in a step.
    pub(super) fn of(self, counts: &Counts) -> u32 {
        match self {
            Self::Fixed(n) => n,
            Self::Rows(rows) => counts.of(rows),
            Self::Tiles { rows, of_row, size } => (of_row * counts.of(rows)).div_ceil(size),
            Self::Pairs { rows, n_experts, n_chosen, size } => {
                let pairs = counts.of(rows) * n_chosen;
                // Every expert may have one tile that is not full.
                pairs.min(pairs.div_ceil(size) + n_experts)
            }
            Self::Splits => counts.splits,
            Self::AttentionTiles => counts.attention_tiles,
        }
    }

    /// Workgroups in a step of `n_rows`, all of them wanted.
    pub(super) fn most(self, n_rows: usize) -> u32 {
        let n = n_rows as u32;
        self.of(&Counts { rows: n, wanted: n, splits: 1, attention_tiles: n, ..Counts::default() })
    }
}

/// The tiles of all rows, or of `of_row` pairs of each, in order.
#[derive(Debug)]
pub(super) struct TileTable {
    of: InOrder,
    buffer: wgpu::Buffer,
}

/// What a table's tiles are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InOrder {
    pub(super) rows: RowCount,
    pub(super) of_row: u32,
    /// Pairs of a tile.
    pub(super) size: u32,
    /// Words from one row of x to the next, where tiles say where rows are.
    pub(super) stride: u32,
}

impl InOrder {
    /// Rows in tiles of [`TILE_PAIRS`].
    pub(super) fn few(rows: RowCount, stride: u32) -> Self {
        Self { rows, of_row: 1, size: TILE_PAIRS as u32, stride }
    }

    /// Rows in tiles of [`WIDE_TILE`].
    pub(super) fn many(rows: RowCount) -> Self {
        Self { rows, of_row: 1, size: WIDE_TILE, stride: 0 }
    }

    /// Rows in tiles of [`ROUTER_TILE`].
    pub(super) fn router(rows: RowCount) -> Self {
        Self { rows, of_row: 1, size: ROUTER_TILE, stride: 0 }
    }

    /// Pairs of rows, `of_row` of each, in tiles of [`TILE_PAIRS`].
    pub(super) fn pairs(rows: RowCount, of_row: usize) -> Self {
        Self { of_row: of_row as u32, ..Self::few(rows, 0) }
    }

    /// A workgroup for each tile.
    pub(super) fn extent(self) -> Extent {
        Extent::Tiles { rows: self.rows, of_row: self.of_row, size: self.size }
    }
}

impl TileTable {
    pub(super) fn new(places: &mut Places<'_>, of: InOrder, max_rows: usize) -> Self {
        let bytes = (of.extent().most(max_rows) as usize * size_of::<Tile>()) as u64;
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        Self { of, buffer: places.buffer("tiles", bytes, usage) }
    }

    pub(super) fn is_of(&self, of: InOrder) -> bool {
        self.of == of
    }

    pub(super) fn buffer(&self) -> &wgpu::Buffer {
        &self.buffer
    }

    /// Writes the tiles of a step.
    pub(super) fn write(&self, device: &GpuDevice, counts: &Counts) {
        let InOrder { rows, of_row, size, stride } = self.of;
        let n = of_row * counts.of(rows);
        let tile = |first: u32| {
            let mut tile = Tile {
                n_pairs: (n - first).min(size),
                first_pair: first,
                gates: [1.0; TILE_PAIRS],
                ..Tile::zeroed()
            };
            for (row, place) in (first..).zip(&mut tile.rows) {
                *place = row * stride;
            }
            tile
        };
        let tiles: Vec<Tile> = (0..n).step_by(size as usize).map(tile).collect();
        device.queue().write_buffer(&self.buffer, 0, bytemuck::cast_slice(&tiles));
    }
}
