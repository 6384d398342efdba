//! A model as data: everything that the forward pass needs, independent of files.
//!
//! Each difference between families is a field that describes the computation. `families` derives the fields from
//! configs.

use moex_kernels::{
    ExpertKind,
    cpu::{DeltaNetShape, Renormalise, RopeScaling},
};

pub use moex_kernels::{
    cpu::{RopePairs, RopePlace},
    graph::Activation,
};

/// Maximum layers of a model.
pub const MAX_LAYERS: usize = 1024;
/// Maximum experts per layer, and maximum chosen experts.
pub const MAX_EXPERTS: usize = 4096;
/// Maximum width of a row, by the wire's header.
pub const MAX_WIDTH: usize = 65_535;
/// Maximum entries of a vocabulary.
pub const MAX_VOCAB: usize = 1 << 22;
/// Maximum context.
pub const MAX_POSITIONS: usize = 1 << 24;
/// Maximum inner width of a dense layer's MLP.
pub const MAX_INNER: usize = 1 << 20;

/// A decoder-only transformer. Letters are the legend of [`crate`].
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// Its family, by `model_type`.
    pub family: &'static str,
    /// D, the width of a row between layers.
    pub hidden: usize,
    /// V, the entries of the vocabulary.
    pub vocab: usize,
    /// Epsilon of RMSNorm.
    pub rms_eps: f32,
    /// How a norm's stored weights are applied.
    pub norm_weights: NormWeights,
    /// Factor of the embeddings; 1 except in Gemma.
    pub embedding_scale: f32,
    /// Logits are `cap * tanh(logits / cap)`.
    pub logit_softcap: Option<f32>,
    /// Whether the head is the embedding.
    pub tied_head: bool,
    /// Maximum positions of a sequence.
    pub max_positions: usize,
    /// F of dense layers by the config, even if there are none; 0 if the config does not say.
    pub dense_inner: usize,
    /// The layers, from the embedding to the head.
    pub layers: Vec<LayerSpec>,
    /// Common properties of its layers with experts; [`MoeSpec::NONE`] in a model without.
    pub moe: MoeSpec,
    /// End tokens, as far as the config lists them.
    pub eos: Vec<u32>,
}

/// How the stored weights of an RMSNorm are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormWeights {
    /// As they are stored.
    Plain,
    /// One is added to each: Gemma's.
    OnePlus,
}

/// One layer: a part that mixes rows, then a feed-forward part, each added to the residual stream.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// The first half.
    pub mixer: Mixer,
    /// The second half.
    pub ffn: FfnSpec,
    /// Placement of its norms.
    pub norms: NormPlaces,
}

/// How a layer's rows depend on earlier ones.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Attention over cached positions.
    Attention(AttentionSpec),
    /// A gated delta net: a state of constant size per sequence.
    DeltaNet(DeltaNetShape),
}

/// Placement of a layer's norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlaces {
    /// Before each half.
    Before,
    /// Before and after each half: Gemma's "sandwich".
    BeforeAndAfter,
}

/// Attention of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// H, query heads.
    pub n_heads: usize,
    /// G, key and value heads; divides H.
    pub n_kv_heads: usize,
    /// C, columns of a query or key head.
    pub head_width: usize,
    /// Columns of a value head; at most C.
    pub value_width: usize,
    /// Projections of queries, keys and values.
    pub projection: Projection,
    /// Whether q, k and v have biases.
    pub qkv_bias: bool,
    /// Whether the output projection has a bias.
    pub output_bias: bool,
    /// RMSNorm of queries and keys.
    pub qk_norm: QkNorm,
    /// Queries, keys and values are clipped to plus and minus this (`clip_qkv`).
    pub clip: Option<f32>,
    /// Rotary position embedding.
    pub rope: RopeSpec,
    /// Sliding window: positions that a row attends to, including its own; all if none.
    pub window: Option<usize>,
    /// Factor of the scores.
    pub scale: f32,
    /// Scores are `cap * tanh(score / cap)`.
    pub score_softcap: Option<f32>,
    /// Whether each query head has a learned score that joins the softmax and is then dropped (attention sinks).
    pub has_sinks: bool,
    /// Whether a head's output is multiplied by the sigmoid of a gate, which `q_proj` computes beside its query.
    pub has_output_gate: bool,
}

/// Projections of queries, keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projection {
    /// One matrix each.
    Separate,
    /// Multi-head latent attention (DeepSeek-V2, section 2.1): each head has its own columns and `rope_width` rotated
    /// ones; all heads share the keys' rotated columns.
    Latent {
        /// The rank of queries; none if they are projected directly.
        q_rank: Option<usize>,
        /// The rank of keys and values.
        kv_rank: usize,
    },
}

