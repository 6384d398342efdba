//! The served model as the worker needs it: how large a block is, and how many of them fit.

use moex_kernels::engine::{ActivationFormat, EnginePlan};
use moex_kernels::{ExpertShape, quant::WeightFormat};
use moex_protocol::ModelSummary;

/// What follows from the hub's [`ModelSummary`] and this worker's memory budget.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Model {
    pub(super) name: String,
    pub(super) block_bytes: u64,
    pub(super) plan: EnginePlan,
}

impl Model {
    /// The engine that holds as many blocks as `budget_bytes` allows.
    ///
    /// Fails, in words, if the format is unknown, if hub and worker disagree about a block's size, or if not one block fits.
    pub(super) fn new(summary: &ModelSummary, budget_bytes: u64) -> Result<Self, String> {
        let format: WeightFormat = summary.format.parse().map_err(|_| {
            format!("This worker does not know the hub's weight format `{}`.", summary.format)
        })?;
        let shape = ExpertShape { hidden: summary.hidden as usize, inner: summary.inner as usize, format };
        let block_bytes = shape.block_bytes() as u64;
        if block_bytes == 0 || block_bytes != summary.block_bytes {
            return Err(format!(
                "The hub's blocks have {} bytes where this worker computes {block_bytes}: their builds do not match.",
                summary.block_bytes
            ));
        }
        let n_blocks = u64::from(summary.n_layers) * u64::from(summary.n_experts);
        let n_slots = (budget_bytes / block_bytes).min(n_blocks);
        if n_slots == 0 {
            return Err(format!(
                "The memory budget of {budget_bytes} bytes holds no block of {block_bytes} bytes."
            ));
        }
        let n_slots = u32::try_from(n_slots).unwrap_or(u32::MAX);
        let activations = match summary.activations.as_str() {
            "" => ActivationFormat::F32,
            name => name
                .parse()
                .map_err(|_| format!("This worker does not know the hub's activations `{name}`."))?,
        };
        let plan = EnginePlan {
            shape,
            activations,
            n_slots,
            max_rows: summary.max_rows,
            max_pairs: summary.max_pairs,
        };
        Ok(Self { name: summary.name.clone(), block_bytes, plan })
    }
}
