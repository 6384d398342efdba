//! Repacks experts for this machine's vector instructions and computes them with int8 activations: the same bits as a
//! worker's answer.

use std::{fmt, io, sync::Arc};

use moex_kernels::{
    engine::Pair,
    graph::PackedExperts,
    simd::{ExpertCall, ExpertScratch, PackedExpertShape, PageSize, Processor, Slab, experts},
};

use super::ExpertSource;
use crate::memory::Keep;

/// Maximum bytes of experts that are resident both as file pages and as panels.
const MAX_UNRELEASED_BYTES: usize = 64 << 20;

/// Experts in panels, or repacked on use.
pub struct ExpertPanels {
    processor: Arc<Processor>,
    source: Box<dyn ExpertSource>,
    layers: Vec<LayerPanels>,
}

struct LayerPanels {
    n_experts: usize,
    /// None for a dense layer.
    shape: Option<PackedExpertShape>,
    /// All experts of the layer, if they are kept in memory.
    kept: Option<Slab>,
}

impl fmt::Debug for ExpertPanels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpertPanels").field("layers", &self.layers.len()).finish_non_exhaustive()
    }
}

impl ExpertPanels {
    /// The experts of `source`. If all are kept, they are repacked now.
    ///
    /// # Errors
    /// If an expert cannot be read, or memory is exhausted.
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
            let is_kept = match keep {
                Keep::None => false,
                Keep::From(first) => layer >= first,
                Keep::All => true,
            };
            let kept = match is_kept {
                false => None,
                true => {
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

    /// The processor that computes them.
    pub fn processor(&self) -> &Arc<Processor> {
        &self.processor
    }

    /// Bytes of all experts in panels.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes_from(0)
    }

    /// Bytes of the experts of layer `first` and those after it, in panels.
    pub fn n_bytes_from(&self, first: usize) -> usize {
        let bytes = |layer: &LayerPanels| layer.shape.map_or(0, |shape| layer.n_experts * shape.bytes());
        self.layers.iter().skip(first).map(bytes).sum()
    }

    /// `gate * expert(row)` for every pair, expert after expert: `calls` are experts with the end of their pairs in
    /// `pairs`, `rows` (R, D), `out` (P, D).
    ///
    /// # Errors
    /// If the expert does not exist or cannot be read; with the reason.
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

impl PackedExperts for ExpertPanels {
    fn n_experts(&self, layer: usize) -> usize {
        self.layers.get(layer).map_or(0, |layer| layer.n_experts)
    }

    fn shape(&self, layer: usize) -> Option<PackedExpertShape> {
        self.layers.get(layer)?.shape
    }

    fn copy(&self, layer: usize, expert: usize, panels: &mut Vec<u8>) -> Result<(), String> {
        let of_layer = self.layers.get(layer).ok_or("the model has no such expert")?;
        let shape = of_layer.shape.ok_or("the model has no such expert")?;
        let n = shape.bytes();
        panels.resize(n, 0);
        if let Some(kept) = &of_layer.kept {
            let kept = kept.get(expert * n..(expert + 1) * n).ok_or("the model has no such expert")?;
            panels.copy_from_slice(kept);
            return Ok(());
        }
        let pool = self.processor.pool();
        self.source.read(layer, expert, &mut |view| shape.pack(pool, view, panels))?;
        if expert + 1 == of_layer.n_experts {
            self.source.release();
        }
        Ok(())
    }
}

/// Buffers of [`ExpertPanels::compute`].
#[derive(Default)]
pub struct PanelSpace {
    scratch: ExpertScratch,
    /// Empty between computations: only its memory is reused.
    calls: Vec<ExpertCall<'static>>,
    /// An expert that is not kept.
    spare: Vec<u8>,
}

impl PanelSpace {
    /// Buffers; results are rounded to f16 if `is_rounded`.
    pub fn new(is_rounded: bool) -> Self {
        let mut space = Self::default();
        space.scratch.round_results(is_rounded);
        space
    }
}

/// Reuses a vector's memory for another lifetime: collecting a vector's own iterator does not allocate.
fn recycled<'b>(mut calls: Vec<ExpertCall<'_>>) -> Vec<ExpertCall<'b>> {
    calls.clear();
    calls.into_iter().map(|_| ExpertCall { expert: &[], pairs: &[] }).collect()
}
