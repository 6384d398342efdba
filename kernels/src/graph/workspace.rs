//! The memory of a step: its intermediates, its rows, and the working memory of kernels.

use std::fmt;

use super::{RowCount, Stage};
use crate::{
    batch::Pair,
    cpu::RopeTable,
    quant::Activations,
    simd::{AttentionScratch, ExpertScratch},
};

/// The memory of a step, reused by the next: it grows to the largest step, then allocates no more. One workspace serves
/// any number of steps of one program, one after another.
#[derive(Default)]
pub struct Workspace {
    /// Intermediates of the step's rows, and of the wanted ones.
    pub(super) arenas: [Vec<f32>; 2],
    pub(super) rows: Rows,
    pub(super) routing: Routing,
    pub(super) scratch: Scratch,
    /// The index of the next operation.
    pub(super) next: usize,
    observer: Option<Box<dyn FnMut(Stage) + Send>>,
}

/// The rows of a step.
#[derive(Default)]
pub(super) struct Rows {
    /// (T).
    pub(super) ids: Vec<u32>,
    /// The sequence and the position of each (T).
    pub(super) places: Vec<(usize, usize)>,
    /// Those whose logits are wanted (W), ascending.
    pub(super) wanted: Vec<usize>,
    /// The rotations of each row, one table for each of the program's ropes.
    pub(super) ropes: Vec<RopeTable>,
}

impl Rows {
    /// T or W.
    pub(super) fn count(&self, rows: RowCount) -> usize {
        match rows {
            RowCount::Step => self.places.len(),
            RowCount::WantedLogits => self.wanted.len(),
        }
    }
}

/// The router's last result.
#[derive(Default)]
pub(super) struct Routing {
    /// K.
    pub(super) n_chosen: usize,
    /// (T, K).
    pub(super) experts: Vec<u16>,
    /// (T, K).
    pub(super) gates: Vec<f32>,
}

/// Working memory of kernels.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) int8: Activations,
    pub(super) attention: AttentionScratch,
    pub(super) mlp: ExpertScratch,
    /// Each row once (T).
    pub(super) all_rows: Vec<Pair>,
}

impl Workspace {
    /// Calls `observer` after every stage; for callers that have a clock.
    pub fn observe(&mut self, observer: impl FnMut(Stage) + Send + 'static) {
        self.observer = Some(Box::new(observer));
    }

    /// The index of the next operation.
    pub fn next_op(&self) -> usize {
        self.next
    }

    pub(super) fn done(&mut self, stage: Stage) {
        if let Some(observer) = &mut self.observer {
            observer(stage);
        }
    }
}

impl fmt::Debug for Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workspace").field("rows", &self.rows.places.len()).finish_non_exhaustive()
    }
}
