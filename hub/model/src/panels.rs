//! Experts repacked for this machine's vector instructions, and computed there with int8 activations: what a worker with
//! such activations answers, to the bit.

use std::{fmt, io, sync::Arc};

use half::f16;
use moex_kernels::{
    ExpertShape, ExpertView, cpu,
    engine::Pair,
    simd::{ExpertCall, ExpertScratch, PackedExpertShape, PageSize, Processor, Slab, experts, round_to_f16},
};
use moex_protocol::{Block, Dtype, ExpertId, LayerId, tensor};

use super::{
    Routing,
    experts::{Experts, ExpertsError},
    local_moe::Blocks,
    memory::{RESERVE_BYTES, UNKNOWN_FREE_BYTES, free_bytes},
    packing::Packing,
    transformer::Model,
};

/// What may be resident of experts both as they lie in their file and in panels.
const MAX_UNRELEASED_BYTES: usize = 64 << 20;

/// Where experts lie before they are repacked.
pub trait ExpertSource: Send + Sync {
    /// (L): the experts of each layer, none in dense ones.
    fn n_experts(&self) -> Vec<usize>;

    /// What the experts of a layer look like.
    ///
    /// # Errors
    /// If the layer has none, or if they do not all look alike.
    fn shape(&self, layer: usize) -> Result<ExpertShape, String>;

    /// Gives an expert's matrices to `read`.
    ///
    /// # Errors
    /// Why there is no such expert, or why it cannot be read.
    fn read(&self, layer: usize, expert: usize, read: &mut dyn FnMut(&ExpertView<'_>)) -> Result<(), String>;

    /// Gives back the memory that files were read into; experts are there as before.
    fn release(&self);
}

/// The checkpoint's own, in its formats.
impl ExpertSource for Arc<Model> {
    fn n_experts(&self) -> Vec<usize> {
        (0..self.spec().layers.len()).map(|layer| self.experts(layer).len()).collect()
    }

    fn shape(&self, layer: usize) -> Result<ExpertShape, String> {
        Packing::AsTheyAre.shape(self, layer)
    }

    fn read(&self, layer: usize, expert: usize, read: &mut dyn FnMut(&ExpertView<'_>)) -> Result<(), String> {
        self.experts(layer).get(expert).ok_or("the model has no such expert")?.read(read);
        Ok(())
    }

    fn release(&self) {
        Model::release(self);
    }
}

/// What workers hold.
pub struct WorkerBlocks<B> {
    blocks: B,
    n_experts: Vec<usize>,
}

impl<B: Blocks> WorkerBlocks<B> {
    /// The blocks of `model`'s experts.
    pub fn new(blocks: B, model: &Model) -> Self {
        let n_experts = (0..model.spec().layers.len()).map(|layer| model.experts(layer).len()).collect();
        Self { blocks, n_experts }
    }
}

impl<B: Blocks + Sync> ExpertSource for WorkerBlocks<B> {
    fn n_experts(&self) -> Vec<usize> {
        self.n_experts.clone()
    }

    fn shape(&self, layer: usize) -> Result<ExpertShape, String> {
        self.blocks.shape(LayerId(number(layer)?))
    }

    fn read(&self, layer: usize, expert: usize, read: &mut dyn FnMut(&ExpertView<'_>)) -> Result<(), String> {
        let block = Block { layer: LayerId(number(layer)?), expert: ExpertId(number(expert)?) };
        let shape = self.blocks.shape(block.layer)?;
        read(&shape.view(self.blocks.block(block)?).map_err(|error| error.to_string())?);
        Ok(())
    }

    fn release(&self) {
        self.blocks.release();
    }
}

fn number(n: usize) -> Result<u16, String> {
    u16::try_from(n).map_err(|_| "the model has no such expert".to_owned())
}

/// Whether repacked experts are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// All of them, in memory.
    All,
    /// None: an expert is repacked whenever it is needed, for models that are larger than memory.
    None,
}

/// Experts in panels, or on their way there.
pub struct Panels {
    processor: Arc<Processor>,
    source: Box<dyn ExpertSource>,
    layers: Vec<LayerPanels>,
}

struct LayerPanels {
    n_experts: usize,
    /// None for a dense layer.
    shape: Option<PackedExpertShape>,
    /// All experts of the layer, if they are kept.
    kept: Option<Slab>,
}

impl Keep {
    /// Keeps experts of `n_bytes` in all if as much memory is free, and `RESERVE_BYTES` beside.
    pub fn if_it_fits(n_bytes: usize) -> Self {
        let free = free_bytes().unwrap_or(UNKNOWN_FREE_BYTES);
        if n_bytes <= free.saturating_sub(RESERVE_BYTES) { Self::All } else { Self::None }
    }
}

impl fmt::Debug for Panels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Panels").field("layers", &self.layers.len()).finish_non_exhaustive()
    }
}

impl Panels {
    /// The experts of `source`. To keep them all, they are all repacked now.
    ///
    /// # Errors
    /// If an expert cannot be read, or there is no memory.
    pub fn new(
        source: impl ExpertSource + 'static,
        processor: Arc<Processor>,
        keep: Keep,
    ) -> io::Result<Self> {
        let (mut layers, mut unreleased) = (Vec::new(), 0);
        for (layer, n_experts) in source.n_experts().into_iter().enumerate() {
            if n_experts == 0 {
                layers.push(LayerPanels { n_experts, shape: None, kept: None });
                continue;
            }
            let shape = PackedExpertShape::from(source.shape(layer).map_err(io::Error::other)?);
            let kept = match keep {
                Keep::None => None,
                Keep::All => {
                    let mut slab = Slab::new(n_experts.saturating_mul(shape.bytes()), PageSize::Huge)?;
                    for (expert, panels) in slab.chunks_exact_mut(shape.bytes()).enumerate() {
                        (source.read(layer, expert, &mut |view| shape.pack(processor.pool(), view, panels)))
                            .map_err(io::Error::other)?;
                        unreleased += panels.len();
                        if unreleased >= MAX_UNRELEASED_BYTES {
                            source.release();
                            unreleased = 0;
                        }
                    }
                    Some(slab)
                }
            };
            layers.push(LayerPanels { n_experts, shape: Some(shape), kept });
        }
        source.release();
        Ok(Self { processor, source: Box::new(source), layers })
    }

