//! Grouped-query attention with RMSNorm on each query and key head.

use moex_kernels::cpu::{self, AttentionShape, CachedRows};

use super::{
    config::Config,
    error::ModelError,
    files::Checkpoint,
    kv::{KvPool, PAGE_POSITIONS},
    transformer::Step,
    weights::Matrix,
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
    pub(super) fn load(checkpoint: &Checkpoint, name: &str) -> Result<Self, ModelError> {
        let Config { hidden, n_heads, n_kv_heads, head_width, rms_eps, .. } = checkpoint.config;
        let (q_width, kv_width) = (n_heads * head_width, n_kv_heads * head_width);
        Ok(Self {
            shape: AttentionShape { n_heads, n_kv_heads, head_width, page_positions: PAGE_POSITIONS },
            rms_eps,
            q_proj: Linear::load(checkpoint, &format!("{name}.q_proj"), q_width, hidden)?,
            k_proj: Linear::load(checkpoint, &format!("{name}.k_proj"), kv_width, hidden)?,
            v_proj: Linear::load(checkpoint, &format!("{name}.v_proj"), kv_width, hidden)?,
            o_proj: Linear::load(checkpoint, &format!("{name}.o_proj"), hidden, q_width)?,
            q_norm: checkpoint.vector(&format!("{name}.q_norm.weight"), head_width)?,
            k_norm: checkpoint.vector(&format!("{name}.k_norm.weight"), head_width)?,
        })
    }

    /// Attention's output (T, D) for the normalised `x` (T, D); the step's keys and values of `layer` enter `kv`.
    pub(super) fn forward(&self, x: &[f32], step: &Step<'_>, layer: usize, kv: &mut KvPool) -> Vec<f32> {
        let mut q = self.q_proj.forward(x); // (T, H*C)
        let mut k = self.k_proj.forward(x); // (T, G*C)
        let v = self.v_proj.forward(x); // (T, G*C)
        cpu::rms_norm_in_place(&mut q, &self.q_norm, self.rms_eps);
        cpu::rms_norm_in_place(&mut k, &self.k_norm, self.rms_eps);
        cpu::rope(&mut q, self.shape.n_heads, &step.rope);
        cpu::rope(&mut k, self.shape.n_kv_heads, &step.rope);

        let kv_width = self.shape.n_kv_heads * self.shape.head_width;
        let cached = k.chunks_exact(kv_width).zip(v.chunks_exact(kv_width));
        for ((span, position), (k, v)) in step.positions().zip(cached) {
            kv.write(layer, span.table, position, k, v);
        }

        let pages: Vec<_> = step.spans.iter().map(|span| kv.pages(layer, span.table)).collect();
        let mut rows = Vec::with_capacity(step.n_rows()); // (T)
        for (span, (keys, values)) in step.spans.iter().zip(&pages) {
            // Each row sees itself and everything before it.
            rows.extend((0..span.ids.len()).map(|i| CachedRows {
                keys,
                values,
                positions: span.start + i + 1,
            }));
        }
        let mut heads = vec![0.0; q.len()]; // (T, H*C)
        cpu::attention(&self.shape, &q, &rows, &mut heads);
        self.o_proj.forward(&heads) // (T, D)
    }

    pub(super) fn n_bytes(&self) -> usize {
        [&self.q_proj, &self.k_proj, &self.v_proj, &self.o_proj]
            .map(|linear| linear.weight.n_bytes())
            .iter()
            .sum()
    }
}

/// A projection, with its bias where the config says `attention_bias`.
struct Linear {
    weight: Matrix,         // (out, in)
    bias: Option<Vec<f32>>, // (out)
}

impl Linear {
    fn load(checkpoint: &Checkpoint, name: &str, out: usize, input: usize) -> Result<Self, ModelError> {
        let weight = checkpoint.matrix(&format!("{name}.weight"), out, input)?;
        let bias = checkpoint.config.attention_bias.then(|| checkpoint.vector(&format!("{name}.bias"), out));
        Ok(Self { weight, bias: bias.transpose()? })
    }

    /// (T, in) to (T, out).
    fn forward(&self, x: &[f32]) -> Vec<f32> {
        let weight = self.weight.view();
        let mut out = vec![0.0; x.len() / weight.cols() * weight.rows()];
        cpu::linear(x, &weight, &mut out);
        if let Some(bias) = &self.bias {
            cpu::add_bias(&mut out, bias);
        }
        out
    }
}
