//! The router of a sparse layer.

use moex_kernels::cpu;

use super::{
    compute::{Compute, Linear, Rounding, Rows},
    config::MoeConfig,
    error::ModelError,
    files::Checkpoint,
    workspace::{Workspace, sized},
};

/// `mlp.gate` and what the config says about it.
pub(super) struct Router {
    gate: Linear, // (E, D)
    moe: MoeConfig,
}

impl Router {
    pub(super) fn load(checkpoint: &Checkpoint, compute: &Compute, mlp: &str) -> Result<Self, ModelError> {
        let moe = checkpoint.config.moe;
        let gate =
            checkpoint.matrix(&format!("{mlp}.gate.weight"), moe.n_experts, checkpoint.config.hidden)?;
        Ok(Self { gate: Linear::new(gate, compute, Rounding::Never)?, moe })
    }

    /// Softmax over all E in f32, then the top K, then `norm_topk_prob`: from `space`'s rows (T, D) to its routing.
    pub(super) fn route(&self, space: &mut Workspace) {
        let MoeConfig { n_experts, n_chosen: k, renormalise, .. } = self.moe;
        let n_rows = space.rows.len() / self.gate.shape().1;
        let logits = sized(&mut space.router_logits, n_rows * n_experts); // (T, E)
        self.gate.forward(&mut Rows::new(&space.rows, &mut space.int8), logits);
        let routing = &mut space.routing;
        routing.k = k;
        routing.experts.resize(n_rows * k, 0); // (T, K)
        routing.gates.resize(n_rows * k, 0.0); // (T, K)
        cpu::route(logits, n_experts, k, renormalise, &mut routing.experts, &mut routing.gates);
    }

    pub(super) fn n_bytes(&self) -> usize {
        self.gate.n_bytes()
    }
}
