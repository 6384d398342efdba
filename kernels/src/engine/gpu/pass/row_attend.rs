//! Attention of a shallow row, which takes the row's heads as the projections give them: `shader/row_attend.wgsl`.

use super::{
    compile::{Builder, Step},
    places::PlaceId,
    structs::{Attend, Heads},
    tiles::{Attends, Extent, When},
};
use crate::engine::gpu::shaders::Resource;

/// Heads for the attention behind them.
pub(super) struct RowHeads {
    pub(super) parameters: Heads,
    /// What `shader/heads_to_cache.wgsl` binds.
    pub(super) buffers: Vec<(Resource, wgpu::Buffer)>,
    /// What has one user more until attention is there.
    pub(super) held: [PlaceId; 3],
}

impl Builder<'_> {
    /// Attention of one row to `slot`, (H, slots, C + 2) to `result`, and what is before it.
    pub(super) fn row_attend(
        &mut self,
        heads: RowHeads,
        (attention, slot): (Attend, usize),
        result: wgpu::Buffer,
    ) -> &mut Step {
        let attended = self.uniform(bytemuck::bytes_of(&attention));
        let mut buffers = vec![(Resource::Attention, attended), (Resource::Result, result)];
        buffers.extend(heads.buffers.into_iter().filter(|(resource, _)| *resource != Resource::Result));
        heads.held.into_iter().for_each(|place| self.places.release(place));
        let grid = [Extent::Fixed(attention.n_heads), Extent::Fixed(1), Extent::Splits];
        self.when = When::Attends(Attends::ShallowRow);
        let shader = ("row_attend", vec![("EIGHTHS", f64::from(attention.columns / 8))]);
        self.push_paged(shader, bytemuck::bytes_of(&heads.parameters), buffers, grid, slot);
        self.when = When::Always;
        self.steps.last_mut().expect("it was just appended")
    }
}
