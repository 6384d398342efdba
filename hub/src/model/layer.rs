//! A layer, split where its experts may be elsewhere: [`Layer::attend`], [`Layer::route`], then [`absorb`].

use moex_kernels::{cpu, engine::Pair};

use super::{
    attention::Attention, config::MlpKind, error::ModelError, experts::Routing, files::Checkpoint,
    kv::KvPool, router::Router, transformer::Step, weights::Expert,
};

/// `model.layers.{index}`.
pub(super) struct Layer {
    index: usize,
    rms_eps: f32,
    input_layernorm: Vec<f32>, // (D)
    self_attn: Attention,
    post_attention_layernorm: Vec<f32>, // (D)
    mlp: Mlp,
}

enum Mlp {
    Sparse { router: Router, experts: Vec<Expert> },
    Dense(Expert),
}

/// What the second half of a layer still needs.
pub(super) enum Routed {
    /// The experts that `routing` chose for the normalised `rows` (T, D).
    Sparse { rows: Vec<f32>, routing: Routing },
    /// Nothing: a dense layer's output (T, D).
    Dense(Vec<f32>),
}

impl Layer {
    pub(super) fn load(checkpoint: &Checkpoint, index: usize) -> Result<Self, ModelError> {
        let config = &checkpoint.config;
        let name = format!("model.layers.{index}");
        let mlp = format!("{name}.mlp");
        Ok(Self {
            index,
            rms_eps: config.rms_eps,
            input_layernorm: checkpoint.vector(&format!("{name}.input_layernorm.weight"), config.hidden)?,
            self_attn: Attention::load(checkpoint, &format!("{name}.self_attn"))?,
            post_attention_layernorm: checkpoint
                .vector(&format!("{name}.post_attention_layernorm.weight"), config.hidden)?,
            mlp: match config.layers[index] {
                MlpKind::Dense => Mlp::Dense(checkpoint.expert(&mlp, config.dense_inner)?),
                MlpKind::Sparse => Mlp::Sparse {
                    router: Router::load(checkpoint, &mlp)?,
                    experts: (0..config.moe.n_experts)
                        .map(|expert| checkpoint.expert(&format!("{mlp}.experts.{expert}"), config.moe.inner))
                        .collect::<Result<_, _>>()?,
                },
            },
        })
    }

    /// `x` (T, D) += attention over it and what its sequences have cached.
    pub(super) fn attend(&self, x: &mut [f32], step: &Step<'_>, kv: &mut KvPool) {
        let mut normed = vec![0.0; x.len()]; // (T, D)
        cpu::rms_norm(x, &self.input_layernorm, self.rms_eps, &mut normed);
        cpu::add(x, &self.self_attn.forward(&normed, step, self.index, kv));
    }

    /// What the MLP makes of `x` (T, D), or whom to ask.
    pub(super) fn route(&self, x: &[f32]) -> Routed {
        let mut rows = vec![0.0; x.len()]; // (T, D)
        cpu::rms_norm(x, &self.post_attention_layernorm, self.rms_eps, &mut rows);
        match &self.mlp {
            Mlp::Sparse { router, .. } => Routed::Sparse { routing: router.route(&rows), rows },
            Mlp::Dense(mlp) => {
                let n_rows = rows.len() / self.post_attention_layernorm.len();
                let pairs: Vec<_> = (0..n_rows as u32).map(|row| Pair { row, gate: 1.0 }).collect();
                let mut sum = vec![0.0; rows.len()]; // (T, D)
                cpu::expert_ffn(&mlp.view(), &rows, &pairs, &mut sum);
                Routed::Dense(sum)
            }
        }
    }

    /// The experts in the checkpoint, none for a dense layer.
    pub(super) fn experts(&self) -> &[Expert] {
        match &self.mlp {
            Mlp::Sparse { experts, .. } => experts,
            Mlp::Dense(_) => &[],
        }
    }

    /// Bytes of everything but the experts.
    pub(super) fn shared_bytes(&self) -> usize {
        self.self_attn.n_bytes()
            + match &self.mlp {
                Mlp::Sparse { router, .. } => router.n_bytes(),
                Mlp::Dense(mlp) => mlp.n_bytes(),
            }
    }
}

/// `x` (T, D) += the MLP's output, wherever it was computed.
pub(super) fn absorb(x: &mut [f32], sum: &[f32]) {
    cpu::add(x, sum);
}
