//! Attention of one layer: queries, keys and values of its rows, what they attend to, and the output projection.

use moex_kernels::{
    cpu::{self, AttentionShape, CachedRows, Scores},
    simd,
};

use super::{
    checkpoint::Checkpoint,
    compute::{Compute, Linear, Rows},
    error::ModelError,
    kv::{KvPool, PAGE_POSITIONS},
    projections::Projections,
    spec::{AttentionSpec, ModelSpec, QkNorm},
    step::Span,
    workspace::{AttentionSpace, Stage, Workspace, sized},
};

/// `self_attn` of one layer.
pub(super) struct Attention {
    spec: AttentionSpec,
    shape: AttentionShape,
    rms_eps: f32,
    /// Which of the step's rotations are its own.
    rope: usize,
    projections: Projections,
    q_norm: Vec<f32>, // (C), (H*C), or empty
    k_norm: Vec<f32>, // (C), (G*C), or empty
    o_proj: Linear,   // (D, H*Cv)
}

impl Attention {
    pub(super) fn load(
        checkpoint: &Checkpoint,
        compute: &Compute,
        (layer, rope): (usize, usize),
    ) -> Result<Self, ModelError> {
        let ModelSpec { hidden, rms_eps, layers, .. } = &checkpoint.spec;
        let spec = layers[layer].attention.clone();
        let name = format!("model.layers.{layer}.self_attn");
        let norm = |part: &str, row_width: usize| match spec.qk_norm {
            QkNorm::None => Ok(Vec::new()),
            QkNorm::Head => checkpoint.norm(&format!("{name}.{part}.weight"), spec.head_width),
            QkNorm::Row => checkpoint.norm(&format!("{name}.{part}.weight"), row_width),
        };
        let (q_norm, k_norm) = (norm("q_norm", spec.q_width())?, norm("k_norm", spec.kv_width())?);
        let AttentionSpec { n_heads, n_kv_heads, head_width, value_width, .. } = spec;
        let output = (*hidden, n_heads * value_width);
        Ok(Self {
            shape: AttentionShape { n_heads, n_kv_heads, head_width, page_positions: PAGE_POSITIONS },
            rms_eps: *rms_eps,
            rope,
            projections: Projections::load(checkpoint, compute, &name, &spec)?,
            q_norm,
            k_norm,
            o_proj: Linear::load(checkpoint, compute, &format!("{name}.o_proj"), output, spec.output_bias)?,
            spec,
        })
    }

    /// From `space`'s normalised rows (T, D) to its attention's output (T, D); the step's keys and values of `layer` enter
    /// `kv`.
    pub(super) fn forward(
        &self,
        compute: &Compute,
        spans: &[Span<'_>],
        layer: usize,
        kv: &mut KvPool,
        space: &mut Workspace,
    ) {
        let (q_width, kv_width) = (self.spec.q_width(), self.spec.kv_width());
        let n_rows = space.step.places.len(); // T
        self.projections.forward(space);
        self.rotate(compute, space);
        space.done(Stage::Projections);

        let AttentionSpace { q, k, v, heads, scratch, .. } = &mut space.attention;
        let places = &space.step.places;
        let cached = k.chunks_exact(kv_width).zip(v.chunks_exact(kv_width));
        for (&(span, position), (k, v)) in places.iter().zip(cached) {
            kv.write(layer, spans[span].table, position, k, v);
        }
        let heads = sized(heads, n_rows * q_width);
        match (compute, kv.shape()) {
            (Compute::Fast(fast), Some(shape)) => {
                let pages = StepPages { kv, layer, spans, places };
                simd::attention(&fast.processor, &shape, self.shape.n_heads, q, &pages, scratch, heads);
            }
            _ => self.attend_exactly(kv, layer, spans, places, q, heads),
        }
        space.done(Stage::Attention);

        let AttentionSpace { heads, out, .. } = &mut space.attention;
        let heads = without_padding(heads, self.spec.head_width, self.spec.value_width); // (T, H*Cv)
        let mut rows = Rows::new(heads, &mut space.int8);
        self.o_proj.forward(&mut rows, sized(out, n_rows * self.o_proj.shape().0));
        space.done(Stage::Output);
    }

    /// Norms, clipping and rotation of `space`'s q (T, H*C) and k (T, G*C), clipping of its v (T, G*C).
    fn rotate(&self, compute: &Compute, space: &mut Workspace) {
        let AttentionSpec { head_width, clip, ref rope, .. } = self.spec;
        let AttentionSpace { q, k, v, .. } = &mut space.attention;
        let table = &space.step.ropes[self.rope];
        let clip_row = |row: &mut [f32]| {
            if let Some(clip) = clip {
                row.iter_mut().for_each(|value| *value = value.clamp(-clip, clip));
            }
        };
        let (q_width, kv_width) = (self.spec.q_width(), self.spec.kv_width());
        for (heads, width, norm) in [(q, q_width, &self.q_norm), (k, kv_width, &self.k_norm)] {
            compute.each_row(heads, width, |t, row| {
                if !norm.is_empty() {
                    cpu::rms_norm_in_place(row, norm, self.rms_eps);
                }
                clip_row(row);
                cpu::rope_last_columns(row, head_width, rope.pairs, table, t);
            });
        }
        if clip.is_some() {
            clip_row(v);
        }
    }

    fn attend_exactly(
        &self,
        kv: &KvPool,
        layer: usize,
        spans: &[Span<'_>],
        places: &[(usize, usize)],
        q: &[f32],
        heads: &mut [f32],
    ) {
        let pages: Vec<_> = spans.iter().map(|span| kv.pages(layer, span.table)).collect();
        // Each row sees itself and what is before it.
        let rows: Vec<CachedRows<'_>> = places
            .iter()
            .map(|&(span, position)| CachedRows {
                keys: &pages[span].0,
                values: &pages[span].1,
                positions: position + 1,
            })
            .collect(); // (T)
        let AttentionSpec { scale, score_softcap: softcap, window, .. } = self.spec;
        cpu::attention(&self.shape, &Scores { scale, softcap, window }, q, &rows, heads);
    }

    pub(super) fn n_bytes(&self) -> usize {
        self.projections.n_bytes() + self.o_proj.n_bytes()
    }
}

/// Heads of `width` columns of which only the first `kept` count, put together in place.
fn without_padding(heads: &mut [f32], width: usize, kept: usize) -> &[f32] {
    if kept == width {
        return heads;
    }
    let n_heads = heads.len() / width;
    for head in 0..n_heads {
        heads.copy_within(head * width..head * width + kept, head * kept);
    }
    &heads[..n_heads * kept]
}

/// The packed pages that the rows of a step attend to.
struct StepPages<'a> {
    kv: &'a KvPool,
    layer: usize,
    spans: &'a [Span<'a>],
    places: &'a [(usize, usize)],
}

impl simd::Pages for StepPages<'_> {
    /// Each row sees itself and everything before it.
    fn positions(&self, row: usize) -> usize {
        self.places[row].1 + 1
    }

    fn page(&self, row: usize, page: usize) -> &[u8] {
        self.kv.packed_page(self.layer, self.spans[self.places[row].0].table, page)
    }
}