    /// Bytes of all experts in panels.
    pub fn n_bytes(&self) -> usize {
        let bytes = |layer: &LayerPanels| layer.shape.map_or(0, |shape| layer.n_experts * shape.bytes());
        self.layers.iter().map(bytes).sum()
    }

    /// `gate * expert(row)` for every pair, expert after expert: `calls` are experts with the end of their pairs in
    /// `pairs`, `rows` (R, D), `out` (P, D).
    ///
    /// # Errors
    /// The expert that does not exist or cannot be read, and why.
    pub fn compute(
        &self,
        layer: usize,
        calls: &[(u16, usize)],
        pairs: &[Pair],
        rows: &[f32],
        space: &mut PanelSpace,
        out: &mut [f32],
    ) -> Result<(), (u16, String)> {
        let missing = |expert| (expert, "the model has no such expert".to_owned());
        let first = calls.first().map_or(0, |(expert, _)| *expert);
        let of_layer = self.layers.get(layer).ok_or_else(|| missing(first))?;
        let shape = of_layer.shape.ok_or_else(|| missing(first))?;
        if let Some((expert, _)) = calls.iter().find(|(expert, _)| usize::from(*expert) >= of_layer.n_experts)
        {
            return Err(missing(*expert));
        }
        let (simd, pool) = (self.processor.simd(), self.processor.pool());
        let starts = std::iter::once(0).chain(calls.iter().map(|(_, end)| *end));
        let of_calls = calls.iter().zip(starts).map(|((expert, end), start)| (*expert, &pairs[start..*end]));
        let Some(kept) = &of_layer.kept else {
            let mut rest = out;
            for (expert, pairs) in of_calls {
                let part;
                (part, rest) = rest.split_at_mut(pairs.len() * shape.hidden);
                let failed = |reason| (expert, reason);
                space.spare.resize(shape.bytes(), 0);
                let spare = &mut space.spare;
                (self.source.read(layer, usize::from(expert), &mut |view| shape.pack(pool, view, spare)))
                    .map_err(failed)?;
                let call = [ExpertCall { expert: &space.spare, pairs }];
                experts(simd, pool, &shape, &mut space.scratch, &call, rows, part)
                    .map_err(|error| (expert, error.to_string()))?;
            }
            return Ok(());
        };
        let n = shape.bytes();
        let mut borrowed = recycled(std::mem::take(&mut space.calls));
        borrowed.extend(
            of_calls
                .map(|(expert, pairs)| ExpertCall { expert: &kept[usize::from(expert) * n..][..n], pairs }),
        );
        let computed = experts(simd, pool, &shape, &mut space.scratch, &borrowed, rows, out);
        space.calls = recycled(borrowed);
        computed.map_err(|error| (first, error.to_string()))
    }
}

/// What [`Panels::compute`] needs in between.
#[derive(Default)]
pub struct PanelSpace {
    scratch: ExpertScratch,
    /// Empty between computations: only its memory is kept.
    calls: Vec<ExpertCall<'static>>,
    /// An expert that is not kept.
    spare: Vec<u8>,
}

/// The memory of a vector of one lifetime for one of another: collecting a vector's own iterator allocates nothing.
fn recycled<'b>(mut calls: Vec<ExpertCall<'_>>) -> Vec<ExpertCall<'b>> {
    calls.clear();
    calls.into_iter().map(|_| ExpertCall { expert: &[], pairs: &[] }).collect()
}

