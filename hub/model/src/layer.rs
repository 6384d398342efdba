//! A layer, split where its experts may be elsewhere: [`Layer::attend`], [`Layer::route`], then [`Layer::absorb`].

use moex_kernels::{
    cpu,
    engine::Pair,
    simd::{self, ExpertCall, PackedExpertShape, PageSize, Slab},
};

use super::{
    attention::Attention,
    compute::Compute,
    config::MlpKind,
    error::ModelError,
    files::Checkpoint,
    kv::KvPool,
    router::Router,
    transformer::Span,
    weights::Expert,
    workspace::{Stage, Workspace, sized},
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
    Dense(DenseMlp),
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
    pub(super) fn load(checkpoint: &Checkpoint, compute: &Compute, index: usize) -> Result<Self, ModelError> {
        let config = &checkpoint.config;
        let name = format!("model.layers.{index}");
        let mlp = format!("{name}.mlp");
        Ok(Self {
            index,
            rms_eps: config.rms_eps,
            input_layernorm: checkpoint.vector(&format!("{name}.input_layernorm.weight"), config.hidden)?,
            self_attn: Attention::load(checkpoint, compute, &format!("{name}.self_attn"))?,
            post_attention_layernorm: checkpoint
                .vector(&format!("{name}.post_attention_layernorm.weight"), config.hidden)?,
            mlp: match config.layers[index] {
                MlpKind::Dense => {
                    let mlp = checkpoint.expert(&mlp, config.dense_inner)?;
                    Mlp::Dense(DenseMlp::new(Box::new(mlp), compute)?)
                }
                MlpKind::Sparse => Mlp::Sparse {
                    router: Router::load(checkpoint, compute, &mlp)?,
                    experts: (0..config.moe.n_experts)
                        .map(|expert| checkpoint.expert(&format!("{mlp}.experts.{expert}"), config.moe.inner))
                        .collect::<Result<_, _>>()?,
                },
            },
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
        compute.add(&mut space.x, &space.attention.out, self.input_layernorm.len());
    }

    /// What the MLP makes of x (T, D), or whom to ask.
    pub(super) fn route(&self, compute: &Compute, space: &mut Workspace) -> Routed {
        let n_values = space.x.len();
        let norm = &self.post_attention_layernorm;
        compute.rms_norm(&space.x, norm, self.rms_eps, sized(&mut space.rows, n_values));
        sized(&mut space.sum, n_values);
        let routed = match &self.mlp {
            Mlp::Sparse { router, .. } => {
                router.route(space);
                Routed::Sparse
            }
            Mlp::Dense(mlp) => {
                mlp.forward(compute, space);
                Routed::Dense
            }
        };
        space.done(Stage::Router);
        routed
    }

    /// x (T, D) += the MLP's output, wherever it was computed.
    pub(super) fn absorb(&self, compute: &Compute, space: &mut Workspace) {
        compute.add(&mut space.x, &space.sum, self.input_layernorm.len());
        space.done(Stage::Experts);
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
                Mlp::Dense(mlp) => mlp.mlp.n_bytes(),
            }
    }
}

/// The MLP of a dense layer: an expert that every row goes to.
struct DenseMlp {
    mlp: Box<Expert>,
    packed: Option<(PackedExpertShape, Slab)>,
}

impl DenseMlp {
    fn new(mlp: Box<Expert>, compute: &Compute) -> Result<Self, ModelError> {
        let Compute::Fast(fast) = compute else { return Ok(Self { mlp, packed: None }) };
        let packed = mlp.read(|view| {
            let shape = PackedExpertShape::of(view);
            let mut panels = Slab::new(shape.bytes(), PageSize::Huge).map_err(ModelError::NoMemory)?;
            shape.pack(fast.processor.pool(), view, &mut panels);
            Ok((shape, panels))
        });
        Ok(Self { packed: Some(packed?), mlp })
    }

    /// From `space`'s rows (T, D) to its sum (T, D).
    fn forward(&self, compute: &Compute, space: &mut Workspace) {
        let n_rows = space.rows.len() / self.mlp.gate.cols();
        space.all_rows.clear();
        space.all_rows.extend((0..n_rows as u32).map(|row| Pair { row, gate: 1.0 }));
        let pairs = &space.all_rows;
        match (&self.packed, compute) {
            (Some((shape, panels)), Compute::Fast(fast)) => {
                let call = [ExpertCall { expert: panels, pairs }];
                let (simd, pool) = (fast.processor.simd(), fast.processor.pool());
                simd::experts(simd, pool, shape, &mut space.dense, &call, &space.rows, &mut space.sum)
                    .expect("packed in this shape");
            }
            _ => cpu::expert_ffn(&self.mlp.view(), &space.rows, pairs, &mut space.sum),
        }
    }
}
