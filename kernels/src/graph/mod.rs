//! A forward pass as a list of operations over logical tensors: recorded once, when a model is loaded, then compiled for an
//! engine and run for every step.
//!
//! [`Graph`] is the list. `fuse` joins operations that one kernel can do, `places` gives every intermediate its place in one
//! arena, and [`Program`] is what an engine runs: the exact one, unfused, in f32 (the oracle), or the one on vector
//! instructions. A run pauses where experts may be computed elsewhere. It is a list of some twenty operations, not a
//! compiler.

mod cpu;
mod device;
mod fuse;
mod kv;
mod op;
mod places;
mod program;
mod recorder;
mod run;
mod span;
#[cfg(test)]
mod tests;
mod weights;
mod workspace;

#[cfg(all(feature = "gpu", not(target_arch = "wasm32")))]
pub(crate) use cpu::Prepared;
pub use device::{
    DeviceError, DeviceOutput, DevicePages, DevicePass, ExpertsElsewhere, LayerRouting, MAX_BEST,
    PackedExperts,
};
pub use kv::{Block, KvLayout, KvPool, KvTable, PageId};
pub use op::{Activation, Attention, Columns, DeltaNet, Heads, Op, Projection, RouterKind, Stage};
pub use places::PlanBytes;
pub use program::Program;
pub use recorder::Recorder;
pub use run::{ExpertsCall, ExpertsWanted, Pause};
pub use span::{Span, WantedLogits};
pub use weights::{MatrixSource, Rounding};
pub use workspace::Workspace;

use std::sync::Arc;

use crate::cpu::Rope;

/// An intermediate: a name and a shape, no storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// What it is, for people.
    pub name: &'static str,
    /// How many rows it has in a step.
    pub rows: RowCount,
    /// Its columns.
    pub width: usize,
}

/// How many rows a tensor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowCount {
    /// T, those of the step.
    Step,
    /// W, those of the step whose logits are wanted.
    WantedLogits,
}

/// A tensor of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub(crate) u32);

/// A matrix of a graph's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixId(pub(crate) u32);

/// A vector of a graph's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VectorId(pub(crate) u32);

/// One of a graph's tables of rotations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RopeId(pub(crate) u32);

/// A recorded forward pass.
#[derive(Debug, Default)]
pub struct Graph {
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) ops: Vec<Op>,
    pub(crate) matrices: Vec<(Arc<dyn MatrixSource>, Rounding)>,
    pub(crate) vectors: Vec<Vec<f32>>,
    pub(crate) ropes: Vec<Rope>,
    /// The tensor that a step ends with.
    pub(crate) logits: Option<TensorId>,
}

impl Graph {
    /// The operations, in order.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// A tensor's name and shape.
    ///
    /// # Panics
    /// If it is of another graph.
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.0 as usize]
    }

    /// Bytes of the intermediates of a step of `n_rows`, `n_wanted` of which want logits, with operations as recorded.
    pub fn recorded_bytes(&self, n_rows: usize, n_wanted: usize) -> PlanBytes {
        places::Places::new(self, &self.ops).bytes(n_rows, n_wanted)
    }

    /// [`Self::recorded_bytes`] with operations joined as for vector instructions.
    pub fn joined_bytes(&self, n_rows: usize, n_wanted: usize) -> PlanBytes {
        places::Places::new(self, &fuse::fuse(self)).bytes(n_rows, n_wanted)
    }

    pub(crate) fn vector(&self, id: VectorId) -> &[f32] {
        &self.vectors[id.0 as usize]
    }

    pub(crate) fn width(&self, id: TensorId) -> usize {
        self.tensor(id).width
    }
}
