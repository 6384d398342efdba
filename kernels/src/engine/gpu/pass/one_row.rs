//! Steps of one row, as of a sequence that is decoded: a dispatch does there what several do for many rows, since each dispatch
//! waits for the one before. Whatever has no such dispatch, for its shape or for the device's memory, takes those of many rows.

use super::{
    compile::Builder,
    places::PlaceId,
    structs::Router,
    tiles::{Extent, When},
};
use crate::{
    ExpertKind, ExpertShape,
    engine::gpu::{
        device::GpuDevice,
        int8::{self, Int8Step, lanes},
        shaders::{Constants, Resource},
    },
    graph::RowCount,
    quant::block_words,
    simd::{PackedExpertShape, PackedShape, ROWS},
};

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
        let n_blocks = n_chosen * inner.div_ceil(geometry.cols);
        let items = inner.div_ceil(geometry.cols) * geometry.n_units();
        let kept = int8::row_products(format.down, items);
        let of_all = n_blocks * (block_words(geometry) + geometry.n_groups()) + n_chosen * (ROWS + 2);
        let room = device.workgroup_words().checked_sub(of_all)?;
        // As many experts at once as there is room for.
        let fits = |n: &usize| n_chosen.is_multiple_of(*n) && n * kept * ROWS <= room;
        let at_once = (1..=n_chosen).rev().find(fits)?;
        // There are no more workgroups than a large GPU has cores.
        let threads = ROWS * lanes(at_once * items, device.most_threads() / ROWS);
        let mut constants = int8::row_product(format.down, [ROWS, threads, at_once * kept]);
        let numbers = [
            ("ZERO", geometry.zero.map_or(0, usize::from)),
            ("N_BLOCKS", n_blocks),
            ("N_CHOSEN", n_chosen),
            ("AT_ONCE", at_once),
            ("QUADS", inner / 4),
            ("ITEMS", items),
            ("LINES", lines(&shape.down_shape())),
        ];
        constants.extend(numbers.map(|(name, value)| (name, value as f64)));
        Some(Self { shape: *shape, n_chosen, constants })
    }
}

/// A row's gates and ups, and the choice of their experts, as one dispatch: `shader/row_gate_up.wgsl`.
pub(super) struct RowGateUp {
    shape: PackedExpertShape,
    router: Router,
    /// The router's logits, and where a row's places go.
    logits: wgpu::Buffer,
    places: wgpu::Buffer,
    constants: Constants,
}

impl RowGateUp {
    /// For experts of `shape` that are chosen by so many parts of logits; none where a workgroup does not have as much memory, or
    /// weights are floats.
    pub(super) fn of(
        shape: &PackedExpertShape,
        (router, [logits, places], n_parts): (Router, [wgpu::Buffer; 2], usize),
        device: &GpuDevice,
    ) -> Option<Self> {
        let PackedExpertShape { hidden, format, .. } = *shape;
        let geometry = format.gate_up.geometry()?;
        if format.kind != ExpertKind::Silu {
            return None;
        }
        let items = hidden.div_ceil(geometry.cols) * geometry.n_units();
        let [rows, capacity] = [2 * ROWS, int8::row_products(format.gate_up, items)];
        let threads = rows * lanes(items, device.usual_threads() / rows);
        let mut constants = int8::row_product(format.gate_up, [rows, threads, capacity]);
        let n_experts = router.n_experts as usize;
        constants.extend(choice(n_experts, n_parts, threads));
        let row_words = items / geometry.n_units() * block_words(geometry);
        constants.extend([("ITEMS", items as f64), ("N_WORDS", row_words as f64)]);
        let words = row_words + capacity * rows + n_experts + n_experts.max(threads) + 512;
        (words <= device.workgroup_words()).then(|| Self { shape: *shape, router, logits, places, constants })
    }
}

/// Lines of a cache in a panel.
pub(super) fn lines(matrix: &PackedShape) -> usize {
    (matrix.panel_bytes() / 128).max(1)
}

/// The constants of `shader/shared/choose.wgsl` for so many experts and parts of logits.
pub(super) fn choice(n_experts: usize, n_parts: usize, threads: usize) -> Constants {
    let shares = (threads / n_experts).clamp(1, 8);
    let constants = [("N_EXPERTS", n_experts), ("N_PARTS", n_parts), ("SHARES", shares)];
    constants.map(|(name, value)| (name, value as f64)).to_vec()
}

impl Builder<'_> {
    /// The gates and ups of a row's experts and what joins them, from activations to h.
    pub(super) fn row_gate_up(
        &mut self,
        gate_up: &RowGateUp,
        (slab, tiles): (wgpu::Buffer, wgpu::Buffer),
        rows: RowCount,
        [x, h]: [PlaceId; 2],
    ) {
        let PackedExpertShape { hidden, inner, format } = gate_up.shape;
        let parameters = Int8Step::GateUp.shape(&ExpertShape { hidden, inner, format }, 0, 0);
        let router = self.uniform(bytemuck::bytes_of(&gate_up.router));
        let [from, to] = [x, h].map(|place| self.places.get(place));
        let buffers = vec![
            (Resource::Router, router),
            (Resource::Logits, gate_up.logits.clone()),
            (Resource::Tiles, tiles),
            (Resource::Places, gate_up.places.clone()),
            (Resource::Weights, slab),
            (Resource::Rounded, from),
            (Resource::Result, to),
        ];
        let n_chosen = gate_up.router.n_chosen;
        let panels = Extent::Fixed(inner.div_ceil(ROWS) as u32);
        let grid = [panels, Extent::Fixed(n_chosen), Extent::Fixed(1)];
        self.when = When::One(rows);
        self.push("row_gate_up", gate_up.constants.clone(), bytemuck::bytes_of(&parameters), buffers, grid)
            .gives("gate and up", n_chosen as usize * gate_up.shape.gate_up_bytes());
        self.when = When::Always;
    }

    /// A buffer of what a kernel is told besides its one uniform of parameters.
    pub(super) fn uniform(&mut self, bytes: &[u8]) -> wgpu::Buffer {
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let buffer = self.places.buffer("parameters", bytes.len().next_multiple_of(16) as u64, usage);
        self.device.queue().write_buffer(&buffer, 0, bytes);
        buffer
    }

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
