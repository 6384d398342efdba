//! The best logits of each row: where a token is drawn from these, the others stay on the GPU.

use super::{
    compile::{Builder, MAX_WANTED, View},
    tiles::{Extent, When},
};
use crate::{
    engine::gpu::shaders::Resource,
    graph::{MAX_BEST, RowCount},
};

/// Logits of which a workgroup finds the best.
const PART_LOGITS: usize = 2048;

impl Builder<'_> {
    /// Finds the best logits of each row, in steps where these are enough.
    pub(super) fn best_logits(&mut self) {
        let Some(id) = self.program.graph.logits else { return };
        let View::Rows { place: logits, .. } = self.views[&id] else {
            unreachable!("logits lie in rows");
        };
        let vocabulary = self.program.graph.width(id);
        let n_parts = vocabulary.div_ceil(PART_LOGITS);
        let [of_parts, best] =
            [n_parts, 1].map(|n| self.places.take(size_of::<[u32; 2]>() * MAX_WANTED * n * MAX_BEST));
        let unused = self.places.take(0);
        self.best = Some(best);
        self.when = When::BestOnly;
        for (columns, n_groups, [x, y, result]) in
            [(vocabulary, n_parts, [logits, unused, of_parts]), (0, 1, [unused, of_parts, best])]
        {
            let numbers =
                [("COLUMNS", columns), ("PART", PART_LOGITS), ("N_PARTS", n_parts), ("MOST", MAX_BEST)];
            let constants = numbers.map(|(name, value)| (name, value as f64)).to_vec();
            let bound = [(Resource::X, x), (Resource::Y, y), (Resource::Result, result)];
            let buffers = bound.map(|(resource, place)| (resource, self.places.get(place))).to_vec();
            let rows = Extent::Rows(RowCount::WantedLogits);
            let grid = [Extent::Fixed(n_groups as u32), rows, Extent::Fixed(1)];
            self.push("best_logits", constants, &[], buffers, grid);
        }
        self.when = When::Always;
        self.places.release(of_parts);
        self.places.release(unused);
    }
}
