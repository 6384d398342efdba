//! Engines: they hold experts in slots and answer batches.
//!
//! A plan gives the largest size of everything; an engine allocates all of it when it is made. `load` and `compute`
//! take `&self`, so that several messages can be under way at once.

mod cpu;
#[cfg(feature = "gpu")]
mod gpu;
mod panels;
mod stage;

pub use crate::batch::{Batch, Call, Computed, Halves, Output, Pair, Wanted};
pub use cpu::CpuEngine;
#[cfg(all(feature = "gpu", not(target_arch = "wasm32")))]
pub use gpu::{DispatchTime, GpuClock, GpuPass, KeepAwake, ResidentExperts, Stamps, StepTime};
#[cfg(feature = "gpu")]
pub use gpu::{GpuDevice, GpuEngine, GpuInfo, GpuSelect, GpuTuning, SelfTestReport};
pub use stage::Stage;

use std::{fmt, str::FromStr, time::Duration};

use crate::{ExpertFormat, ExpertShapes, ShapeError};

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
    /// The plan that it was made for.
    pub fn plan(&self) -> &EnginePlan {
        match self {
            Self::Cpu(engine) => engine.plan(),
            #[cfg(feature = "gpu")]
            Self::Gpu(engine) => engine.plan(),
        }
    }

    /// Loads an expert of this format into a slot, replacing what is there.
    ///
    /// # Errors
    /// If there is no such slot, the block is of no shape of the plan, or the device fails.
    pub async fn load(&self, slot: u32, format: ExpertFormat, block: &[u8]) -> Result<(), EngineError> {
        match self {
            Self::Cpu(engine) => engine.load(slot, format, block),
            #[cfg(feature = "gpu")]
            Self::Gpu(engine) => engine.load(slot, format, block).await,
        }
    }

    /// What is wanted of a batch: `gate * expert(row)` for every pair of every call, in order, and more.
    ///
    /// # Errors
    /// If the batch does not fit the plan, names an empty slot, or the device fails.
    pub async fn answer(&self, batch: &Batch, wanted: Wanted) -> Result<Output, EngineError> {
        match self {
            Self::Cpu(engine) if wanted.products => Ok(engine.compute_with_products(batch)?.into()),
            Self::Cpu(engine) => Ok(engine.compute(batch)?.into()),
            #[cfg(feature = "gpu")]
            Self::Gpu(engine) => engine.answer(batch, wanted).await,
        }
    }

    /// The median time of waiting for the device, of which a CPU needs none. `now` is the caller's clock.
    ///
    /// # Errors
    /// If the device fails.
    #[cfg_attr(not(feature = "gpu"), expect(unused_variables, reason = "only a GPU is waited for"))]
    pub async fn measure_sync(&self, now: &dyn Fn() -> Duration) -> Result<Duration, EngineError> {
        match self {
            Self::Cpu(_) => Ok(Duration::ZERO),
            #[cfg(feature = "gpu")]
            Self::Gpu(engine) => engine.measure_sync(now).await,
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

/// How rows are represented when weights are multiplied with them.
///
/// This is a property of the served model: everyone who computes its experts uses the same representation, so that a
/// text does not depend on who computed it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ActivationFormat {
    /// Unchanged: the definition.
    #[default]
    F32,
    /// Rounded to blocks of int8 where weights are integers ([`crate::quant::Activations`]): several times as fast on a
    /// CPU, at an error of some 1e-4 of the result's power. With float weights nothing is rounded, but sums run in another
    /// order than [`Self::F32`]'s.
    Int8,
}

impl ActivationFormat {
    /// The name used in flags and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Int8 => "int8",
        }
    }
}

impl fmt::Display for ActivationFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ActivationFormat {
    type Err = UnknownActivations;

    fn from_str(name: &str) -> Result<Self, UnknownActivations> {
        let known = [Self::F32, Self::Int8].into_iter().find(|format| format.name() == name);
        known.ok_or_else(|| UnknownActivations(name.chars().take(32).collect()))
    }
}

/// No format of activations has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("activations are f32 or int8, not {0:?}")]
pub struct UnknownActivations(pub String);

/// The most that an engine holds at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnginePlan {
    /// The shapes of its experts.
    pub shapes: ExpertShapes,
    /// How rows are represented when weights are multiplied with them.
    pub activations: ActivationFormat,
    /// Experts it can hold.
    pub n_slots: u32,
    /// R, the most rows of one batch.
    pub max_rows: u32,
    /// P, the most pairs of one batch.
    pub max_pairs: u32,
}

impl EnginePlan {
    /// Checks that its numbers are within the limits of this module.
    ///
    /// # Errors
    /// [`EngineError::Plan`] naming the first that is not.
    pub fn check(&self) -> Result<(), EngineError> {
        let ExpertShapes { hidden, inner, .. } = self.shapes;
        let widest = hidden.max(inner).saturating_mul(self.max_rows.max(self.max_pairs) as usize);
        let refused = [
            (hidden == 0 || inner == 0, "an expert without width"),
            (self.shapes.block_bytes() > 1 << 30, "an expert of more than 1 GiB"),
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

/// Why an engine refused or failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The plan cannot be made here at all.
    #[error("this plan cannot be made: {0}")]
    Plan(String),
    /// The bytes are no expert of the shape they are said to have.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A format that the plan does not have.
    #[error("the plan has no experts in {0}")]
    NoSuchFormat(ExpertFormat),
    /// A slot the plan does not have.
    #[error("there is no slot {slot}, only {n_slots} slots")]
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
    #[error("there is no row {row}, only {rows} rows")]
    NoSuchRow {
        /// Asked for.
        row: u32,
        /// In the batch.
        rows: usize,
    },
    /// The batch's values are not whole rows.
    #[error("{values} values are not whole rows of {hidden}")]
    RaggedRows {
        /// In the batch.
        values: usize,
        /// D.
        hidden: usize,
    },
    /// More rows than planned.
    #[error("the batch has {rows} rows, but the plan allows {max_rows}")]
    TooManyRows {
        /// In the batch.
        rows: usize,
        /// Planned.
        max_rows: usize,
    },
    /// More pairs than planned.
    #[error("the batch has {pairs} pairs, but the plan allows {max_pairs}")]
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
    /// The system has no memory for an expert.
    #[error("there is no memory for this expert")]
    NoMemory,
    /// The device has too little memory for the plan. The join page knows it by these words.
    #[error("the GPU has too little memory for this plan")]
    OutOfMemory,
    /// The device is gone; nothing on it can be used again. The join page knows it by these words.
    #[error("the GPU was lost: {0}")]
    DeviceLost(String),
    /// The device refused its input, or failed to give a result.
    #[error("the GPU failed: {0}")]
    Device(String),
}
