//! A layer, split where its experts may be elsewhere: [`Layer::attend`], [`Layer::route`], then [`Layer::absorb`].

use moex_kernels::cpu;

use super::{
    attention::Attention,
    checkpoint::{Checkpoint, Expert},
    compute::{Compute, Linear, Rounding, Rows},
    error::ModelError,
    kv::KvPool,
    mlp::Mlp,
    router::Router,
    spec::{Activation, FfnSpec, NormPlaces, SharedExpertSpec},
    step::Span,
    workspace::{Stage, Workspace, sized},
};

/// `model.layers.{index}`.
pub(super) struct Layer {
    index: usize,
    rms_eps: f32,
    input_layernorm: Vec<f32>, // (D)
    self_attn: Attention,
    /// Of the attention's output, in a layer with norms before and after.
    attention_output_layernorm: Option<Vec<f32>>, // (D)
    post_attention_layernorm: Vec<f32>, // (D)
    ffn: Ffn,
    /// Of the second half's output.
    feedforward_output_layernorm: Option<Vec<f32>>, // (D)
}

#[expect(clippy::large_enum_variant, reason = "one a layer, made at load and never moved")]
enum Ffn {
    Sparse { router: Router, experts: Vec<Expert>, shared: Option<SharedExpert> },
    Dense(Mlp),
}

/// The expert that every row goes to.
struct SharedExpert {
    mlp: Mlp,
    gate: Option<Linear>, // (1, D)
}

/// What the second half of a layer still needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Routed {
    /// The experts that the workspace's routing chose for its normalised rows (T, D).
    Sparse,
    /// Nothing: a dense layer's output is in the workspace's sum (T, D).
    Dense,
}

impl Layer {
    /// `rope` is which of the model's rotations are this layer's.
    pub(super) fn load(
        checkpoint: &Checkpoint,
        compute: &Compute,
        index: usize,
        rope: usize,
    ) -> Result<Self, ModelError> {
        let spec = &checkpoint.spec;
        let name = format!("model.layers.{index}");
        let norm = |part: &str| checkpoint.norm(&format!("{name}.{part}.weight"), spec.hidden);
        let after = |part: &str| match spec.layers[index].norms {
            NormPlaces::Before => Ok(None),
            NormPlaces::BeforeAndAfter => norm(part).map(Some),
        };
        Ok(Self {
            index,
            rms_eps: spec.rms_eps,
            input_layernorm: norm("input_layernorm")?,
            self_attn: Attention::load(checkpoint, compute, (index, rope))?,
            attention_output_layernorm: after("attention_output_layernorm")?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            ffn: Ffn::load(checkpoint, compute, &format!("{name}.mlp"), spec.layers[index].ffn)?,
            feedforward_output_layernorm: after("feedforward_output_layernorm")?,
        })
    }