/// [`super::local_moe::PackedExperts`] with int8 activations: rows, gates and answers rounded to what the wire carries,
/// each expert's answer added in f32 in ascending expert order.
pub struct PanelExperts {
    panels: Arc<Panels>,
    wire: Dtype,
    /// As the wire carries them (T, D).
    rows: Vec<f32>,
    /// By expert, then row (P).
    chosen: Vec<(u16, Pair)>,
    pairs: Vec<Pair>,
    /// Experts, and the end of their pairs.
    calls: Vec<(u16, usize)>,
    /// Where each row's answers lie, in ascending expert order (T, K).
    of_row: Vec<u32>,
    /// How many of them are known (T).
    n_of_row: Vec<u32>,
    /// (P, D).
    answers: Vec<f32>,
    bytes: Vec<u8>,
    space: PanelSpace,
}

impl PanelExperts {
    /// Computes from `panels`, rounding to `wire`.
    pub fn new(panels: Arc<Panels>, wire: Dtype) -> Self {
        Self {
            panels,
            wire,
            rows: Vec::new(),
            chosen: Vec::new(),
            pairs: Vec::new(),
            calls: Vec::new(),
            of_row: Vec::new(),
            n_of_row: Vec::new(),
            answers: Vec::new(),
            bytes: Vec::new(),
            space: PanelSpace::default(),
        }
    }

    /// Sorts the pairs by expert.
    fn sort(&mut self, routing: &Routing) {
        let n_rows = routing.experts.len() / routing.k;
        self.chosen.clear();
        for (i, (expert, gate)) in routing.experts.iter().zip(&routing.gates).enumerate() {
            let gate = f16::from_f32(*gate).to_f32();
            self.chosen.push((*expert, Pair { row: (i / routing.k) as u32, gate }));
        }
        self.chosen.sort_unstable_by_key(|(expert, pair)| (*expert, pair.row));
        self.pairs.clear();
        self.calls.clear();
        self.of_row.resize(self.chosen.len(), 0);
        self.n_of_row.clear();
        self.n_of_row.resize(n_rows, 0);
        for (p, (expert, pair)) in self.chosen.iter().enumerate() {
            self.pairs.push(*pair);
            match self.calls.last_mut() {
                Some((last, end)) if last == expert => *end = p + 1,
                _ => self.calls.push((*expert, p + 1)),
            }
            let n = &mut self.n_of_row[pair.row as usize];
            self.of_row[pair.row as usize * routing.k + *n as usize] = p as u32;
            *n += 1;
        }
    }
}

impl Experts for PanelExperts {
    fn apply(&mut self, layer: usize, rows: &[f32], routing: &Routing) -> Result<Vec<f32>, ExpertsError> {
        let mut sum = vec![0.0; rows.len()];
        self.apply_into(layer, rows, routing, &mut sum)?;
        Ok(sum)
    }

    fn apply_into(
        &mut self,
        layer: usize,
        rows: &[f32],
        routing: &Routing,
        sum: &mut [f32],
    ) -> Result<(), ExpertsError> {
        assert_eq!(rows.len(), sum.len(), "a sum for each row");
        self.sort(routing);
        let hidden = rows.len() / self.n_of_row.len().max(1);
        let Self { panels, wire, bytes, .. } = self;
        let processor = &*panels.processor;
        self.rows.clear();
        self.rows.extend_from_slice(rows);
        through_wire(processor, *wire, &mut self.rows, hidden, bytes);
        self.answers.resize(self.pairs.len() * hidden, 0.0);
        let answers = self.answers.as_mut_slice();
        panels
            .compute(layer, &self.calls, &self.pairs, &self.rows, &mut self.space, answers)
            .map_err(|(expert, reason)| ExpertsError::Block { layer: layer as u16, expert, reason })?;
        through_wire(processor, *wire, answers, hidden, bytes);
        let (answers, of_row, k) = (&*answers, &self.of_row, routing.k);
        processor.each_row(sum, hidden, |t, sum| {
            sum.fill(0.0);
            for p in &of_row[t * k..][..k] {
                cpu::add(sum, &answers[*p as usize * hidden..][..hidden]);
            }
        });
        Ok(())
    }
}

/// `rows` (N, D) as the other end of the wire reads them.
fn through_wire(processor: &Processor, wire: Dtype, rows: &mut [f32], hidden: usize, bytes: &mut Vec<u8>) {
    if wire == Dtype::F16 {
        return processor.each_row(rows, hidden, |_, row| round_to_f16(processor.simd(), row));
    }
    bytes.clear();
    tensor::encode_rows(wire, rows, hidden, bytes);
    tensor::decode_rows_into(wire, bytes, hidden, rows).expect("what was just encoded is whole rows");
}
