//! How a row becomes queries, keys and values: by a matrix each, or through narrow rows (multi-head latent attention).

use moex_kernels::cpu;

use super::{
    checkpoint::Checkpoint,
    compute::{Compute, Linear, Rows},
    error::ModelError,
    spec::{AttentionSpec, Projection},
    workspace::{AttentionSpace, Workspace, sized},
};

/// The projections of one layer.
#[expect(clippy::large_enum_variant, reason = "one a layer, made at load and never moved")]
pub(super) enum Projections {
    /// A matrix each.
    Separate {
        q_proj: Linear, // (H*C, D)
        k_proj: Linear, // (G*C, D)
        v_proj: Linear, // (G*C, D)
    },
    /// Through narrow rows.
    Latent(Box<Latent>),
}

/// See DeepSeek-V2, section 2.1 (<https://arxiv.org/abs/2405.04434>). Keys and values are cached as every head reads them.
pub(super) struct Latent {
    spec: AttentionSpec,
    rms_eps: f32,
    q_narrow: Option<(Linear, Vec<f32>)>, // q_a_proj (Rq, D), q_a_layernorm (Rq)
    q_proj: Linear,                       // q_b_proj (H*C, Rq), or q_proj (H*C, D)
    kv_a_proj: Linear,                    // kv_a_proj_with_mqa (Rkv + rotated, D)
    kv_a_norm: Vec<f32>,                  // kv_a_layernorm (Rkv)
    kv_b_proj: Linear,                    // (H*(own + Cv), Rkv)
}

impl Projections {
    pub(super) fn load(
        checkpoint: &Checkpoint,
        compute: &Compute,
        name: &str,
        spec: &AttentionSpec,
    ) -> Result<Self, ModelError> {
        let hidden = checkpoint.spec.hidden;
        let linear = |part: &str, out, input| {
            Linear::load(checkpoint, compute, &format!("{name}.{part}"), (out, input), spec.qkv_bias)
        };
        let Projection::Latent { q_rank, kv_rank } = spec.projection else {
            return Ok(Self::Separate {
                q_proj: linear("q_proj", spec.q_width(), hidden)?,
                k_proj: linear("k_proj", spec.kv_width(), hidden)?,
                v_proj: linear("v_proj", spec.kv_width(), hidden)?,
            });
        };
        let norm = |part: &str, width| checkpoint.norm(&format!("{name}.{part}.weight"), width);
        let own = spec.head_width - spec.rope.width;
        Ok(Self::Latent(Box::new(Latent {
            rms_eps: checkpoint.spec.rms_eps,
            q_narrow: match q_rank {
                None => None,
                Some(rank) => Some((linear("q_a_proj", rank, hidden)?, norm("q_a_layernorm", rank)?)),
            },
            q_proj: match q_rank {
                None => linear("q_proj", spec.q_width(), hidden)?,
                Some(rank) => linear("q_b_proj", spec.q_width(), rank)?,
            },
            kv_a_proj: linear("kv_a_proj_with_mqa", kv_rank + spec.rope.width, hidden)?,
            kv_a_norm: norm("kv_a_layernorm", kv_rank)?,
            kv_b_proj: linear("kv_b_proj", spec.n_heads * (own + spec.value_width), kv_rank)?,
            spec: spec.clone(),
        })))
    }

    /// From `space`'s normalised rows (T, D) to its q (T, H*C), k (T, G*C) and v (T, G*C), neither normed nor rotated.
    pub(super) fn forward(&self, space: &mut Workspace) {
        let n_rows = space.step.places.len(); // T
        let AttentionSpace { q, k, v, .. } = &mut space.attention;
        match self {
            Self::Separate { q_proj, k_proj, v_proj } => {
                let mut rows = Rows::new(&space.rows, &mut space.int8);
                for (proj, out) in [(q_proj, q), (k_proj, k), (v_proj, v)] {
                    proj.forward(&mut rows, sized(out, n_rows * proj.shape().0));
                }
            }
            Self::Latent(latent) => latent.forward(space),
        }
    }

    pub(super) fn n_bytes(&self) -> usize {
        match self {
            Self::Separate { q_proj, k_proj, v_proj } => {
                [q_proj, k_proj, v_proj].map(Linear::n_bytes).iter().sum()
            }
            Self::Latent(latent) => {
                let narrow = latent.q_narrow.as_ref().map_or(0, |(a, _)| a.n_bytes());
                narrow
                    + [&latent.q_proj, &latent.kv_a_proj, &latent.kv_b_proj]
                        .map(Linear::n_bytes)
                        .iter()
                        .sum::<usize>()
            }
        }
    }
}

impl Latent {
    fn forward(&self, space: &mut Workspace) {
        let AttentionSpec { n_heads, head_width, value_width, .. } = self.spec;
        let rotated = self.spec.rope.width;
        let own = head_width - rotated;
        let n_rows = space.step.places.len(); // T
        let AttentionSpace { q, k, v, narrow, wide, .. } = &mut space.attention;

        let q = sized(q, n_rows * self.q_proj.shape().0); // (T, H*C)
        match &self.q_narrow {
            None => self.q_proj.forward(&mut Rows::new(&space.rows, &mut space.int8), q),
            Some((q_a_proj, norm)) => {
                let narrow = sized(narrow, n_rows * norm.len()); // (T, Rq)
                q_a_proj.forward(&mut Rows::new(&space.rows, &mut space.int8), narrow);
                for row in narrow.chunks_exact_mut(norm.len()) {
                    cpu::rms_norm_in_place(row, norm, self.rms_eps);
                }
                self.q_proj.forward(&mut Rows::new(narrow, &mut space.int8), q);
            }
        }

        let kv_rank = self.kv_a_norm.len();
        let both = sized(narrow, n_rows * (kv_rank + rotated)); // (T, Rkv + rotated)
        self.kv_a_proj.forward(&mut Rows::new(&space.rows, &mut space.int8), both);
        // What all heads share of a key is set aside; what is left is normed and widened.
        let shared = sized(k, n_rows * n_heads * head_width); // (T, H*C)
        for (t, row) in both.chunks_exact(kv_rank + rotated).enumerate() {
            for head in
                shared[t * n_heads * head_width..][..n_heads * head_width].chunks_exact_mut(head_width)
            {
                head[own..].copy_from_slice(&row[kv_rank..]);
            }
        }
        for t in 0..n_rows {
            both.copy_within(t * (kv_rank + rotated)..t * (kv_rank + rotated) + kv_rank, t * kv_rank);
        }
        let latent = &mut both[..n_rows * kv_rank]; // (T, Rkv)
        for row in latent.chunks_exact_mut(kv_rank) {
            cpu::rms_norm_in_place(row, &self.kv_a_norm, self.rms_eps);
        }
        let wide = sized(wide, n_rows * self.kv_b_proj.shape().0); // (T, H, own + Cv)
        self.kv_b_proj.forward(&mut Rows::new(latent, &mut space.int8), wide);
        let values = sized(v, n_rows * n_heads * head_width); // (T, H*C), filled up with zeros
        let heads = shared.chunks_exact_mut(head_width).zip(values.chunks_exact_mut(head_width));
        for (wide, (key, value)) in wide.chunks_exact(own + value_width).zip(heads) {
            key[..own].copy_from_slice(&wide[..own]);
            value[..value_width].copy_from_slice(&wide[own..]);
            value[value_width..].fill(0.0);
        }
    }
}
