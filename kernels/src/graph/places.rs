//! Gives every intermediate its place in one arena: greedily by size, the widest first, each at the lowest place that
//! is free during its lifetime.
//!
//! A place is a column: tensor `x` of a step of T rows lies at `place * T`. So one plan serves steps of any length.
//! Tensors of the wanted rows have an arena of their own, since W does not follow from T.

use std::ops::Range;

use super::{Graph, Op, RowCount, TensorId};

/// The places of a list of operations.
#[derive(Clone, Debug)]
pub(super) struct Places {
    /// The first column of each tensor, in the arena of its rows.
    starts: Vec<usize>,
    /// Columns of the arenas of the step's and of the wanted rows.
    pub(super) columns: [usize; 2],
    /// Columns of both arenas if no two tensors shared a place.
    naive_columns: [usize; 2],
}

/// The memory of a step's intermediates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanBytes {
    /// As placed.
    pub planned: usize,
    /// If every tensor had a place of its own.
    pub naive: usize,
}

impl Places {
    pub(super) fn new(graph: &Graph, ops: &[Op]) -> Self {
        let lifetimes = lifetimes(graph.tensors.len(), ops);
        let mut places =
            Self { starts: vec![0; graph.tensors.len()], columns: [0; 2], naive_columns: [0; 2] };
        for rows in [RowCount::Step, RowCount::WantedLogits] {
            let living = |id: &usize| graph.tensors[*id].rows == rows && lifetimes[*id].end > 0;
            let mut widest_first: Vec<usize> = (0..graph.tensors.len()).filter(living).collect();
            widest_first.sort_by_key(|id| std::cmp::Reverse(graph.tensors[*id].width));
            let mut placed: Vec<usize> = Vec::with_capacity(widest_first.len());
            for id in widest_first {
                let width = graph.tensors[id].width;
                let overlaps = |other: &&usize| {
                    let (a, b) = (&lifetimes[id], &lifetimes[**other]);
                    a.start < b.end && b.start < a.end
                };
                let mut taken: Vec<Range<usize>> = placed
                    .iter()
                    .filter(overlaps)
                    .map(|other| places.starts[*other]..places.starts[*other] + graph.tensors[*other].width)
                    .collect();
                taken.sort_by_key(|range| range.start);
                let mut start = 0;
                for range in taken {
                    if range.start >= start + width {
                        break;
                    }
                    start = start.max(range.end);
                }
                places.starts[id] = start;
                let arena = &mut places.columns[rows as usize];
                *arena = (*arena).max(start + width);
                places.naive_columns[rows as usize] += width;
                placed.push(id);
            }
        }
        places
    }

    /// The range of a tensor in the arena of its rows, of which there are `n_rows`.
    pub(super) fn range(&self, graph: &Graph, id: TensorId, n_rows: usize) -> Range<usize> {
        let start = self.starts[id.0 as usize] * n_rows;
        start..start + graph.width(id) * n_rows
    }

    /// Bytes for a step of `n_rows` rows, `n_wanted` of which want logits.
    pub(super) fn bytes(&self, n_rows: usize, n_wanted: usize) -> PlanBytes {
        let bytes = |[step, wanted]: [usize; 2]| (step * n_rows + wanted * n_wanted) * size_of::<f32>();
        PlanBytes { planned: bytes(self.columns), naive: bytes(self.naive_columns) }
    }
}

/// Each tensor's lifetime: from the first operation that names it to just after the last; empty if none names it.
fn lifetimes(n_tensors: usize, ops: &[Op]) -> Vec<Range<usize>> {
    let mut lifetimes = vec![0..0; n_tensors];
    for (index, op) in ops.iter().enumerate() {
        op.tensors(|TensorId(id)| {
            let lifetime = &mut lifetimes[id as usize];
            if lifetime.end == 0 {
                lifetime.start = index;
            }
            lifetime.end = index + 1;
        });
    }
    lifetimes
}
