//! The router of a sparse layer.

use moex_kernels::cpu;

use super::{config::MoeConfig, error::ModelError, experts::Routing, files::Checkpoint, weights::Matrix};

/// `mlp.gate` and what the config says about it.
pub(super) struct Router {
    gate: Matrix, // (E, D)
    moe: MoeConfig,
}

impl Router {
    pub(super) fn load(checkpoint: &Checkpoint, mlp: &str) -> Result<Self, ModelError> {
        let moe = checkpoint.config.moe;
        let gate =
            checkpoint.matrix(&format!("{mlp}.gate.weight"), moe.n_experts, checkpoint.config.hidden)?;
        Ok(Self { gate, moe })
    }

    /// Softmax over all E in f32, then the top K, then `norm_topk_prob`: for `rows` (T, D).
    pub(super) fn route(&self, rows: &[f32]) -> Routing {
        let MoeConfig { n_experts, n_chosen: k, renormalise, .. } = self.moe;
        let gate = self.gate.view();
        let n_rows = rows.len() / gate.cols();
        let mut logits = vec![0.0; n_rows * n_experts]; // (T, E)
        cpu::linear(rows, &gate, &mut logits);
        let (mut experts, mut gates) = (vec![0; n_rows * k], vec![0.0; n_rows * k]); // (T, K)
        cpu::route(&logits, n_experts, k, renormalise, &mut experts, &mut gates);
        Routing { k, experts, gates }
    }

    pub(super) fn n_bytes(&self) -> usize {
        self.gate.n_bytes()
    }
}
