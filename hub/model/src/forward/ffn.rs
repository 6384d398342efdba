//! The second half of a layer: a gated MLP, or a router and experts, optionally with a shared expert.

use moex_kernels::graph::{Activation, Rounding, RouterKind, Stage, TensorId};

use super::Forward;
use crate::{error::ModelError, spec::Scoring};

impl Forward<'_> {
    /// From normalised `rows` (T, D) to the output of a dense layer's MLP (T, D).
    pub(super) fn dense(
        &mut self,
        rows: TensorId,
        mlp: (usize, Activation),
        name: &str,
    ) -> Result<TensorId, ModelError> {
        let out = self.mlp(rows, mlp, name)?;
        self.recorder.done(Stage::Router);
        Ok(out)
    }

    /// From normalised `rows` (T, D) to the gated sum of the chosen experts (T, D): the step pauses for it.
    pub(super) fn experts(
        &mut self,
        rows: TensorId,
        layer: usize,
        name: &str,
    ) -> Result<TensorId, ModelError> {
        let moe = self.checkpoint.spec.moe;
        let gate = (name, "gate");
        let logits = self.linear(rows, gate, moe.n_experts, (moe.has_router_bias, Rounding::Never))?; // (T, E)
        let router = match moe.scoring {
            Scoring::Softmax => RouterKind::Softmax,
            Scoring::SigmoidInGroups { n_groups, n_chosen_groups } => RouterKind::SigmoidInGroups {
                correction: self.vector(&format!("{name}.gate.e_score_correction_bias"), moe.n_experts)?,
                n_groups,
                n_chosen_groups,
            },
        };
        self.recorder.route(logits, moe.n_chosen, router, (moe.renormalise, moe.gate_scale));
        let mut shared = None;
        if let Some(spec) = moe.shared {
            let mlp = (spec.inner, Activation::Silu);
            let out = self.mlp(rows, mlp, &format!("{name}.shared_expert"))?; // (T, D)
            if spec.is_gated {
                let gates = self.linear(rows, (name, "shared_expert_gate"), 1, (false, Rounding::Never))?; // (T, 1)
                self.recorder.sigmoid_mul(out, gates);
            }
            shared = Some(out);
        }
        self.recorder.done(Stage::Router);
        let sum = self.recorder.experts(layer, rows); // (T, D)
        if let Some(shared) = shared {
            self.recorder.add(sum, shared);
        }
        Ok(sum)
    }

    /// `down(activation(gate(rows)) * up(rows))`, F wide inside.
    fn mlp(
        &mut self,
        rows: TensorId,
        (inner, activation): (usize, Activation),
        name: &str,
    ) -> Result<TensorId, ModelError> {
        let plain = (false, Rounding::Allowed);
        let gate = self.linear(rows, (name, "gate_proj"), inner, plain)?; // (T, F)
        let up = self.linear(rows, (name, "up_proj"), inner, plain)?; // (T, F)
        self.recorder.activate(gate, up, activation);
        self.linear(gate, (name, "down_proj"), self.checkpoint.spec.hidden, plain) // (T, D)
    }
}
