//! Attention: a row's query heads, or a tile of rows', to ranges of their sequence's positions, and what joins the ranges.

use super::{
    compile::{Builder, View},
    pages::{is_q8_0, position_bytes},
    places::PlaceId,
    request::AttentionGrid,
    structs::{Attend, Joined},
    tiles::{Extent, When},
};
use crate::{
    WeightFormat,
    engine::gpu::{
        device::GpuDevice,
        int8,
        shaders::{Constants, Resource},
    },
    graph::{Attention, KvLayout, Op, RowCount, TensorId},
};

/// The most pages of a shallow row, with f16 and with q8_0: a head by itself decodes each code once for each query. Measured on an
/// H200 with 32 heads of 128 columns, 8 to a key.
const SHALLOW_PAGES: [u32; 2] = [256, 64];

/// What a workgroup of `attend_tiles` takes.
#[derive(Clone, Copy, Debug)]
struct AttentionTile {
    rows: usize,
    /// Query heads that share a key and value head.
    group: u32,
    /// A quarter of a head's columns.
    quads: u32,
    queries: u32,
}

impl AttentionTile {
    /// None where heads are not divided evenly, or the device's workgroups have too little memory.
    fn of(attend: &Attend, layout: &KvLayout, device: &GpuDevice) -> Option<Self> {
        let Attend { n_heads, n_kv_heads, columns, .. } = *attend;
        let (group, quads) = (n_heads / n_kv_heads, columns / 4);
        // The less memory a workgroup takes, the more run beside each other.
        let queries = if quads > 32 || (quads > 16 && 16_u32.is_multiple_of(group)) { 16 } else { 32 };
        let scale_bytes = if is_q8_0(layout) { 16 * quads } else { 16 };
        // Queries, a page, its scales, scores and weights, and a few floats for each query and thread.
        let of_query = 16 * quads + 4 * 33 + 4 * 32 + 12;
        let bytes = queries * of_query + 8 * 32 * (quads + 1) + scale_bytes + 512;
        let fits = bytes <= device.wgpu().limits().max_compute_workgroup_storage_size
            && n_heads.is_multiple_of(n_kv_heads)
            && queries.is_multiple_of(group)
            && columns.is_multiple_of(4)
            && [8, 16, 32, 64].contains(&quads);
        fits.then(|| Self { rows: (queries / group) as usize, group, quads, queries })
    }

    fn constants(self) -> Constants {
        [("GROUP", self.group), ("QUERIES", self.queries), ("QUADS", self.quads)]
            .map(|(name, value)| (name, f64::from(value)))
            .into()
    }
}

/// What the workgroups of `attend` take of a row.
#[derive(Clone, Copy, Debug)]
struct HeadGroup {
    /// An eighth of a head's columns.
    eighths: u32,
    /// Query heads that share a key and value head.
    group: u32,
    /// Four times so many of them are a workgroup's.
    fours: u32,
    /// Of a row.
    n_workgroups: u32,
}

impl HeadGroup {
    fn of(attend: &Attend) -> Self {
        let group = attend.n_heads / attend.n_kv_heads;
        let fours = if group > 4 { 2 } else { 1 };
        Self {
            eighths: attend.columns / 8,
            group,
            fours,
            n_workgroups: attend.n_kv_heads * group.div_ceil(4 * fours),
        }
    }

    fn constants(self) -> Constants {
        [("EIGHTHS", self.eighths), ("GROUP", self.group), ("FOURS", self.fours)]
            .map(|(name, value)| (name, f64::from(value)))
            .into()
    }
}

impl Builder<'_> {
    pub(super) fn attend(&mut self, slot: usize, q: TensorId, attention: Attention, out: TensorId) {
        let View::Rows { place: queries, stride, .. } = self.views[&q] else {
            unreachable!("queries lie in rows");
        };
        let n_heads = attention.n_heads;
        let head_width = stride / n_heads;
        let parameters = Attend {
            n_heads: n_heads as u32,
            n_kv_heads: self.n_kv_heads(slot, head_width) as u32,
            columns: head_width as u32,
            scale: attention.scale,
        };
        let heads = self.row_heads.take();
        let group = HeadGroup::of(&parameters);
        let tile = AttentionTile::of(&parameters, self.layout, self.device);
        self.attention = AttentionGrid {
            n_heads: parameters.n_heads,
            of_shallow: heads.is_some().then_some(parameters.n_heads),
            shallow_pages: SHALLOW_PAGES[usize::from(is_q8_0(self.layout))],
            of_row: group.n_workgroups,
            of_tile: tile.map(|tile| (parameters.n_kv_heads, tile.rows)),
        };
        // (T, H, splits, C + 2).
        let place = self.places.take(4 * self.attention.max_ranges() * (head_width + 2));
        let [queries, result] = [queries, place].map(|place| self.places.get(place));
        let buffers = vec![(Resource::Q, queries), (Resource::Result, result.clone())];
        let of_position = position_bytes(self.layout, parameters.n_kv_heads as usize, head_width);
        let told = bytemuck::bytes_of(&parameters);
        if let Some(tile) = tile {
            let grid = [Extent::Fixed(parameters.n_kv_heads), Extent::AttentionTiles, Extent::Splits];
            let shader = ("attend_tiles", tile.constants());
            self.when = When::Many(RowCount::Step);
            self.push_paged(shader, told, buffers.clone(), grid, slot).reads.of_position = of_position;
        }
        self.when = match (&heads, tile) {
            (None, None) => When::Always,
            (None, Some(_)) => When::OneOrFew(RowCount::Step),
            (Some(_), None) => When::ButShallowRow,
            (Some(_), Some(_)) => When::FewButShallowRow,
        };
        let grid = [Extent::Fixed(group.n_workgroups), Extent::Rows(RowCount::Step), Extent::Splits];
        let shader = ("attend", group.constants());
        self.push_paged(shader, told, buffers, grid, slot).reads.of_position = of_position;
        if let Some(heads) = heads {
            self.row_attend(heads, (parameters, slot), result).reads.of_position = of_position;
        }
        self.when = When::Always;
        self.views.insert(out, View::Ranges { place, head_width });
    }

    /// Key and value heads of a slot of the cache.
    fn n_kv_heads(&self, slot: usize, head_width: usize) -> usize {
        let of_slot = self.ops.iter().find_map(|op| match op {
            Op::HeadsToCache { slot: of, k, .. } if *of == slot => Some(self.program.graph.width(k.x)),
            _ => None,
        });
        of_slot.expect("a slot is written before it is read") / head_width
    }

    /// Joins what ranges of positions gave, (T, H C), and rounds it for matrices of `format`.
    pub(super) fn join_ranges(
        &mut self,
        (ranges, head_width): (PlaceId, usize),
        (format, cols): (WeightFormat, usize),
        (result, result_stride): (wgpu::Buffer, usize),
        count: RowCount,
    ) {
        let joined = Joined {
            columns: cols as u32,
            head_columns: head_width as u32,
            result_stride: result_stride as u32,
        };
        let buffers = vec![(Resource::X, self.places.get(ranges)), (Resource::Result, result)];
        let grid = [Extent::Fixed(cols.div_ceil(256) as u32), Extent::Rows(count), Extent::Fixed(1)];
        self.push("attend_rows", int8::rows(format), bytemuck::bytes_of(&joined), buffers, grid);
    }
}
