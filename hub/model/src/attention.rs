//! Grouped-query attention with RMSNorm on each query and key head.

use moex_kernels::{
    cpu::{self, AttentionShape, CachedRows},
    simd,
};

use super::{
    compute::{Compute, Linear, Rows},
    config::Config,
    error::ModelError,
    files::Checkpoint,
    kv::{KvPool, PAGE_POSITIONS},
    transformer::Span,
    workspace::{AttentionSpace, Stage, Workspace, sized},
};

/// `self_attn` of one layer.
pub(super) struct Attention {
    shape: AttentionShape,
    rms_eps: f32,
    q_proj: Linear,   // (H*C, D)
    k_proj: Linear,   // (G*C, D)
    v_proj: Linear,   // (G*C, D)
    o_proj: Linear,   // (D, H*C)
    q_norm: Vec<f32>, // (C)
    k_norm: Vec<f32>, // (C)
}

impl Attention {
    pub(super) fn load(checkpoint: &Checkpoint, compute: &Compute, name: &str) -> Result<Self, ModelError> {
        let Config { hidden, n_heads, n_kv_heads, head_width, rms_eps, attention_bias, .. } =
            checkpoint.config;
        let (q_width, kv_width) = (n_heads * head_width, n_kv_heads * head_width);
        let linear = |part: &str, out, input| {
            Linear::load(checkpoint, compute, &format!("{name}.{part}"), (out, input), attention_bias)
        };
        Ok(Self {
            shape: AttentionShape { n_heads, n_kv_heads, head_width, page_positions: PAGE_POSITIONS },
            rms_eps,
            q_proj: linear("q_proj", q_width, hidden)?,
            k_proj: linear("k_proj", kv_width, hidden)?,
            v_proj: linear("v_proj", kv_width, hidden)?,
            o_proj: linear("o_proj", hidden, q_width)?,
            q_norm: checkpoint.vector(&format!("{name}.q_norm.weight"), head_width)?,
            k_norm: checkpoint.vector(&format!("{name}.k_norm.weight"), head_width)?,
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
        let AttentionShape { n_heads, n_kv_heads, head_width, .. } = self.shape;
        let (q_width, kv_width) = (n_heads * head_width, n_kv_heads * head_width);
        let n_rows = space.step.places.len(); // T
        {
            let AttentionSpace { q, k, v, .. } = &mut space.attention;
            let mut rows = Rows::new(&space.rows, &mut space.int8);
            self.q_proj.forward(&mut rows, sized(q, n_rows * q_width));
            self.k_proj.forward(&mut rows, sized(k, n_rows * kv_width));
            self.v_proj.forward(&mut rows, sized(v, n_rows * kv_width));
            let rope = &space.step.rope;
            for (heads, width, norm) in [(q, q_width, &self.q_norm), (k, kv_width, &self.k_norm)] {
                compute.each_row(heads, width, |t, row| {
                    cpu::rms_norm_in_place(row, norm, self.rms_eps);
                    cpu::rope_row(row, rope, t);
                });
            }
        }
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
                simd::attention(&fast.processor, &shape, n_heads, q, &pages, scratch, heads);
            }
            _ => self.attend_exactly(kv, layer, spans, places, q, heads),
        }
        space.done(Stage::Attention);

        let AttentionSpace { heads, out, .. } = &mut space.attention;
        let mut rows = Rows::new(heads, &mut space.int8);
        self.o_proj.forward(&mut rows, sized(out, n_rows * self.o_proj.shape().0));
        space.done(Stage::Output);
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
        // Each row sees itself and everything before it.
        let rows: Vec<CachedRows<'_>> = places
            .iter()
            .map(|&(span, position)| CachedRows {
                keys: &pages[span].0,
                values: &pages[span].1,
                positions: position + 1,
            })
            .collect(); // (T)
        cpu::attention(&self.shape, q, &rows, heads);
    }

    pub(super) fn n_bytes(&self) -> usize {
        [&self.q_proj, &self.k_proj, &self.v_proj, &self.o_proj].map(Linear::n_bytes).iter().sum()
    }
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
