//! The first half of a layer: attention over cached positions, with separate projections or latent (low-rank) ones, or
//! a gated delta net.

use moex_kernels::{
    cpu::DeltaNetShape,
    graph::{Attention, Columns, DeltaNet, Rounding, Stage, TensorId},
};

use super::Forward;
use crate::{
    error::ModelError,
    spec::{AttentionSpec, Projection, QkNorm},
};

const ALLOWED: Rounding = Rounding::Allowed;

impl Forward<'_> {
    /// From normalised `rows` (T, D) to attention's output (T, D); the rows' keys and values enter the cache.
    pub(super) fn attention(
        &mut self,
        rows: TensorId,
        spec: &AttentionSpec,
        name: &str,
    ) -> Result<TensorId, ModelError> {
        let &AttentionSpec { n_heads, head_width, value_width, scale, window, .. } = spec;
        let Heads { q, k, v, gate } = match spec.projection {
            Projection::Separate => self.separate(rows, spec, name)?,
            Projection::Latent { q_rank, kv_rank } => self.latent(rows, spec, (q_rank, kv_rank), name)?,
        }; // (T, H*C), (T, G*C), (T, G*C)
        let rope = self.recorder.rope(spec.rope.rope());
        for (heads, norm) in [(q, "q_norm"), (k, "k_norm")] {
            let row_width = self.recorder.width(heads);
            let norm_width = match spec.qk_norm {
                QkNorm::None => None,
                QkNorm::Head => Some(head_width),
                QkNorm::Row => Some(row_width),
            };
            if let Some(width) = norm_width {
                let weight = self.norm_weight(&format!("{name}.{norm}"), width)?;
                self.recorder.norm_in_place(heads, weight, self.checkpoint.spec.rms_eps);
            }
            if let Some(clip) = spec.clip {
                self.recorder.clip(heads, clip);
            }
            self.recorder.rotate(heads, head_width, rope, (spec.rope.pairs, spec.rope.place));
        }
        if let Some(clip) = spec.clip {
            self.recorder.clip(v, clip);
        }
        let slot = self.n_slots;
        self.n_slots += 1;
        self.recorder.cache_write(slot, k, v);
        self.recorder.done(Stage::Projections);

        let sinks = match spec.has_sinks {
            false => None,
            true => Some(self.vector(&format!("{name}.sinks"), n_heads)?),
        };
        let softcap = spec.score_softcap;
        let mut heads = self.recorder.attend(slot, q, Attention { n_heads, scale, softcap, window, sinks }); // (T, H*C)
        self.recorder.done(Stage::Attention);
        if value_width < head_width {
            let columns =
                Columns { n: n_heads, width: value_width, from: (0, head_width), to: (0, value_width) };
            heads = self.columns("values", heads, columns); // (T, H*Cv)
        }
        if let Some(gate) = gate {
            self.recorder.sigmoid_mul(heads, gate);
        }
        self.linear(heads, (name, "o_proj"), self.checkpoint.spec.hidden, (spec.output_bias, ALLOWED))
    }

    /// Separate projections.
    fn separate(&mut self, rows: TensorId, spec: &AttentionSpec, name: &str) -> Result<Heads, ModelError> {
        let &AttentionSpec { n_heads, head_width, .. } = spec;
        let has_bias = (spec.qkv_bias, ALLOWED);
        let queries = spec.q_width() * if spec.has_output_gate { 2 } else { 1 };
        let q = self.linear(rows, (name, "q_proj"), queries, has_bias)?; // (T, H*C), or (T, H, query and gate)
        let k = self.linear(rows, (name, "k_proj"), spec.kv_width(), has_bias)?; // (T, G*C)
        let v = self.linear(rows, (name, "v_proj"), spec.kv_width(), has_bias)?; // (T, G*C)
        if !spec.has_output_gate {
            return Ok(Heads { q, k, v, gate: None });
        }
        let half = |start| Columns {
            n: n_heads,
            width: head_width,
            from: (start, 2 * head_width),
            to: (0, head_width),
        };
        let gate = self.columns("gate", q, half(head_width)); // (T, H*C)
        let q = self.columns("q", q, half(0)); // (T, H*C)
        Ok(Heads { q, k, v, gate: Some(gate) })
    }

    /// Multi-head latent attention (DeepSeek-V2, section 2.1, <https://arxiv.org/abs/2405.04434>): each head has its
    /// own columns and rotated ones; all heads share the keys' rotated columns. Keys and values are cached per head.
    fn latent(
        &mut self,
        rows: TensorId,
        spec: &AttentionSpec,
        (q_rank, kv_rank): (Option<usize>, usize),
        name: &str,
    ) -> Result<Heads, ModelError> {
        let &AttentionSpec { n_heads, head_width, value_width, .. } = spec;
        let (rotated, own) = (spec.rope.width, head_width - spec.rope.width);
        let has_bias = (spec.qkv_bias, ALLOWED);
        let q = match q_rank {
            None => self.linear(rows, (name, "q_proj"), spec.q_width(), has_bias)?,
            Some(rank) => {
                let narrow = self.linear(rows, (name, "q_a_proj"), rank, has_bias)?; // (T, Rq)
                self.norm_in_place(narrow, &format!("{name}.q_a_layernorm"))?;
                self.linear(narrow, (name, "q_b_proj"), spec.q_width(), has_bias)?
            }
        }; // (T, H*C)
        let both = self.linear(rows, (name, "kv_a_proj_with_mqa"), kv_rank + rotated, has_bias)?; // (T, Rkv + rotated)
        let whole = Columns { n: 1, width: kv_rank, from: (0, 0), to: (0, 0) };
        let latent = self.columns("latent", both, whole); // (T, Rkv)
        self.norm_in_place(latent, &format!("{name}.kv_a_layernorm"))?;
        let wide = own + value_width;
        let heads = self.linear(latent, (name, "kv_b_proj"), n_heads * wide, has_bias)?; // (T, H, own + Cv)

        let k = self.recorder.like("k", rows, n_heads * head_width); // (T, H*C)
        let own_keys = Columns { n: n_heads, width: own, from: (0, wide), to: (0, head_width) };
        self.recorder.copy_columns(heads, own_keys, k);
        let shared_keys = Columns { n: n_heads, width: rotated, from: (kv_rank, 0), to: (own, head_width) };
        self.recorder.copy_columns(both, shared_keys, k);
        let v = self.recorder.like("v", rows, n_heads * head_width); // (T, H*C), filled up with zeros
        self.recorder.zero(v);
        let values = Columns { n: n_heads, width: value_width, from: (own, wide), to: (0, head_width) };
        self.recorder.copy_columns(heads, values, v);
        Ok(Heads { q, k, v, gate: None })
    }

    /// From normalised `rows` (T, D) to a gated delta net's output (T, D); updates the sequences' states.
    pub(super) fn delta_net(
        &mut self,
        rows: TensorId,
        shape: DeltaNetShape,
        name: &str,
    ) -> Result<TensorId, ModelError> {
        let qkvz = self.linear(rows, (name, "in_proj_qkvz"), shape.qkvz_width(), (false, ALLOWED))?;
        // They control how fast a state decays.
        let ba = self.linear(rows, (name, "in_proj_ba"), shape.ba_width(), (false, Rounding::Never))?;
        let conv =
            self.checkpoint.conv(&format!("{name}.conv1d.weight"), shape.conv_width(), shape.kernel)?;
        let net = DeltaNet {
            shape,
            conv: self.recorder.vector(conv),
            a_log: self.vector(&format!("{name}.A_log"), shape.n_value_heads)?,
            dt_bias: self.vector(&format!("{name}.dt_bias"), shape.n_value_heads)?,
            norm: self.vector(&format!("{name}.norm.weight"), shape.value_width)?,
            rms_eps: self.checkpoint.spec.rms_eps,
        };
        self.recorder.done(Stage::Projections);
        let heads = self.recorder.delta_net(self.n_states, qkvz, ba, net); // (T, Hv*Cv)
        self.n_states += 1;
        self.recorder.done(Stage::Attention);
        self.linear(heads, (name, "out_proj"), self.checkpoint.spec.hidden, (false, ALLOWED))
    }

    /// A tensor of columns of `x`.
    fn columns(&mut self, name: &'static str, x: TensorId, columns: Columns) -> TensorId {
        let out = self.recorder.like(name, x, columns.n * columns.width);
        self.recorder.copy_columns(x, columns, out);
        out
    }
}

/// Queries, keys and values, neither normed nor rotated.
struct Heads {
    q: TensorId,            // (T, H*C)
    k: TensorId,            // (T, G*C)
    v: TensorId,            // (T, G*C)
    gate: Option<TensorId>, // (T, H*C)
}
