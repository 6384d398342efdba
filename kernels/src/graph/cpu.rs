//! What differs between the two engines on a CPU: how rows are spread over threads, matrices by rows, attention, an MLP.

use std::sync::Arc;

use super::{Attention, Graph, KvPool, MatrixId, MatrixSource, Projection, Span, workspace::Scratch};
use crate::{
    batch::Pair,
    cpu::{self, AttentionShape, CachedRows, Scores},
    simd::{self, ExpertCall, PAGE_POSITIONS, PackedExpertShape, PackedShape, PackedView, Processor, Slab},
};

/// Rows of a router's logits that one task takes: some ten microseconds of them.
const ROUTED_AT_ONCE: usize = 16;

/// The arithmetic of an engine.
pub(super) enum Cpu {
    /// In f32, matrices where they lie: the oracle.
    Exact,
    /// On vector instructions, rows in int8 where weights are integers.
    Simd(Arc<Processor>),
}

/// A matrix in the form that an engine computes with.
pub(crate) enum Prepared {
    /// At its source.
    Source(Arc<dyn MatrixSource>),
    /// In panels.
    Packed { shape: PackedShape, panels: Slab },
    /// Together with the other two of its MLP, in the gate's entry.
    Mlp { shape: PackedExpertShape, panels: Slab },
    /// Nothing here: it is in its MLP's panels.
    Elsewhere,
}

/// The rows of a step and their sequences.
pub(super) struct Sequences<'a> {
    /// The sequence and the position of each row (T).
    pub(super) places: &'a [(usize, usize)],
    /// Each sequence.
    pub(super) spans: &'a [Span<'a>],
}

impl Prepared {
    fn packed(&self) -> Option<PackedView<'_>> {
        match self {
            Self::Packed { shape, panels } => Some(shape.view(panels).expect("packed in this shape")),
            _ => None,
        }
    }

    /// Bytes of its weights in the form that is computed with.
    pub(super) fn n_bytes(&self) -> usize {
        match self {
            Self::Source(source) => {
                let (rows, cols) = source.shape();
                source.format().matrix_bytes(rows, cols)
            }
            Self::Packed { panels, .. } | Self::Mlp { panels, .. } => panels.len(),
            Self::Elsewhere => 0,
        }
    }
}

impl Cpu {
    /// Runs `work(t, row)` for each row (T, `width`), in any order.
    pub(super) fn each_row(&self, rows: &mut [f32], width: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
        match self {
            Self::Exact => rows.chunks_exact_mut(width).enumerate().for_each(|(t, row)| work(t, row)),
            Self::Simd(processor) => processor.each_row(rows, width, work),
        }
    }

    /// [`Self::each_row`] for two tensors with as many rows, (T, width) each.
    pub(super) fn each_two_rows(
        &self,
        a: (&mut [f32], usize),
        b: (&mut [f32], usize),
        work: impl Fn(usize, &mut [f32], &mut [f32]) + Sync,
    ) {
        match self {
            Self::Exact => {
                let rows = a.0.chunks_exact_mut(a.1).zip(b.0.chunks_exact_mut(b.1));
                rows.enumerate().for_each(|(t, (a, b))| work(t, a, b));
            }
            Self::Simd(processor) => processor.each_two_rows(a, b, work),
        }
    }

    /// Runs `route(logits, experts, gates)` for parts of the rows of (T, `n_experts`), (T, `k`) and (T, `k`), in any order.
    pub(super) fn route(
        &self,
        [n_experts, k]: [usize; 2],
        logits: &mut [f32],
        (experts, gates): (&mut [u16], &mut [f32]),
        route: impl Fn(&mut [f32], &mut [u16], &mut [f32]) + Sync,
    ) {
        match self {
            Self::Exact => route(logits, experts, gates),
            Self::Simd(processor) => {
                processor.each_rows(ROUTED_AT_ONCE, (logits, n_experts), (experts, k), (gates, k), route);
            }
        }
    }

    /// `x` (T, in) through each matrix to its `out` (T, out), biases added.
    pub(super) fn linears<const N: usize>(
        &self,
        graph: &Graph,
        matrices: &[Prepared],
        projections: [Projection; N],
        x: &[f32],
        scratch: &mut Scratch,
        mut out: [&mut [f32]; N],
    ) {
        let prepared = projections.map(|projection| &matrices[projection.matrix.0 as usize]);
        match self {
            Self::Exact => {
                for (prepared, out) in prepared.iter().zip(&mut out) {
                    if let Prepared::Source(source) = prepared {
                        cpu::linear(x, &source.view(), out);
                    }
                }
            }
            Self::Simd(processor) => {
                let views = prepared.map(|prepared| prepared.packed().expect("packed when it was compiled"));
                simd_linears(processor, views, x, scratch, out.each_mut().map(|out| &mut **out));
            }
        }
        for (projection, out) in projections.iter().zip(out) {
            if let Some(bias) = projection.bias {
                cpu::add_bias(out, graph.vector(bias));
            }
        }
    }

