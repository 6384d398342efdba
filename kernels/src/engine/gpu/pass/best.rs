//! The best logits of each row, and the token that is drawn from all of them: where these are enough, the others stay on the GPU.

use super::{
    compile::{Builder, MAX_WANTED, View},
    tiles::{Extent, When},
};
use crate::{
    engine::gpu::shaders::Resource,
    graph::{MAX_BEST, RowCount},
};

/// What a row gives: its best logits, then the token drawn.
pub(super) const BEST_ENTRIES: usize = MAX_BEST + 1;
/// The most parts that the logits of a row make: as many as `shader/best_logits.wgsl` and `shader/draw.wgsl` have threads.
const MOST_PARTS: usize = 256;
/// As many parts as these are looked into, `MOST_CHOSEN` of that shader.
const _: () = assert!(MAX_BEST <= 64);
/// Threads of `shader/best_of_parts.wgsl` and `shader/weigh_parts.wgsl`, of which none is idle but in the last part.
const THREADS: usize = 64;

impl Builder<'_> {
    /// Finds the best logits of each row, and draws a token, in steps where these are enough.
    pub(super) fn best_logits(&mut self) {
        let Some(id) = self.program.graph.logits else { return };
        let View::Rows { place: logits, .. } = self.views[&id] else {
            unreachable!("logits lie in rows");
        };
        let vocabulary = self.program.graph.width(id);
        let part = vocabulary.div_ceil(MOST_PARTS).next_multiple_of(THREADS);
        let n_parts = vocabulary.div_ceil(part);
        let [of_parts, best] =
            [n_parts, BEST_ENTRIES].map(|n| self.places.take(size_of::<[u32; 2]>() * MAX_WANTED * n));
        self.best = Some(best);
        let numbers = [("COLUMNS", vocabulary), ("PART", part), ("MOST", MAX_BEST), ("N_PARTS", n_parts)];
        for (when, shader, n_constants, n_groups, [y, result]) in [
            (When::BestOnly, "best_of_parts", 2, n_parts, [None, Some(of_parts)]),
            (When::BestOnly, "best_logits", 4, 1, [Some(of_parts), Some(best)]),
            (When::Draws, "weigh_parts", 3, n_parts, [Some(best), Some(of_parts)]),
            (When::Draws, "draw", 4, 1, [Some(of_parts), Some(best)]),
        ] {
            self.when = when;
            let constants =
                numbers[..n_constants].iter().map(|(name, value)| (*name, *value as f64)).collect();
            let bound = [(Resource::X, Some(logits)), (Resource::Y, y), (Resource::Result, result)];
            let bound = bound.into_iter().filter_map(|(resource, place)| Some((resource, place?)));
            let buffers = bound.map(|(resource, place)| (resource, self.places.get(place))).collect();
            let rows = Extent::Rows(RowCount::WantedLogits);
            self.push(
                shader,
                constants,
                &[],
                buffers,
                [Extent::Fixed(n_groups as u32), rows, Extent::Fixed(1)],
            );
        }
        self.when = When::Always;
        self.places.release(of_parts);
    }
}
