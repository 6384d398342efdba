//! Steps of one row, as of a sequence that is decoded: a dispatch does there what several do for many rows, since each dispatch
//! waits for the one before. Whatever has no such dispatch, for its shape or for the device's memory, takes those of many rows.

use super::{
    compile::{Builder, Step},
    places::PlaceId,
    tiles::{Counts, Extent},
};
use crate::{
    ExpertKind, ExpertShape,
    engine::gpu::{
        device::GpuDevice,
        int8::{self, Int8Step},
        shaders::{Constants, Resource},
    },
    graph::RowCount,
    quant::block_words,
    simd::{PackedExpertShape, ROWS},
};

/// Which steps a dispatch is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// All.
    Always,
    /// Those of one row.
    One(RowCount),
    /// Those of several rows.
    Several(RowCount),
}

impl Step {
    /// Workgroups in x, y and z: none in steps that it is not part of.
    pub(super) fn workgroups(&self, counts: &Counts) -> [u32; 3] {
        let is_part = match self.when {
            When::Always => true,
            When::One(rows) => counts.of(rows) == 1,
            When::Several(rows) => counts.of(rows) > 1,
        };
        self.grid.map(|extent| if is_part { extent.of(counts) } else { 0 })
    }
}

/// A row's down projections and their sum as one dispatch: `shader/row_down.wgsl`.
pub(super) struct RowDown {
    shape: PackedExpertShape,
    n_chosen: usize,
    constants: Constants,
}

impl RowDown {
    /// For `n_chosen` experts of `shape`; none where a workgroup does not have as much memory, or weights are floats.
    pub(super) fn of(shape: &PackedExpertShape, n_chosen: usize, device: &GpuDevice) -> Option<Self> {
        let PackedExpertShape { inner, format, .. } = *shape;
        let geometry = format.down.geometry()?;
        if format.kind != ExpertKind::Silu || !inner.is_multiple_of(4) {
            return None;
        }
        let limits = device.wgpu().limits();
        let n_blocks = n_chosen * inner.div_ceil(geometry.cols);
        let items = inner.div_ceil(geometry.cols) * geometry.n_units();
        let addends = int8::addends(format.down);
        let of_all = n_blocks * (block_words(geometry) + geometry.n_groups()) + n_chosen * (ROWS + 2);
        let room = (limits.max_compute_workgroup_storage_size as usize / 4).checked_sub(of_all)?;
        // As many experts at once as there is room for.
        let fits = |n: &usize| n_chosen.is_multiple_of(*n) && n * items * addends * ROWS <= room;
        let at_once = (1..=n_chosen).rev().find(fits)?;
        let most = limits.max_compute_invocations_per_workgroup as usize / ROWS;
        let lanes = (at_once * items / 4).next_power_of_two().clamp(8, most);
        let mut constants = int8::row_product(format.down, [ROWS * lanes, at_once * items * addends]);
        let numbers = [
            ("ZERO", geometry.zero.map_or(0, usize::from)),
            ("N_BLOCKS", n_blocks),
            ("N_CHOSEN", n_chosen),
            ("AT_ONCE", at_once),
            ("QUADS", inner / 4),
            ("ITEMS", items),
        ];
        constants.extend(numbers.map(|(name, value)| (name, value as f64)));
        Some(Self { shape: *shape, n_chosen, constants })
    }
}

impl Builder<'_> {
    /// The sum of a row's experts, from h to results.
    pub(super) fn row_down(
        &mut self,
        down: &RowDown,
        (slab, tiles): (wgpu::Buffer, wgpu::Buffer),
        rows: RowCount,
        [h, y]: [PlaceId; 2],
    ) {
        let PackedExpertShape { hidden, inner, format } = down.shape;
        let parameters = Int8Step::Down.shape(&ExpertShape { hidden, inner, format }, 0, 0);
        let [from, to] = [h, y].map(|place| self.places.get(place));
        let buffers = vec![
            (Resource::Tiles, tiles),
            (Resource::Weights, slab),
            (Resource::H, from),
            (Resource::Result, to),
        ];
        let grid = [Extent::Fixed(hidden.div_ceil(ROWS) as u32), Extent::Fixed(1), Extent::Fixed(1)];
        self.when = When::One(rows);
        let bytes = down.shape.bytes() - down.shape.gate_up_bytes();
        self.push("row_down", down.constants.clone(), bytemuck::bytes_of(&parameters), buffers, grid)
            .gives("down", down.n_chosen * bytes);
        self.when = When::Always;
    }
}
