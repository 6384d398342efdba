//! The model that a simulated swarm serves: its sizes, and its weights for exact arithmetic.

use std::collections::BTreeMap;

use half::f16;
use moex_kernels::{ExpertFormat, ExpertShape, cpu};
use moex_protocol::{
    Answer, AnswerPart, Block, BlockSource, Call, Dispatch, Dtype, ExpertId, Form, LayerId, ModelSummary,
    Pair, Products, Reply, tensor,
};
use moex_swarm::{BlockCatalog, LayerJob};
use moex_worker::core::answer::{self, ComputeError};

use crate::random::Random;

/// Sizes, and blocks in ascending order; there are no blocks if nothing is computed.
#[derive(Debug)]
pub struct Model {
    summary: ModelSummary,
    shape: ExpertShape,
    blocks: Vec<Vec<u8>>,
}

/// The sizes of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// D, F and the format of the experts.
    pub shape: ExpertShape,
    /// Layers, all of them sparse.
    pub n_layers: u16,
    /// E, experts of a layer.
    pub n_experts: u16,
    /// K, experts of a row.
    pub k: u16,
    /// Rows of one step.
    pub max_rows: u32,
}

impl Model {
    /// A model of these sizes without weights.
    pub fn of_sizes(sizes: &Sizes) -> Self {
        let Sizes { shape, n_layers, n_experts, k, max_rows } = *sizes;
        let summary = ModelSummary {
            name: "simulated".to_owned(),
            hidden: shape.hidden as u32,
            inner: shape.inner as u32,
            n_layers: n_layers.into(),
            n_experts: n_experts.into(),
            n_experts_per_token: k.into(),
            format: shape.format.to_string(),
            layer_formats: Vec::new(),
            activations: "int8".to_owned(),
            block_bytes: shape.block_bytes() as u64,
            // A plain dispatch carries one row for each of its pairs.
            max_rows: max_rows * u32::from(k),
            max_pairs: max_rows * u32::from(k),
        };
        Self { summary, shape, blocks: Vec::new() }
    }

    /// A model of these sizes with weights drawn from `random`.
    pub fn with_weights(sizes: &Sizes, random: &mut Random) -> Self {
        let mut model = Self::of_sizes(sizes);
        // What is computed is computed by the naive kernels.
        "f32".clone_into(&mut model.summary.activations);
        let ExpertShape { hidden, inner, .. } = model.shape;
        let mut matrix =
            || -> Vec<f32> { (0..hidden * inner).map(|_| (random.uniform() as f32 - 0.5) * 0.5).collect() };
        let n_blocks = usize::from(sizes.n_layers) * usize::from(sizes.n_experts);
        model.blocks = (0..n_blocks).map(|_| model.shape.pack(&matrix(), &matrix(), &matrix())).collect();
        model
    }

    /// The summary that the hub sends to workers.
    pub fn summary(&self) -> &ModelSummary {
        &self.summary
    }

    /// The format of every block.
    pub(super) fn format(&self) -> ExpertFormat {
        self.shape.format
    }

    /// All blocks.
    pub fn catalog(&self) -> BlockCatalog {
        let block_bytes = self.summary.block_bytes;
        let blocks = (0..self.summary.n_layers).flat_map(|layer| {
            (0..self.summary.n_experts)
                .map(move |expert| Block { layer: LayerId(layer as u16), expert: ExpertId(expert as u16) })
        });
        let source = |block: Block| BlockSource {
            block,
            url: String::new(),
            start: 0,
            end: block_bytes,
            blake3: block.to_string(),
        };
        BlockCatalog::new(blocks.map(source).collect(), block_bytes)
    }

    /// A block's bytes; empty if nothing is computed.
    pub(super) fn block(&self, block: Block) -> Option<&[u8]> {
        let (layer, expert) = (u32::from(block.layer.0), u32::from(block.expert.0));
        if layer >= self.summary.n_layers || expert >= self.summary.n_experts {
            return None;
        }
        Some(self.blocks.get((layer * self.summary.n_experts + expert) as usize).map_or(&[], Vec::as_slice))
    }

    /// The answer of the hub, or of an honest worker.
    pub(super) fn answer(&self, dispatch: &Dispatch) -> Result<Answer, ComputeError> {
        let mut answer = match self.blocks.is_empty() {
            true => zeros(dispatch),
            false => answer::answer(&self.shape, |block| self.block(block), dispatch)?,
        };
        // The hub's check is simulated by its result (`hub_machine`); the products that it would read are not.
        if dispatch.reply == Reply::RowsAndProducts {
            let values = vec![0.0; dispatch.n_pairs() * 2 * self.shape.inner];
            answer.products = self.summary.product_shape().and_then(|shape| Products::new(shape, &values));
        }
        Ok(answer)
    }

    /// (T, D): the answer to a job of one worker that holds everything; each expert's rows are added in f32, in
    /// ascending order.
    pub fn alone(&self, job: &LayerJob, wire: Dtype) -> Result<Vec<f32>, ComputeError> {
        let hidden = self.shape.hidden;
        let mut rows = Vec::new();
        tensor::encode_rows(wire, &job.rows, hidden, &mut rows);
        let mut calls: BTreeMap<u16, Vec<Pair>> = BTreeMap::new();
        for (at, (expert, gate)) in job.routing.experts.iter().zip(&job.routing.gates).enumerate() {
            let pair = Pair { row: (at / job.routing.k) as u16, gate: f16::from_f32(*gate) };
            calls.entry(*expert).or_default().push(pair);
        }
        let calls =
            calls.into_iter().map(|(expert, pairs)| Call { expert: ExpertId(expert), pairs }).collect();
        let dispatch = Dispatch {
            layer: job.layer,
            hidden: hidden as u16,
            dtype: wire,
            form: Form::RowsOnce,
            calls,
            rows: rows.into(),
            reply: Reply::Rows,
        };
        let answer = self.answer(&dispatch)?;
        let mut sum = vec![0.0; job.rows.len()]; // (T, D)
        for (call, part) in dispatch.calls.iter().zip(&answer.parts) {
            let rows = tensor::decode_rows(wire, &part.payload, hidden).map_err(|_| ComputeError::Shape)?; // (P, D)
            for (pair, row) in call.pairs.iter().zip(rows.chunks_exact(hidden)) {
                cpu::add(&mut sum[usize::from(pair.row) * hidden..][..hidden], row);
            }
        }
        Ok(sum)
    }
}

/// An answer of zeros with the right shape.
fn zeros(dispatch: &Dispatch) -> Answer {
    let row_bytes = dispatch.dtype.row_bytes(dispatch.hidden.into());
    let part = |expert, rows: usize| AnswerPart {
        expert,
        rows: rows as u32,
        payload: vec![0; rows * row_bytes].into(),
    };
    let parts = dispatch.calls.iter().map(|call| part(call.expert, call.pairs.len())).collect();
    let Dispatch { layer, hidden, dtype, .. } = *dispatch;
    Answer { layer, hidden, dtype, parts, products: None }
}
