//! The best logits of each row: where a token is drawn from these, the others stay on the GPU.

use super::{
    compile::{Builder, MAX_WANTED, View},
    tiles::{Extent, When},
};
use crate::{
    engine::gpu::shaders::Resource,
    graph::{MAX_BEST, RowCount},
};

/// The most parts that the logits of a row make: as many as `shader/best_logits.wgsl` has threads.
const MOST_PARTS: usize = 256;
/// As many parts as these are looked into, `MOST_CHOSEN` of that shader.
const _: () = assert!(MAX_BEST <= 64);
/// Threads of `shader/best_of_parts.wgsl`, of which none is idle but in the last part.
const THREADS: usize = 64;

impl Builder<'_> {
    /// Finds the best logits of each row, in steps where these are enough.
    pub(super) fn best_logits(&mut self) {
        let Some(id) = self.program.graph.logits else { return };
        let View::Rows { place: logits, .. } = self.views[&id] else {
            unreachable!("logits lie in rows");
        };
        let vocabulary = self.program.graph.width(id);
        let part = vocabulary.div_ceil(MOST_PARTS).next_multiple_of(THREADS);
        let n_parts = vocabulary.div_ceil(part);
        let [of_parts, best] =
            [n_parts, MAX_BEST].map(|n| self.places.take(size_of::<[u32; 2]>() * MAX_WANTED * n));
        self.best = Some(best);
        let numbers = [("COLUMNS", vocabulary), ("PART", part), ("N_PARTS", n_parts), ("MOST", MAX_BEST)];
        let rows = Extent::Rows(RowCount::WantedLogits);
        self.when = When::BestOnly;
        for (shader, n_constants, n_groups, bound) in [
            ("best_of_parts", 2, n_parts, vec![(Resource::X, logits), (Resource::Result, of_parts)]),
            (
                "best_logits",
                4,
                1,
                vec![(Resource::X, logits), (Resource::Y, of_parts), (Resource::Result, best)],
            ),
        ] {
            let constants =
                numbers[..n_constants].iter().map(|(name, value)| (*name, *value as f64)).collect();
            let buffers =
                bound.into_iter().map(|(resource, place)| (resource, self.places.get(place))).collect();
            let grid = [Extent::Fixed(n_groups as u32), rows, Extent::Fixed(1)];
            self.push(shader, constants, &[], buffers, grid);
        }
        self.when = When::Always;
        self.places.release(of_parts);
    }
}
