//! Attention: a row's query heads, or a tile of rows', to ranges of their sequence's positions, and what joins the ranges.

use super::{
    compile::{Builder, MAX_ROWS, View},
    pages::{is_q8_0, position_bytes},
    places::PlaceId,
    request::{AttentionGrid, MOST_APART, MOST_RANGES},
    structs::{Attend, Joined},
    tiles::{Attends, Extent, FEW_ROWS, When},
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
const SHALLOW_PAGES: [u32; 2] = [80, 64];

/// Queries that a workgroup of `shader/attend.wgsl` takes at most, in narrow tiles and in wide ones.
const FEW_QUERIES: u32 = 8;
const MANY_QUERIES: u32 = 16;
/// Ranges whose shares `shader/attend_rows.wgsl` has memory for.
const MOST_SHARES: u32 = 512;

/// Heads that 256 columns are of, `N_HEADS` in `shader/attend_rows.wgsl`.
fn heads_of_columns(columns: u32) -> u32 {
    if 256_u32.is_multiple_of(columns) { 256 / columns } else { 255 / columns + 2 }
}

/// Ranges of all rows of a step, and of one, that there is room for.
fn most_ranges(attend: &Attend, device: &GpuDevice) -> (usize, u32) {
    let of_range = 4 * u64::from(attend.n_heads * (attend.columns + 2));
    let apart = MOST_APART.min((device.wgpu().limits().max_storage_buffer_binding_size / of_range) as usize);
    let of_few = apart as u32 / FEW_ROWS;
    (apart, MOST_RANGES.min(MOST_SHARES / heads_of_columns(attend.columns)).min(of_few))
}

/// What a workgroup of `shader/attend.wgsl` takes.
#[derive(Clone, Copy, Debug)]
struct AttentionTile {
    /// Query heads that share a key and value head.
    group: u32,
    /// Of them, those of a tile.
    heads: u32,
    /// A quarter of a head's columns.
    quads: u32,
    /// Of the tile's rows.
    queries: u32,
}

impl AttentionTile {
    /// Of up to `most` queries, if a workgroup of the device has memory for so many.
    fn of(attend: &Attend, most: u32, layout: &KvLayout, device: &GpuDevice) -> Result<Self, String> {
        let Attend { n_heads, n_kv_heads, columns, .. } = *attend;
        let (group, quads) = (n_heads / n_kv_heads, columns / 4);
        let scale_words = if is_q8_0(layout) { 4 * quads } else { 4 };
        // Queries, a page, its scales, and for each query scores, weights, the largest score and weight of each four, and six more.
        let words = |queries: u32| queries * (4 * quads + 33 + 32 + 16 + 6) + 64 * (quads + 1) + scale_words;
        let fits = |queries: &u32| words(*queries) as usize <= device.workgroup_words();
        let queries = [most, FEW_QUERIES].into_iter().find(fits);
        let queries = queries.ok_or_else(|| {
            let n_bytes = 4 * words(FEW_QUERIES);
            format!("heads of {columns} columns need workgroups with {n_bytes} bytes of memory")
        })?;
        Ok(Self { group, heads: group.min(queries), quads, queries })
    }

    /// Workgroups of a tile of rows and a range.
    fn n_workgroups(self, n_kv_heads: u32) -> u32 {
        n_kv_heads * self.group.div_ceil(self.heads)
    }

    /// Rows of a tile.
    fn n_rows(self) -> usize {
        (self.queries / self.heads) as usize
    }

    fn constants(self) -> Constants {
        [("GROUP", self.group), ("HEADS", self.heads), ("QUERIES", self.queries), ("QUADS", self.quads)]
            .map(|(name, value)| (name, f64::from(value)))
            .into()
    }
}

impl Builder<'_> {
    pub(super) fn attend(
        &mut self,
        slot: usize,
        q: TensorId,
        attention: Attention,
        out: TensorId,
    ) -> Result<(), String> {
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
        let tile = |most| AttentionTile::of(&parameters, most, self.layout, self.device);
        let tiles = [tile(FEW_QUERIES)?, tile(MANY_QUERIES)?];
        let (most_apart, most_ranges) = most_ranges(&parameters, self.device);
        self.attention = AttentionGrid {
            of_tile: tiles.map(|tile| tile.n_workgroups(parameters.n_kv_heads)),
            rows_of_tile: tiles.map(AttentionTile::n_rows),
            most_ranges,
            most_apart,
            shallow_pages: match heads {
                Some(_) => SHALLOW_PAGES[usize::from(is_q8_0(self.layout))],
                None => 0,
            },
        };
        // (T, H, slots, C + 2).
        let place = self.places.take(4 * most_apart.max(MAX_ROWS) * n_heads * (head_width + 2));
        let [queries, result] = [queries, place].map(|place| self.places.get(place));
        let buffers = vec![(Resource::Q, queries), (Resource::Result, result.clone())];
        let of_position = position_bytes(self.layout, parameters.n_kv_heads as usize, head_width);
        for (how, tile) in [Attends::InNarrowTiles, Attends::InWideTiles].into_iter().zip(tiles) {
            let n_workgroups = Extent::Fixed(tile.n_workgroups(parameters.n_kv_heads));
            let grid = [n_workgroups, Extent::AttentionTiles, Extent::Splits];
            self.when = When::Attends(how);
            let told = bytemuck::bytes_of(&parameters);
            let shader = ("attend", tile.constants());
            self.push_paged(shader, told, buffers.clone(), grid, slot).reads.of_position = of_position;
        }
        if let Some(heads) = heads {
            self.row_attend(heads, (parameters, slot), result).reads.of_position = of_position;
        }
        self.when = When::Always;
        self.views.insert(out, View::Ranges { place, head_width });
        Ok(())
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
        let joined = Joined { columns: cols as u32, result_stride: result_stride as u32 };
        let columns = head_width as u32;
        let mut constants = int8::rows(format);
        let of_ranges = [
            ("N_RANGES", heads_of_columns(columns) * self.attention.most_ranges),
            ("HEAD_COLUMNS", columns),
            ("N_HEADS", heads_of_columns(columns)),
        ];
        constants.extend(of_ranges.map(|(name, value)| (name, f64::from(value))));
        let buffers = vec![(Resource::X, self.places.get(ranges)), (Resource::Result, result)];
        let grid = [Extent::Fixed(cols.div_ceil(256) as u32), Extent::Rows(count), Extent::Fixed(1)];
        self.push("attend_rows", constants, bytemuck::bytes_of(&joined), buffers, grid);
    }
}
