//! Records a graph, one operation after another.

use std::sync::Arc;

use super::{
    Activation, Attention, Columns, DeltaNet, Graph, MatrixId, MatrixSource, Op, Projection, RopeId,
    Rounding, RouterKind, RowCount, Stage, Tensor, TensorId, VectorId,
};
use crate::cpu::{Renormalise, Rope, RopePairs, RopePlace};

/// A graph that is being recorded.
#[derive(Debug, Default)]
pub struct Recorder {
    graph: Graph,
}

impl Recorder {
    /// Returns the graph, whose steps end with `logits`.
    pub fn finish(self, logits: TensorId) -> Graph {
        Graph { logits: Some(logits), ..self.graph }
    }

    /// A matrix of weights.
    pub fn matrix(&mut self, source: Arc<dyn MatrixSource>, rounding: Rounding) -> MatrixId {
        self.graph.matrices.push((source, rounding));
        MatrixId(self.graph.matrices.len() as u32 - 1)
    }

    /// A vector of weights.
    pub fn vector(&mut self, values: Vec<f32>) -> VectorId {
        self.graph.vectors.push(values);
        VectorId(self.graph.vectors.len() as u32 - 1)
    }

    /// Adds rotations; equal ones are stored once.
    pub fn rope(&mut self, rope: Rope) -> RopeId {
        let ropes = &mut self.graph.ropes;
        let known = ropes.iter().position(|known| *known == rope).unwrap_or_else(|| {
            ropes.push(rope);
            ropes.len() - 1
        });
        RopeId(known as u32)
    }

    /// The tensor's columns.
    pub fn width(&self, x: TensorId) -> usize {
        self.graph.width(x)
    }

    /// (T, D): the embedding's rows of the step's tokens.
    pub fn embed(&mut self, table: MatrixId) -> TensorId {
        let width = self.graph.matrices[table.0 as usize].0.shape().1;
        let out = self.tensor("embedding", RowCount::Step, width);
        self.push(Op::Embed { table, out });
        out
    }

    /// `x` times a number.
    pub fn scale(&mut self, x: TensorId, by: f32) {
        self.push(Op::Scale { x, by });
    }

    /// RMSNorm of the rows of `x`.
    pub fn norm(&mut self, x: TensorId, weight: VectorId, eps: f32) -> TensorId {
        let out = self.like("normed", x, self.width(x));
        self.push(Op::Norm { x, weight, eps, out });
        out
    }

    /// RMSNorm of each part of a row that is as long as the weights.
    pub fn norm_in_place(&mut self, x: TensorId, weight: VectorId, eps: f32) {
        self.push(Op::NormInPlace { x, weight, eps });
    }

    /// A matrix times the rows of `x`.
    pub fn linear(
        &mut self,
        name: &'static str,
        x: TensorId,
        (matrix, bias): (MatrixId, Option<VectorId>),
    ) -> TensorId {
        let out = self.like(name, x, self.graph.matrices[matrix.0 as usize].0.shape().0);
        self.push(Op::Linear { x, projection: Projection { matrix, bias, out } });
        out
    }

    /// Cuts values to plus and minus a limit.
    pub fn clip(&mut self, x: TensorId, limit: f32) {
        self.push(Op::Clip { x, limit });
    }

    /// Rotates heads of `head_width` columns.
    pub fn rotate(&mut self, x: TensorId, head_width: usize, rope: RopeId, columns: (RopePairs, RopePlace)) {
        self.push(Op::Rope { x, head_width, rope, columns });
    }

    /// Writes keys and values into the cache.
    pub fn cache_write(&mut self, slot: usize, k: TensorId, v: TensorId) {
        self.push(Op::CacheWrite { slot, k, v });
    }

    /// Attention over the cache.
    pub fn attend(&mut self, slot: usize, q: TensorId, attention: Attention) -> TensorId {
        let out = self.like("attention", q, self.width(q));
        self.push(Op::Attend { slot, q, attention, out });
        out
    }

    /// A step of a gated delta net.
    pub fn delta_net(&mut self, state: usize, qkvz: TensorId, ba: TensorId, net: DeltaNet) -> TensorId {
        let out = self.like("delta net", qkvz, net.shape.out_width());
        self.push(Op::DeltaNet { state, qkvz, ba, net, out });
        out
    }

    /// A tensor with as many rows as `x`, to be filled by [`Self::copy_columns`].
    pub fn like(&mut self, name: &'static str, x: TensorId, width: usize) -> TensorId {
        let rows = self.graph.tensor(x).rows;
        self.tensor(name, rows, width)
    }

    /// Copies columns of `x` to columns of `out`.
    pub fn copy_columns(&mut self, x: TensorId, columns: Columns, out: TensorId) {
        self.push(Op::CopyColumns { x, columns, out });
    }

    /// Sets `out` to zeros.
    pub fn zero(&mut self, out: TensorId) {
        self.push(Op::Zero { out });
    }

    /// `gate = activation(gate) * up`.
    pub fn activate(&mut self, gate: TensorId, up: TensorId, activation: Activation) {
        self.push(Op::Activate { gate, up, activation });
    }

    /// `x` times the sigmoid of `gates`.
    pub fn sigmoid_mul(&mut self, x: TensorId, gates: TensorId) {
        self.push(Op::SigmoidMul { x, gates });
    }

    /// Chooses experts and gates: the step's routing.
    pub fn route(
        &mut self,
        logits: TensorId,
        n_chosen: usize,
        router: RouterKind,
        (renormalise, gate_scale): (Renormalise, f32),
    ) {
        self.push(Op::Route { logits, n_chosen, router, renormalise, gate_scale });
    }

    /// The chosen experts' gated sum.
    pub fn experts(&mut self, layer: usize, x: TensorId) -> TensorId {
        let out = self.like("experts", x, self.width(x));
        self.push(Op::Experts { layer, x, out });
        out
    }

    /// `x += y`.
    pub fn add(&mut self, x: TensorId, y: TensorId) {
        self.push(Op::Add { x, y });
    }

    /// Keeps the rows whose logits are wanted.
    pub fn keep_wanted(&mut self, x: TensorId) -> TensorId {
        let out = self.tensor("wanted", RowCount::WantedLogits, self.width(x));
        self.push(Op::KeepWanted { x, out });
        out
    }

    /// `x = cap * tanh(x / cap)`.
    pub fn soft_cap(&mut self, x: TensorId, cap: f32) {
        self.push(Op::SoftCap { x, cap });
    }

    /// Marks the end of a part of the step.
    pub fn done(&mut self, stage: Stage) {
        self.push(Op::Done(stage));
    }

    fn tensor(&mut self, name: &'static str, rows: RowCount, width: usize) -> TensorId {
        self.graph.tensors.push(Tensor { name, rows, width });
        TensorId(self.graph.tensors.len() as u32 - 1)
    }

    fn push(&mut self, op: Op) {
        self.graph.ops.push(op);
    }
}
