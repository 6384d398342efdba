//! What a forward pass on another device looks like from here: it runs whole steps, asks for the experts that it does not hold, and
//! keeps keys and values in its own memory.

use std::{any::Any, fmt};

use super::{KvLayout, KvPool, PlanBytes, Span};
use crate::{
    cpu::OutOfVocabulary,
    simd::{Draw, PackedExpertShape},
};

/// A forward pass in a device's memory.
pub trait DevicePass: fmt::Debug + Send + Sync {
    /// A pool of pages in the device's memory: as many as fit into `budget_bytes` and that memory, at least one.
    fn kv_pool(&self, layout: KvLayout, budget_bytes: usize, n_sequences: usize) -> KvPool;

    /// Computes the rows of a step; the logits (W, V) of those that want them and the choices of routers whose experts it holds go
    /// to `out`. The others' experts are computed by `elsewhere`.
    ///
    /// # Errors
    /// [`DeviceError`]; the spans' rows then count as not cached.
    ///
    /// # Panics
    /// If `kv` is not of [`Self::kv_pool`], or a span has no room reserved in it.
    fn step(
        &self,
        spans: &[Span<'_>],
        kv: &KvPool,
        elsewhere: &mut ExpertsElsewhere<'_>,
        out: &mut DeviceOutput,
    ) -> Result<(), DeviceError>;

    /// Rows of a step that keep all of it busy.
    fn rows_at_once(&self) -> usize;

    /// Dispatches that a step of one row takes.
    fn n_dispatches(&self) -> usize;

    /// Bytes of its weights.
    fn weight_bytes(&self) -> u64;

    /// Bytes of its intermediates.
    fn plan_bytes(&self) -> PlanBytes;
}

/// Computes the experts of a layer that a device does not hold: from what was chosen for rows (T, D), their gated sum (T, D).
pub type ExpertsElsewhere<'a> = dyn FnMut(&LayerRouting, &[f32], &mut [f32]) -> Result<(), DeviceError> + 'a;

/// Pages of keys and values in a device's memory.
pub trait DevicePages: Any + fmt::Debug + Send + Sync {
    /// Copies a page, after all steps that were begun before.
    fn copy(&self, from: u32, to: u32);
}

/// Experts in panels, to be copied into a device's memory.
pub trait PackedExperts: Sync {
    /// How many a layer has; none in a dense one.
    fn n_experts(&self, layer: usize) -> usize;

    /// The shape of a layer's experts, if it has any.
    fn shape(&self, layer: usize) -> Option<PackedExpertShape>;

    /// Replaces `panels` by an expert's.
    ///
    /// # Errors
    /// If there is no such expert, or it cannot be read.
    fn copy(&self, layer: usize, expert: usize, panels: &mut Vec<u8>) -> Result<(), String>;
}

/// The most of a row's best logits that a device finds.
pub const MAX_BEST: usize = 64;

/// What a step on a device gives, in memory that the next one reuses.
#[derive(Debug, Default)]
pub struct DeviceOutput {
    /// How many of each row's best logits are enough, up to [`MAX_BEST`]; 0 if all are wanted. Whoever asks for a step sets it.
    pub n_best: usize,
    /// (W), how a token is drawn from all logits of each row, beside its best; empty if none is, as where all are wanted. Whoever asks
    /// for a step sets it.
    pub draws: Vec<Draw>,
    /// (W, n_best), tokens and their logits: the largest first, of equals the lower token; minus infinity where a row has fewer
    /// numbers.
    pub best: Vec<(u32, f32)>,
    /// (W), the tokens drawn, `u32::MAX` where none is; empty without draws.
    pub drawn: Vec<u32>,
    /// (W, V), if all are wanted.
    pub logits: Vec<f32>,
    /// Of each layer whose experts the device holds.
    pub routing: Vec<LayerRouting>,
}

/// A router's choices in a step.
#[derive(Clone, Debug, Default)]
pub struct LayerRouting {
    /// The model's layer.
    pub layer: usize,
    /// K.
    pub n_chosen: usize,
    /// (T, K), the expert with the largest gate first.
    pub experts: Vec<u16>,
    /// (T, K).
    pub gates: Vec<f32>,
}

/// Why a step on a device failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// A token outside the vocabulary.
    #[error(transparent)]
    Vocabulary(#[from] OutOfVocabulary),
    /// Experts that the device does not hold were not computed; whoever was to compute them knows why.
    #[error("the experts that the device does not hold were not computed")]
    Experts,
    /// The device's own failure, in one sentence.
    #[error("{0}")]
    Failed(String),
}
