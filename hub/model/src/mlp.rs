//! A gated MLP on the hub: a dense layer's, or the expert that every row goes to.

use moex_kernels::{
    cpu,
    engine::Pair,
    simd::{self, ExpertCall, PackedExpertShape, PageSize, Slab},
};

use super::{
    checkpoint::{Checkpoint, Expert},
    compute::{Compute, Linear, Rows},
    error::ModelError,
    spec::Activation,
    workspace::{MlpSpace, sized},
};

/// `down(activation(gate(x)) * up(x))`.
#[expect(clippy::large_enum_variant, reason = "one a layer, made at load and never moved")]
pub(super) enum Mlp {
    /// Computed as an expert that every row goes to.
    Silu { mlp: Box<Expert>, packed: Option<(PackedExpertShape, Slab)> },
    /// Matrix by matrix.
    Gelu {
        gate: Linear, // (F, D)
        up: Linear,   // (F, D)
        down: Linear, // (D, F)
    },
}

impl Mlp {
    /// `{name}.gate_proj` and its two companions, `inner` F wide inside.
    pub(super) fn load(
        checkpoint: &Checkpoint,
        compute: &Compute,
        name: &str,
        inner: usize,
        activation: Activation,
    ) -> Result<Self, ModelError> {
        if activation == Activation::GeluTanh {
            let hidden = checkpoint.spec.hidden;
            let linear = |part: &str, out, input| {
                Linear::load(checkpoint, compute, &format!("{name}.{part}"), (out, input), false)
            };
            return Ok(Self::Gelu {
                gate: linear("gate_proj", inner, hidden)?,
                up: linear("up_proj", inner, hidden)?,
                down: linear("down_proj", hidden, inner)?,
            });
        }
        let mlp = Box::new(checkpoint.expert(name, inner)?);
        let Compute::Fast(fast) = compute else { return Ok(Self::Silu { mlp, packed: None }) };
        let packed = mlp.read(|view| {
            let shape = PackedExpertShape::of(view);
            let mut panels = Slab::new(shape.bytes(), PageSize::Huge).map_err(ModelError::NoMemory)?;
            shape.pack(fast.processor.pool(), view, &mut panels);
            Ok((shape, panels))
        });
        Ok(Self::Silu { packed: Some(packed?), mlp })
    }

    /// From `rows` (T, D) to `out` (T, D).
    pub(super) fn forward(&self, compute: &Compute, rows: &[f32], space: &mut MlpSpace, out: &mut [f32]) {
        match (self, compute) {
            (Self::Silu { packed: Some((shape, panels)), mlp }, Compute::Fast(fast)) => {
                let pairs = each_once(&mut space.all_rows, rows.len() / mlp.gate.cols());
                let call = [ExpertCall { expert: panels, pairs }];
                let (simd, pool) = (fast.processor.simd(), fast.processor.pool());
                simd::experts(simd, pool, shape, &mut space.scratch, &call, rows, out)
                    .expect("packed in this shape");
            }
            (Self::Silu { mlp, .. }, _) => {
                let pairs = each_once(&mut space.all_rows, rows.len() / mlp.gate.cols());
                cpu::expert_ffn(&mlp.view(), rows, pairs, out);
            }
            (Self::Gelu { gate, up, down }, _) => {
                let (inner, hidden) = gate.shape();
                let n_rows = rows.len() / hidden;
                let mut x = Rows::new(rows, &mut space.int8);
                let h = sized(&mut space.gate, n_rows * inner); // (T, F)
                gate.forward(&mut x, h);
                let up_rows = sized(&mut space.up, n_rows * inner); // (T, F)
                up.forward(&mut x, up_rows);
                compute.each_row(h, inner, |t, h| cpu::gelu_mul(h, &up_rows[t * inner..][..inner]));
                down.forward(&mut Rows::new(h, &mut space.int8), out);
            }
        }
    }

    pub(super) fn n_bytes(&self) -> usize {
        match self {
            Self::Silu { mlp, .. } => mlp.n_bytes(),
            Self::Gelu { gate, up, down } => [gate, up, down].map(Linear::n_bytes).iter().sum(),
        }
    }
}

/// Each of `n_rows` rows once, in memory that is there.
fn each_once(pairs: &mut Vec<Pair>, n_rows: usize) -> &[Pair] {
    pairs.clear();
    pairs.extend((0..n_rows as u32).map(|row| Pair { row, gate: 1.0 }));
    pairs
}
