//! How many workgroups a dispatch has, and the tiles of rows in order.

use bytemuck::Zeroable;

use super::{compile::MAX_ROWS, places::Places};
use crate::{
    engine::gpu::{
        device::GpuDevice,
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
    /// One for each tile of rows in order.
    Tiles(RowCount),
    /// One for each tile of pairs that a router's choices can make.
    Pairs { rows: RowCount, n_experts: u32, n_chosen: u32 },
    /// One for each range of positions.
    Splits,
    /// One in steps of several rows, else none.
    OneIfSeveral(RowCount),
}

/// The counts of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    /// T.
    pub(super) rows: u32,
    /// W.
    pub(super) wanted: u32,
    pub(super) splits: u32,
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
            Self::Tiles(rows) => counts.of(rows).div_ceil(TILE_PAIRS as u32),
            Self::Pairs { rows, n_experts, n_chosen } => {
                let pairs = counts.of(rows) * n_chosen;
                // Every expert may have one tile that is not full.
                pairs.min(pairs.div_ceil(TILE_PAIRS as u32) + n_experts)
            }
            Self::Splits => counts.splits,
            Self::OneIfSeveral(rows) => u32::from(counts.of(rows) > 1),
        }
    }

    /// The rows that it follows, if it follows any.
    pub(super) fn rows(self) -> RowCount {
        match self {
            Self::Rows(rows) | Self::Tiles(rows) | Self::Pairs { rows, .. } | Self::OneIfSeveral(rows) => {
                rows
            }
            Self::Fixed(_) | Self::Splits => RowCount::Step,
        }
    }

    /// Workgroups in a step of `n_rows`, all of them wanted.
    pub(super) fn most(self, n_rows: usize) -> u32 {
        self.of(&Counts { rows: n_rows as u32, wanted: n_rows as u32, splits: 1 })
    }
}

/// The tiles of all rows, in order.
#[derive(Debug)]
pub(super) struct TileTable {
    rows: RowCount,
    /// Words from one row of x to the next.
    stride: u32,
    buffer: wgpu::Buffer,
}

impl TileTable {
    pub(super) fn new(places: &mut Places<'_>, rows: RowCount, stride: u32) -> Self {
        let bytes = (MAX_ROWS.div_ceil(TILE_PAIRS) * size_of::<Tile>()) as u64;
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        Self { rows, stride, buffer: places.buffer("tiles", bytes, usage) }
    }

    pub(super) fn is_for(&self, rows: RowCount, stride: u32) -> bool {
        (self.rows, self.stride) == (rows, stride)
    }

    pub(super) fn buffer(&self) -> &wgpu::Buffer {
        &self.buffer
    }

    /// Writes the tiles of a step.
    pub(super) fn write(&self, device: &GpuDevice, counts: &Counts) {
        let n = counts.of(self.rows);
        let tile = |first: u32| {
            let mut tile = Tile {
                n_pairs: (n - first).min(TILE_PAIRS as u32),
                first_pair: first,
                gates: [1.0; TILE_PAIRS],
                ..Tile::zeroed()
            };
            for (row, place) in (first..).zip(&mut tile.rows) {
                *place = row * self.stride;
            }
            tile
        };
        let tiles: Vec<Tile> = (0..n).step_by(TILE_PAIRS).map(tile).collect();
        device.queue().write_buffer(&self.buffer, 0, bytemuck::cast_slice(&tiles));
    }
}