    /// x (T, D) += attention over it and what its sequences have cached.
    pub(super) fn attend(
        &self,
        compute: &Compute,
        spans: &[Span<'_>],
        kv: &mut KvPool,
        space: &mut Workspace,
    ) {
        let n_values = space.x.len();
        compute.rms_norm(&space.x, &self.input_layernorm, self.rms_eps, sized(&mut space.rows, n_values));
        self.self_attn.forward(compute, spans, self.index, kv, space);
        let out = &mut space.attention.out;
        if let Some(norm) = &self.attention_output_layernorm {
            compute.rms_norm_in_place(out, norm, self.rms_eps);
        }
        compute.add(&mut space.x, out, self.input_layernorm.len());
    }

    /// What the second half makes of x (T, D), or whom to ask.
    pub(super) fn route(&self, compute: &Compute, space: &mut Workspace) -> Routed {
        let n_values = space.x.len();
        let norm = &self.post_attention_layernorm;
        compute.rms_norm(&space.x, norm, self.rms_eps, sized(&mut space.rows, n_values));
        sized(&mut space.sum, n_values);
        let routed = match &self.ffn {
            Ffn::Sparse { router, shared, .. } => {
                router.route(space);
                if let Some(shared) = shared {
                    shared.forward(compute, space);
                }
                Routed::Sparse
            }
            Ffn::Dense(mlp) => {
                mlp.forward(compute, &space.rows, &mut space.mlp, &mut space.sum);
                Routed::Dense
            }
        };
        space.done(Stage::Router);
        routed
    }

    /// x (T, D) += the second half's output, wherever it was computed.
    pub(super) fn absorb(&self, compute: &Compute, space: &mut Workspace) {
        let hidden = self.input_layernorm.len();
        if let Ffn::Sparse { shared: Some(_), .. } = &self.ffn {
            compute.add(&mut space.sum, &space.shared, hidden);
        }
        if let Some(norm) = &self.feedforward_output_layernorm {
            compute.rms_norm_in_place(&mut space.sum, norm, self.rms_eps);
        }
        compute.add(&mut space.x, &space.sum, hidden);
        space.done(Stage::Experts);
    }

    /// The experts in the checkpoint, none for a dense layer.
    pub(super) fn experts(&self) -> &[Expert] {
        match &self.ffn {
            Ffn::Sparse { experts, .. } => experts,
            Ffn::Dense(_) => &[],
        }
    }

    /// Bytes of everything but the experts that workers may hold.
    pub(super) fn shared_bytes(&self) -> usize {
        self.self_attn.n_bytes()
            + match &self.ffn {
                Ffn::Sparse { router, shared, .. } => {
                    router.n_bytes() + shared.as_ref().map_or(0, |shared| shared.mlp.n_bytes())
                }
                Ffn::Dense(mlp) => mlp.n_bytes(),
            }
    }
}

impl Ffn {
    fn load(
        checkpoint: &Checkpoint,
        compute: &Compute,
        name: &str,
        ffn: FfnSpec,
    ) -> Result<Self, ModelError> {
        let moe = &checkpoint.spec.moe;
        if let FfnSpec::Dense { inner, activation } = ffn {
            return Ok(Self::Dense(Mlp::load(checkpoint, compute, name, inner, activation)?));
        }
        let expert = |expert| checkpoint.expert(&format!("{name}.experts.{expert}"), moe.inner);
        Ok(Self::Sparse {
            router: Router::load(checkpoint, compute, name)?,
            experts: (0..moe.n_experts).map(expert).collect::<Result<_, _>>()?,
            shared: moe.shared.map(|spec| SharedExpert::load(checkpoint, compute, name, spec)).transpose()?,
        })
    }
}

impl SharedExpert {
    fn load(
        checkpoint: &Checkpoint,
        compute: &Compute,
        name: &str,
        spec: SharedExpertSpec,
    ) -> Result<Self, ModelError> {
        let mlp_name = format!("{name}.shared_expert");
        let mlp = Mlp::load(checkpoint, compute, &mlp_name, spec.inner, Activation::Silu)?;
        let gate = match spec.is_gated {
            false => None,
            true => {
                let name = format!("{name}.shared_expert_gate.weight");
                let matrix = checkpoint.matrix(&name, 1, checkpoint.spec.hidden)?;
                Some(Linear::new(matrix, compute, Rounding::Never)?)
            }
        };
        Ok(Self { mlp, gate })
    }

    /// From `space`'s rows (T, D) to its shared (T, D).
    fn forward(&self, compute: &Compute, space: &mut Workspace) {
        let n_values = space.rows.len();
        let out = sized(&mut space.shared, n_values);
        self.mlp.forward(compute, &space.rows, &mut space.mlp, out);
        let Some(gate) = &self.gate else { return };
        let hidden = gate.shape().1;
        let gates = sized(&mut space.router_logits, n_values / hidden); // (T, 1)
        gate.forward(&mut Rows::new(&space.rows, &mut space.int8), gates);
        compute.each_row(out, hidden, |t, row| cpu::scale_by_sigmoid(row, gates[t]));
    }
}
