//! The operations of a forward pass. Letters are the legend of [`crate`]; W are the rows whose logits are wanted.

use super::{MatrixId, RopeId, TensorId, VectorId};
use crate::cpu::{DeltaNetShape, Renormalise, RopePairs, RopePlace};

/// One operation. It reads `x`; without an `out` it also writes its result to `x`.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Rows of the embedding (V, D), one for each token of the step, to `out` (T, D).
    Embed {
        /// (V, D).
        table: MatrixId,
        /// (T, D).
        out: TensorId,
    },
    /// `x` times a number.
    Scale {
        /// Any shape.
        x: TensorId,
        /// The number.
        by: f32,
    },
    /// RMSNorm of the rows of `x`.
    Norm {
        /// (T, D).
        x: TensorId,
        /// (D).
        weight: VectorId,
        /// Added to the mean of squares.
        eps: f32,
        /// (T, D).
        out: TensorId,
    },
    /// RMSNorm in place, of each part of a row that is as long as the weights.
    NormInPlace {
        /// (T, n * weights).
        x: TensorId,
        /// (weights).
        weight: VectorId,
        /// Added to the mean of squares.
        eps: f32,
    },
    /// A matrix times the rows of `x`.
    Linear {
        /// (T, in).
        x: TensorId,
        /// The matrix, its bias and its output.
        projection: Projection,
    },
    /// Several matrices times the same rows, fused from neighbouring [`Op::Linear`]s.
    Linears {
        /// (T, in).
        x: TensorId,
        /// In order.
        projections: Vec<Projection>,
    },
    /// Cuts values to plus and minus a limit.
    Clip {
        /// Any shape.
        x: TensorId,
        /// The limit.
        limit: f32,
    },
    /// Rotates heads by their row's position.
    Rope {
        /// (T, heads, head width).
        x: TensorId,
        /// Columns of a head.
        head_width: usize,
        /// The table.
        rope: RopeId,
        /// Which columns form pairs, and which columns are rotated if not all.
        columns: (RopePairs, RopePlace),
    },
    /// Writes keys and values of the step's rows into the cache.
    CacheWrite {
        /// Which of the cache's layers.
        slot: usize,
        /// (T, G, C).
        k: TensorId,
        /// (T, G, C).
        v: TensorId,
    },
    /// Prepares queries and keys and writes keys and values into the cache, in one pass over a row. Fused from
    /// [`Op::NormInPlace`], [`Op::Rope`] and [`Op::CacheWrite`].
    HeadsToCache {
        /// Which of the cache's layers.
        slot: usize,
        /// (T, H, C).
        q: Heads,
        /// (T, G, C).
        k: Heads,
        /// (T, G, C).
        v: TensorId,
    },
    /// Attention over the cache.
    Attend {
        /// Which of the cache's layers.
        slot: usize,
        /// (T, H, C).
        q: TensorId,
        /// How.
        attention: Attention,
        /// (T, H, C).
        out: TensorId,
    },
    /// A step of a gated delta net, which updates the states of its sequences.
    DeltaNet {
        /// Which of the cache's states.
        state: usize,
        /// (T, [`DeltaNetShape::qkvz_width`]).
        qkvz: TensorId,
        /// (T, 2 Hv).
        ba: TensorId,
        /// How.
        net: DeltaNet,
        /// (T, Hv, Cv).
        out: TensorId,
    },
    /// Copies columns of `x` to columns of `out`.
    CopyColumns {
        /// Any shape.
        x: TensorId,
        /// Which columns, and how many times.
        columns: Columns,
        /// As many rows as `x`.
        out: TensorId,
    },
    /// Sets all values to zero.
    Zero {
        /// Any shape.
        out: TensorId,
    },
    /// `gate = activation(gate) * up`.
    Activate {
        /// (T, F).
        gate: TensorId,
        /// (T, F).
        up: TensorId,
        /// The function.
        activation: Activation,
    },
    /// `down(silu(gate(x)) * up(x))`, fused from three [`Op::Linear`]s and the activation.
    Mlp {
        /// (T, D).
        x: TensorId,
        /// Gate (F, D), up (F, D), down (D, F).
        matrices: [MatrixId; 3],
        /// (T, D).
        out: TensorId,
    },
    /// `x` times the sigmoid of `gates`: one gate for each value, or one for each row.
    SigmoidMul {
        /// (T, N).
        x: TensorId,
        /// (T, N) or (T, 1).
        gates: TensorId,
    },
    /// Chooses K experts for each row, and their gates. The result is the step's routing.
    Route {
        /// (T, E); overwritten.
        logits: TensorId,
        /// K.
        n_chosen: usize,
        /// How.
        router: RouterKind,
        /// Whether the gates of a row sum to one.
        renormalise: Renormalise,
        /// The last factor of gates.
        gate_scale: f32,
    },
    /// The gated sum of the chosen experts. The step pauses until it is there.
    Experts {
        /// The model's layer.
        layer: usize,
        /// (T, D).
        x: TensorId,
        /// (T, D).
        out: TensorId,
    },
    /// `x += y`.
    Add {
        /// (T, D).
        x: TensorId,
        /// (T, D).
        y: TensorId,
    },
    /// `x += y`, then RMSNorm of `x` to `out`. Fused from [`Op::Add`] and [`Op::Norm`].
    AddNorm {
        /// (T, D).
        x: TensorId,
        /// (T, D).
        y: TensorId,
        /// (D).
        weight: VectorId,
        /// Added to the mean of squares.
        eps: f32,
        /// (T, D).
        out: TensorId,
    },
    /// Keeps the rows whose logits are wanted. A step that wants none ends here.
    KeepWanted {
        /// (T, D).
        x: TensorId,
        /// (W, D).
        out: TensorId,
    },
    /// `x = cap * tanh(x / cap)`.
    SoftCap {
        /// Any shape.
        x: TensorId,
        /// The cap.
        cap: f32,
    },
    /// A part of the step is done; for callers that measure time.
    Done(Stage),
}