    /// Attends with `q` (T, H, C) to what its rows' sequences have cached in `slot`; writes `out` (T, H, C).
    #[expect(clippy::too_many_arguments, reason = "all that attention meets")]
    pub(super) fn attend(
        &self,
        attention: &Attention,
        sinks: &[f32],
        (kv, slot): (&KvPool, usize),
        sequences: &Sequences<'_>,
        q: &[f32],
        scratch: &mut Scratch,
        out: &mut [f32],
    ) {
        match (self, kv.shape()) {
            (Self::Simd(processor), Some(shape)) => {
                let pages = StepPages { kv, slot, sequences };
                let scratch = &mut scratch.attention;
                simd::attention(processor, &shape, attention.n_heads, q, &pages, scratch, out);
            }
            _ => attend_exactly(attention, sinks, (kv, slot), sequences, q, out),
        }
    }

    /// `x` (T, D) through an MLP in panels to `out` (T, D).
    pub(super) fn mlp(
        &self,
        matrices: &[Prepared],
        gate: MatrixId,
        x: &[f32],
        scratch: &mut Scratch,
        out: &mut [f32],
    ) {
        let (Self::Simd(processor), Prepared::Mlp { shape, panels }) = (self, &matrices[gate.0 as usize])
        else {
            unreachable!("an MLP is fused for the engine that packs it");
        };
        let n_rows = x.len() / shape.hidden;
        scratch.all_rows.clear();
        scratch.all_rows.extend((0..n_rows as u32).map(|row| Pair { row, gate: 1.0 }));
        let call = [ExpertCall { expert: panels, pairs: &scratch.all_rows }];
        let (simd, pool) = (processor.simd(), processor.pool());
        simd::experts(simd, pool, shape, &mut scratch.mlp, &call, x, out).expect("packed in this shape");
    }
}

/// Runs as one job where all matrices take the same activations.
fn simd_linears<const N: usize>(
    processor: &Processor,
    views: [PackedView<'_>; N],
    x: &[f32],
    scratch: &mut Scratch,
    out: [&mut [f32]; N],
) {
    let (simd, pool) = (processor.simd(), processor.pool());
    let int8 = &mut scratch.int8;
    let first = views[0].shape();
    simd::fill(simd, pool, int8, first.format, first.cols, x);
    if views.iter().all(|view| int8.fits(view.shape().format, view.shape().cols)) {
        return simd::linears(simd, pool, views, int8, out);
    }
    for (view, out) in views.into_iter().zip(out) {
        let shape = view.shape();
        if !int8.fits(shape.format, shape.cols) {
            simd::fill(simd, pool, int8, shape.format, shape.cols, x);
        }
        simd::linear(simd, pool, &view, int8, out);
    }
}

fn attend_exactly(
    attention: &Attention,
    sinks: &[f32],
    (kv, slot): (&KvPool, usize),
    sequences: &Sequences<'_>,
    q: &[f32],
    out: &mut [f32],
) {
    let cached: Vec<_> = sequences.spans.iter().map(|span| kv.rows(slot, span.table)).collect();
    // Each row sees itself and what is before it.
    let of_row = |&(sequence, position): &(usize, usize)| CachedRows {
        first: cached[sequence].first,
        keys: &cached[sequence].keys,
        values: &cached[sequence].values,
        positions: position + 1,
    };
    let rows: Vec<CachedRows<'_>> = sequences.places.iter().map(of_row).collect(); // (T)
    let layout = kv.layout();
    let shape = AttentionShape {
        n_heads: attention.n_heads,
        n_kv_heads: layout.n_kv_heads,
        head_width: layout.head_width,
        page_positions: PAGE_POSITIONS,
    };
    let Attention { scale, softcap, window, .. } = *attention;
    cpu::attention(&shape, &Scores { scale, softcap, window, sinks }, q, &rows, out);
}

/// The packed pages that the rows of a step attend to.
struct StepPages<'a> {
    kv: &'a KvPool,
    slot: usize,
    sequences: &'a Sequences<'a>,
}

impl simd::Pages for StepPages<'_> {
    /// Each row sees itself and everything before it.
    fn positions(&self, row: usize) -> usize {
        self.sequences.places[row].1 + 1
    }

    fn page(&self, row: usize, page: usize) -> &[u8] {
        self.kv.packed_page(self.slot, self.sequences.spans[self.sequences.places[row].0].table, page)
    }
}