/// RMSNorm of queries and keys before rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    None,
    /// Per head.
    Head,
    /// Over all heads of a row together.
    Row,
}

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// `rope_theta`.
    pub theta: f32,
    /// Scaling of frequencies for longer contexts.
    pub scaling: Option<RopeScaling>,
    /// Number of rotated columns of a head.
    pub width: usize,
    /// Which columns are rotated together.
    pub pairs: RopePairs,
    /// Position of the rotated columns, if not all are rotated.
    pub place: RopePlace,
}

/// The second half of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FfnSpec {
    /// A router and experts, described by [`ModelSpec::moe`].
    Sparse,
    /// One gated MLP for every row.
    Dense {
        /// F, its inner width.
        inner: usize,
        /// Activation between its projections.
        activation: Activation,
    },
}

/// Properties of the layers with experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoeSpec {
    /// E, experts of a layer.
    pub n_experts: usize,
    /// K, chosen experts per row.
    pub n_chosen: usize,
    /// F, an expert's inner width.
    pub inner: usize,
    /// Activation of an expert, and whether it has biases.
    pub kind: ExpertKind,
    /// Whether the router has a bias.
    pub has_router_bias: bool,
    /// Scoring of the router's logits.
    pub scoring: Scoring,
    /// Whether the gates of a row are normalised to sum to one.
    pub renormalise: Renormalise,
    /// Factor of the gates.
    pub gate_scale: f32,
    /// The shared expert, on the hub.
    pub shared: Option<SharedExpertSpec>,
}

impl MoeSpec {
    /// For a model without experts.
    pub const NONE: Self = Self {
        n_experts: 0,
        n_chosen: 0,
        inner: 0,
        kind: ExpertKind::Silu,
        has_router_bias: false,
        scoring: Scoring::Softmax,
        renormalise: Renormalise::No,
        gate_scale: 1.0,
        shared: None,
    };
}

/// Scoring of a router's logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// Softmax over all E.
    Softmax,
    /// Sigmoid; experts are chosen by the score plus a stored correction, within the best groups (DeepSeek-V3, section
    /// 2.1.2).
    SigmoidInGroups {
        /// Groups of neighbouring experts.
        n_groups: usize,
        /// Number of groups that experts are chosen from.
        n_chosen_groups: usize,
    },
}

/// The shared expert, which every row uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExpertSpec {
    /// Its inner width.
    pub inner: usize,
    /// Whether its output is multiplied by the sigmoid of a gate.
    pub is_gated: bool,
}

impl ModelSpec {
    /// The indices of the layers with experts.
    pub fn sparse_layers(&self) -> impl Iterator<Item = usize> + '_ {
        let sparse = |(index, layer): (usize, &LayerSpec)| (layer.ffn == FfnSpec::Sparse).then_some(index);
        self.layers.iter().enumerate().filter_map(sparse)
    }

    /// Attention of each layer that has it.
    pub fn attentions(&self) -> impl Iterator<Item = &AttentionSpec> {
        self.layers.iter().filter_map(|layer| match &layer.mixer {
            Mixer::Attention(attention) => Some(attention),
            Mixer::DeltaNet(_) => None,
        })
    }

    /// As [`Self::attentions`], mutable.
    pub(crate) fn attentions_mut(&mut self) -> impl Iterator<Item = &mut AttentionSpec> {
        self.layers.iter_mut().filter_map(LayerSpec::attention_mut)
    }

    /// The attention that determines the KV pages: the same for all layers except for windows and rotation.
    ///
    /// # Panics
    /// If no layer has attention, which no family allows.
    pub fn cached(&self) -> &AttentionSpec {
        self.attentions().next().expect("a family has a layer with attention")
    }

    /// Whether the vector kernels support every layer's attention: all positions, scores scaled by the root of the
    /// head's width, values as wide as keys.
    pub fn has_plain_attention(&self) -> bool {
        self.attentions().all(AttentionSpec::is_plain)
    }
}

impl LayerSpec {
    /// Its attention, if it has any.
    pub(crate) fn attention_mut(&mut self) -> Option<&mut AttentionSpec> {
        match &mut self.mixer {
            Mixer::Attention(attention) => Some(attention),
            Mixer::DeltaNet(_) => None,
        }
    }
}

impl AttentionSpec {
    /// See [`ModelSpec::has_plain_attention`].
    fn is_plain(&self) -> bool {
        self.window.is_none()
            && self.score_softcap.is_none()
            && !self.has_sinks
            && self.value_width == self.head_width
            && self.scale == default_scale(self.head_width)
    }

    /// H x C, the width of a row of queries.
    pub fn q_width(&self) -> usize {
        self.n_heads * self.head_width
    }

    /// G x C, the width of a row of keys.
    pub fn kv_width(&self) -> usize {
        self.n_kv_heads * self.head_width
    }
}

/// `1 / sqrt(C)`.
pub fn default_scale(head_width: usize) -> f32 {
    1.0 / (head_width as f32).sqrt()
}
