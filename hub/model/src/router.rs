//! The router of a sparse layer.

use moex_kernels::cpu::{self, Groups};

use super::{
    checkpoint::Checkpoint,
    compute::{Compute, Linear, Rounding, Rows},
    error::ModelError,
    spec::{MoeSpec, Scoring},
    workspace::{Workspace, sized},
};

/// `mlp.gate` and what the spec says about it.
pub(super) struct Router {
    gate: Linear, // (E, D)
    /// `e_score_correction_bias` (E), of a router by sigmoid.
    correction: Vec<f32>,
    moe: MoeSpec,
}

impl Router {
    pub(super) fn load(checkpoint: &Checkpoint, compute: &Compute, mlp: &str) -> Result<Self, ModelError> {
        let moe = checkpoint.spec.moe;
        let gate = checkpoint.matrix(&format!("{mlp}.gate.weight"), moe.n_experts, checkpoint.spec.hidden)?;
        let correction = match moe.scoring {
            Scoring::Softmax => Vec::new(),
            Scoring::SigmoidInGroups { .. } => {
                checkpoint.vector(&format!("{mlp}.gate.e_score_correction_bias"), moe.n_experts)?
            }
        };
        Ok(Self { gate: Linear::new(gate, compute, Rounding::Never)?, correction, moe })
    }

    /// From `space`'s rows (T, D) to its routing, K experts a row, the one that counts most first.
    pub(super) fn route(&self, space: &mut Workspace) {
        let MoeSpec { n_experts, n_chosen: k, renormalise, gate_scale, .. } = self.moe;
        let n_rows = space.rows.len() / self.gate.shape().1;
        let logits = sized(&mut space.router_logits, n_rows * n_experts); // (T, E)
        self.gate.forward(&mut Rows::new(&space.rows, &mut space.int8), logits);
        let routing = &mut space.routing;
        routing.k = k;
        routing.experts.resize(n_rows * k, 0); // (T, K)
        routing.gates.resize(n_rows * k, 0.0); // (T, K)
        let (experts, gates) = (&mut routing.experts, &mut routing.gates);
        match self.moe.scoring {
            Scoring::Softmax => cpu::route(logits, n_experts, k, renormalise, experts, gates),
            Scoring::SigmoidInGroups { n_groups, n_chosen_groups } => {
                let groups = Groups { correction: &self.correction, n_groups, n_chosen_groups };
                cpu::route_in_groups(logits, &groups, k, (renormalise, gate_scale), experts, gates);
            }
        }
    }

    pub(super) fn n_bytes(&self) -> usize {
        self.gate.n_bytes()
    }
}
