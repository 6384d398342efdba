//! Engines: they hold experts in slots and answer batches.
//!
//! A plan says how much there will ever be; everything is allocated when the engine is made. `load` and `compute` take
//! `&self`, so that several messages can be under way at once.

mod cpu;
#[cfg(feature = "gpu")]
mod gpu;

pub use crate::batch::{Batch, Call, Pair};
pub use cpu::CpuEngine;
#[cfg(feature = "gpu")]
pub use gpu::{GpuDevice, GpuEngine, GpuInfo, GpuSelect, GpuTuning, SelfTestReport};

use crate::{ExpertShape, ShapeError};

/// The most slots a plan may have: far above 94 layers of 128 experts, and small enough to be counted in memory.
pub const MAX_SLOTS: u32 = 1 << 16;
/// The most rows a plan may have, what one frame can carry.
pub const MAX_ROWS: u32 = 65_535;
/// The most pairs a plan may have: every row for sixteen experts.
pub const MAX_PAIRS: u32 = 1 << 20;
/// The most floats of one tensor of a plan, 1 GiB of them.
pub const MAX_TENSOR_VALUES: usize = 1 << 28;

/// Any engine, behind the same methods.
#[derive(Debug)]
pub enum Engine {
    /// Ordinary memory and threads; its futures are ready at once.
    Cpu(CpuEngine),
    /// A GPU, native or in a browser.
    #[cfg(feature = "gpu")]
    Gpu(Box<GpuEngine>),
}

impl Engine {
    /// What it was made for.
    pub fn plan(&self) -> &EnginePlan {
        match self {
            Self::Cpu(engine) => engine.plan(),
            #[cfg(feature = "gpu")]
            Self::Gpu(engine) => engine.plan(),
        }
    }

    /// Puts an expert into a slot, in place of what is there.
    ///
    /// # Errors
    /// If there is no such slot, the block is not of the plan's shape, or the device fails.
    pub async fn load(&self, slot: u32, block: &[u8]) -> Result<(), EngineError> {
        match self {
            Self::Cpu(engine) => engine.load(slot, block),
            #[cfg(feature = "gpu")]
            Self::Gpu(engine) => engine.load(slot, block).await,
        }
    }

    /// (P, D): `gate * expert(row)` for every pair of every call, in order.
    ///
    /// # Errors
    /// If the batch does not fit the plan, names an empty slot, or the device fails.
    pub async fn compute(&self, batch: &Batch) -> Result<Vec<f32>, EngineError> {
        match self {
            Self::Cpu(engine) => engine.compute(batch),
            #[cfg(feature = "gpu")]
            Self::Gpu(engine) => engine.compute(batch).await,
        }
    }

    /// GPU buffers made so far: none on a CPU, and none after an engine is made.
    pub fn buffers_created(&self) -> u64 {
        match self {
            Self::Cpu(_) => 0,
            #[cfg(feature = "gpu")]
            Self::Gpu(engine) => engine.buffers_created(),
        }
    }
}

/// How much an engine will ever hold at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnginePlan {
    /// What every expert looks like.
    pub shape: ExpertShape,
    /// Experts it can hold.
    pub n_slots: u32,
    /// R, the most rows of one batch.
    pub max_rows: u32,
    /// P, the most pairs of one batch.
    pub max_pairs: u32,
}

impl EnginePlan {
    /// Whether its numbers are within the limits of this module.
    ///
    /// # Errors
    /// [`EngineError::Plan`] naming the first that is not.
    pub fn check(&self) -> Result<(), EngineError> {
        let ExpertShape { hidden, inner, .. } = self.shape;
        let widest = hidden.max(inner).saturating_mul(self.max_rows.max(self.max_pairs) as usize);
        let refused = [
            (hidden == 0 || inner == 0, "an expert without width"),
            (self.shape.block_bytes() > 1 << 30, "an expert of more than 1 GiB"),
            (self.n_slots > MAX_SLOTS, "more slots than 65,536"),
            (self.max_rows > MAX_ROWS, "more rows than 65,535"),
            (self.max_pairs > MAX_PAIRS, "more pairs than 1,048,576"),
            (widest > MAX_TENSOR_VALUES, "intermediates of more than 1 GiB"),
        ];
        match refused.into_iter().find(|(refused, _)| *refused) {
            Some((_, reason)) => Err(EngineError::Plan(reason.to_owned())),
            None => Ok(()),
        }
    }
}

/// Why an engine did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The plan cannot be made here at all.
    #[error("this plan cannot be made: {0}")]
    Plan(String),
    /// The bytes are no expert of the plan's shape.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A slot the plan does not have.
    #[error("slot {slot} of {n_slots}")]
    NoSuchSlot {
        /// Asked for.
        slot: u32,
        /// Planned.
        n_slots: u32,
    },
    /// A slot that nothing was loaded into.
    #[error("slot {0} holds no expert")]
    EmptySlot(u32),
    /// A pair names a row that the batch does not have.
    #[error("row {row} of {rows}")]
    NoSuchRow {
        /// Asked for.
        row: u32,
        /// In the batch.
        rows: usize,
    },
    /// The batch's values are not whole rows.
    #[error("{values} values are no rows of {hidden}")]
    RaggedRows {
        /// In the batch.
        values: usize,
        /// D.
        hidden: usize,
    },
    /// More rows than planned.
    #[error("{rows} rows, planned for {max_rows}")]
    TooManyRows {
        /// In the batch.
        rows: usize,
        /// Planned.
        max_rows: usize,
    },
    /// More pairs than planned.
    #[error("{pairs} pairs, planned for {max_pairs}")]
    TooManyPairs {
        /// In the batch.
        pairs: usize,
        /// Planned.
        max_pairs: usize,
    },
    /// Another load of the same slot began before this one was done.
    #[error("slot {0} is being loaded with something else")]
    Superseded(u32),
    /// There is no such GPU, or it cannot be opened.
    #[error("no GPU: {0}")]
    NoAdapter(String),
    /// The device has not the memory for the plan.
    #[error("the GPU has too little memory for this plan")]
    OutOfMemory,
    /// The device is gone; nothing on it can be used again.
    #[error("the GPU was lost: {0}")]
    DeviceLost(String),
    /// The device refused what it was given, or failed to give what it should.
    #[error("the GPU failed: {0}")]
    Device(String),
}
