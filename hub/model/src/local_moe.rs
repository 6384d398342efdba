//! The experts on one machine: the oracle, the last replica, and what serves when there is no worker.
//!
//! [`CheckpointExperts`] computes in f32 from the checkpoint's own weights. [`PackedExperts`] computes what workers would,
//! to the bit: from packed blocks, with everything that would cross the wire rounded as the wire rounds it.

use std::sync::{Arc, OnceLock};

use half::f16;
use moex_kernels::{ExpertShape, ShapeError, cpu, engine::Pair};
use moex_protocol::{Block, Dtype, ExpertId, LayerId, tensor};

use super::{
    Routing,
    experts::{Experts, ExpertsError},
    packing::Packing,
    transformer::Model,
};

/// Exact f32, straight from the checkpoint.
pub struct CheckpointExperts {
    model: Arc<Model>,
}

impl CheckpointExperts {
    /// The experts of `model`.
    pub fn new(model: Arc<Model>) -> Self {
        Self { model }
    }
}

impl Experts for CheckpointExperts {
    fn apply(&mut self, layer: usize, rows: &[f32], routing: &Routing) -> Result<Vec<f32>, ExpertsError> {
        let experts = self.model.experts(layer);
        sum_of_experts(rows, self.model.spec().hidden, routing, |expert, pairs| {
            let mut answer = vec![0.0; pairs.len() * self.model.spec().hidden]; // (P, D)
            let expert = experts.get(usize::from(expert)).ok_or_else(|| missing(layer, expert))?;
            cpu::expert_ffn(&expert.view(), rows, pairs, &mut answer);
            Ok(answer)
        })
    }
}

/// Where packed experts lie.
pub trait Blocks: Send {
    /// What a layer's blocks look like.
    ///
    /// # Errors
    /// If the layer has none.
    fn shape(&self, layer: LayerId) -> Result<ExpertShape, String>;

    /// The bytes of a block.
    ///
    /// # Errors
    /// Why there is no such block, or why it cannot be read.
    fn block(&self, block: Block) -> Result<&[u8], String>;

    /// Gives back the memory that files were read into; blocks are there as before.
    fn release(&self) {}
}

impl<B: Blocks + Sync> Blocks for Arc<B> {
    fn shape(&self, layer: LayerId) -> Result<ExpertShape, String> {
        (**self).shape(layer)
    }

    fn block(&self, block: Block) -> Result<&[u8], String> {
        (**self).block(block)
    }

    fn release(&self) {
        (**self).release();
    }
}

/// What workers would answer: rows, gates and answers rounded to what the wire carries, each expert's answer added in f32
/// in ascending expert order.
pub struct PackedExperts<B> {
    blocks: B,
    wire: Dtype,
}

impl<B: Blocks> PackedExperts<B> {
    /// Computes from `blocks`, rounding to `wire`.
    pub fn new(blocks: B, wire: Dtype) -> Self {
        Self { blocks, wire }
    }
}

impl<B: Blocks> Experts for PackedExperts<B> {
    fn apply(&mut self, layer: usize, rows: &[f32], routing: &Routing) -> Result<Vec<f32>, ExpertsError> {
        let layer_id = LayerId(layer as u16);
        let first = routing.experts.first().copied().unwrap_or_default();
        let of_layer = |reason| ExpertsError::Block { layer: layer as u16, expert: first, reason };
        let shape = self.blocks.shape(layer_id).map_err(of_layer)?;
        let rows = through_wire(self.wire, rows, shape.hidden); // (T, D)
        let gates = routing.gates.iter().map(|gate| f16::from_f32(*gate).to_f32()).collect();
        let routing = Routing { gates, ..routing.clone() };
        sum_of_experts(&rows, shape.hidden, &routing, |expert, pairs| {
            let failed = |reason| ExpertsError::Block { layer: layer as u16, expert, reason };
            let block = Block { layer: layer_id, expert: ExpertId(expert) };
            let bytes = self.blocks.block(block).map_err(failed)?;
            let view = shape.view(bytes).map_err(|error: ShapeError| failed(error.to_string()))?;
            let mut answer = vec![0.0; pairs.len() * shape.hidden]; // (P, D)
            cpu::expert_ffn(&view, &rows, pairs, &mut answer);
            Ok(through_wire(self.wire, &answer, shape.hidden))
        })
    }
}

/// The blocks of a model's experts, each packed when it is first asked for and kept.
pub struct MemoryBlocks {
    model: Arc<Model>,
    packing: Packing,
    /// (L, E).
    packed: Vec<Vec<OnceLock<Vec<u8>>>>,
}

impl MemoryBlocks {
    /// Packs the experts of `model`.
    pub fn new(model: Arc<Model>, packing: Packing) -> Self {
        let of_layer = |layer| model.experts(layer).iter().map(|_| OnceLock::new()).collect();
        let packed = (0..model.spec().layers.len()).map(of_layer).collect();
        Self { model, packing, packed }
    }
}

impl Blocks for MemoryBlocks {
    fn shape(&self, layer: LayerId) -> Result<ExpertShape, String> {
        self.packing.shape(&self.model, usize::from(layer.0))
    }

    fn block(&self, block: Block) -> Result<&[u8], String> {
        let shape = self.shape(block.layer)?;
        let (layer, expert) = (usize::from(block.layer.0), usize::from(block.expert.0));
        let slot = self.packed.get(layer).and_then(|layer| layer.get(expert));
        let slot = slot.ok_or_else(|| "the model has no such expert".to_owned())?;
        Ok(slot.get_or_init(|| self.model.experts(layer)[expert].read(|view| shape.convert(view))))
    }
}

/// `compute` for each expert that `routing` names, in ascending order, with its rows in ascending order; the sum (T, D) of
/// the answers (P, D).
fn sum_of_experts(
    rows: &[f32],
    hidden: usize,
    routing: &Routing,
    mut compute: impl FnMut(u16, &[Pair]) -> Result<Vec<f32>, ExpertsError>,
) -> Result<Vec<f32>, ExpertsError> {
    let chosen = routing.experts.chunks_exact(routing.k).zip(routing.gates.chunks_exact(routing.k));
    let mut calls: Vec<(u16, Pair)> = Vec::with_capacity(routing.experts.len());
    for (row, (experts, gates)) in chosen.enumerate() {
        calls.extend(experts.iter().zip(gates).map(|(&e, &gate)| (e, Pair { row: row as u32, gate })));
    }
    calls.sort_by_key(|(expert, pair)| (*expert, pair.row));

    let mut sum = vec![0.0; rows.len()]; // (T, D)
    for call in calls.chunk_by(|a, b| a.0 == b.0) {
        let pairs: Vec<Pair> = call.iter().map(|(_, pair)| *pair).collect();
        let answer = compute(call[0].0, &pairs)?;
        for (pair, answer) in pairs.iter().zip(answer.chunks_exact(hidden)) {
            cpu::add(&mut sum[pair.row as usize * hidden..][..hidden], answer);
        }
    }
    Ok(sum)
}

/// `rows` (N, D) as the other end of the wire reads them.
fn through_wire(wire: Dtype, rows: &[f32], hidden: usize) -> Vec<f32> {
    let mut bytes = Vec::new();
    tensor::encode_rows(wire, rows, hidden, &mut bytes);
    tensor::decode_rows(wire, &bytes, hidden).expect("what was just encoded is whole rows")
}

fn missing(layer: usize, expert: u16) -> ExpertsError {
    let reason = "the model has no such expert".to_owned();
    ExpertsError::Block { layer: layer as u16, expert, reason }
}