/// A matrix (out, in), its bias (out) if it has one, and its output (T, out).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Projection {
    /// (out, in).
    pub matrix: MatrixId,
    /// (out).
    pub bias: Option<VectorId>,
    /// (T, out).
    pub out: TensorId,
}

/// Heads of a projection, and how they are prepared for attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heads {
    /// (T, heads, head width).
    pub x: TensorId,
    /// As in [`Op::NormInPlace`]: the weights, and what is added to the mean of squares.
    pub norm: Option<(VectorId, f32)>,
    /// As in [`Op::Rope`].
    pub head_width: usize,
    /// As in [`Op::Rope`].
    pub rope: RopeId,
    /// As in [`Op::Rope`].
    pub columns: (RopePairs, RopePlace),
}

/// Scaled dot-product attention with grouped heads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// H, query heads.
    pub n_heads: usize,
    /// The factor of each product.
    pub scale: f32,
    /// Scores are `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// How many positions a row sees: its own and those before it. `None`: all.
    pub window: Option<usize>,
    /// A score for each query head (H) that takes part in the softmax and is then dropped.
    pub sinks: Option<VectorId>,
}

/// The parts of a delta net besides its projections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaNet {
    /// Its widths.
    pub shape: DeltaNetShape,
    /// See [`crate::cpu::DeltaNetWeights`].
    pub conv: VectorId,
    /// See [`crate::cpu::DeltaNetWeights`].
    pub a_log: VectorId,
    /// See [`crate::cpu::DeltaNetWeights`].
    pub dt_bias: VectorId,
    /// See [`crate::cpu::DeltaNetWeights`].
    pub norm: VectorId,
    /// The norm adds this to the mean of squares.
    pub rms_eps: f32,
}

/// `n` groups of `width` columns: group `g` from column `from.0 + g * from.1` to column `to.0 + g * to.1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    /// Groups.
    pub n: usize,
    /// Columns of each.
    pub width: usize,
    /// The start of the first group, and the distance to the next; a distance of 0 copies the same columns to every
    /// group.
    pub from: (usize, usize),
    /// The destination of the first group, and the distance to the next.
    pub to: (usize, usize),
}

/// The function between gate and up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + exp(-x))`.
    Silu,
    /// GELU by its approximation with tanh.
    GeluTanh,
}

/// How experts are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterKind {
    /// The largest of a softmax over all.
    Softmax,
    /// The largest of sigmoid plus a correction, within the best groups (DeepSeek-V3, section 2.1.2).
    SigmoidInGroups {
        /// (E).
        correction: VectorId,
        /// Groups of neighbouring experts.
        n_groups: usize,
        /// Groups that experts are chosen from.
        n_chosen_groups: usize,
    },
}

/// The part of a step that was just done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The embedding.
    Embed,
    /// A layer's first norm, the projections of queries, keys and values, their norms and rotations, the cache write.
    Projections,
    /// A layer's attention.
    Attention,
    /// A layer's output projection.
    Output,
    /// A layer's second norm and its router, or its dense MLP.
    Router,
    /// A layer's experts.
    Experts,
    /// The last norm and the head.
    Head,
}

impl Stage {
    /// All, in the order of a step.
    pub const ALL: [Self; 7] = [
        Self::Embed,
        Self::Projections,
        Self::Attention,
        Self::Output,
        Self::Router,
        Self::Experts,
        Self::Head,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::Projections => "projections",
            Self::Attention => "attention",
            Self::Output => "output",
            Self::Router => "router",
            Self::Experts => "experts",
            Self::Head => "head",
        }
    }
}

impl Op {
    /// Calls `each` for every tensor that it reads or writes.
    pub(crate) fn tensors(&self, mut each: impl FnMut(TensorId)) {
        match self {
            Self::Embed { out, .. } | Self::Zero { out } => each(*out),
            Self::Scale { x, .. }
            | Self::NormInPlace { x, .. }
            | Self::Clip { x, .. }
            | Self::Rope { x, .. }
            | Self::SoftCap { x, .. }
            | Self::Route { logits: x, .. } => each(*x),
            Self::Norm { x, out, .. }
            | Self::CopyColumns { x, out, .. }
            | Self::Mlp { x, out, .. }
            | Self::Experts { x, out, .. }
            | Self::KeepWanted { x, out }
            | Self::Attend { q: x, out, .. }
            | Self::CacheWrite { k: x, v: out, .. }
            | Self::Activate { gate: x, up: out, .. }
            | Self::SigmoidMul { x, gates: out }
            | Self::Add { x, y: out } => [*x, *out].into_iter().for_each(each),
            Self::Linear { x, projection } => [*x, projection.out].into_iter().for_each(each),
            Self::Linears { x, projections } => {
                each(*x);
                projections.iter().for_each(|projection| each(projection.out));
            }
            Self::HeadsToCache { q, k, v, .. } => [q.x, k.x, *v].into_iter().for_each(each),
            Self::DeltaNet { qkvz, ba, out, .. } => [*qkvz, *ba, *out].into_iter().for_each(each),
            Self::AddNorm { x, y, out, .. } => [*x, *y, *out].into_iter().for_each(each),
            Self::Done(_) => {}
        }
    }

    /// The matrices that it multiplies rows by.
    pub(crate) fn projections(&self) -> &[Projection] {
        match self {
            Self::Linear { projection, .. } => std::slice::from_ref(projection),
            Self::Linears { projections, .. } => projections,
            _ => &[],
        }
    }
}
