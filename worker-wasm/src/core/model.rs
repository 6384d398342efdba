//! The served model as the worker needs it: the size of a block, and how many blocks fit.

use moex_kernels::engine::{ActivationFormat, EnginePlan};
use moex_kernels::{ExpertFormat, ExpertShape, ExpertShapes};
use moex_protocol::{LayerId, ModelSummary};

/// The values that follow from the hub's [`ModelSummary`] and this worker's memory budget.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Model {
    pub(super) name: String,
    /// Bytes of the largest block.
    pub(super) block_bytes: u64,
    pub(super) plan: EnginePlan,
    /// The format of each layer; empty if all have the plan's first one.
    layer_formats: Vec<ExpertFormat>,
}

impl Model {
    /// The engine that holds as many blocks as `budget_bytes` allows.
    ///
    /// Fails, with a sentence, if the format is unknown, if hub and worker disagree about a block's size, or if not one
    /// block fits.
    pub(super) fn new(summary: &ModelSummary, budget_bytes: u64) -> Result<Self, String> {
        let parse = |name: &String| -> Result<ExpertFormat, String> {
            name.parse().map_err(|_| format!("This worker does not know the hub's weight format `{name}`."))
        };
        let layer_formats =
            summary.layer_formats.iter().map(parse).collect::<Result<Vec<ExpertFormat>, String>>()?;
        if !layer_formats.is_empty() && layer_formats.len() != summary.n_layers as usize {
            return Err(format!(
                "The hub names the formats of {} layers, and the model has {}.",
                layer_formats.len(),
                summary.n_layers
            ));
        }
        let (hidden, inner) = (summary.hidden as usize, summary.inner as usize);
        let shapes = ExpertShapes::new(hidden, inner, parse(&summary.format)?, layer_formats.iter().copied())
            .map_err(|error| format!("This worker cannot hold the hub's experts: {error}."))?;
        let block_bytes = shapes.block_bytes() as u64;
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
            shapes,
            activations,
            n_slots,
            max_rows: summary.max_rows,
            max_pairs: summary.max_pairs,
        };
        Ok(Self { name: summary.name.clone(), block_bytes, plan, layer_formats })
    }

    /// The shape of a block of this layer; for a layer that the model does not have, the shape with its first format.
    pub(super) fn shape(&self, layer: LayerId) -> ExpertShape {
        let format = self.layer_formats.get(usize::from(layer.0)).copied();
        let mut shapes = self.plan.shapes.iter();
        let first = shapes.next().expect("there is at least one");
        shapes.find(|shape| Some(shape.format) == format).unwrap_or(first)
    }
}
