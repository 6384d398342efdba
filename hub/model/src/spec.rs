//! A model as data: everything that the forward pass needs to know of it, and nothing of files.
//!
//! What differs between families is a field with a meaning. Which config says what is `families`' matter.

use moex_kernels::{
    ExpertKind,
    cpu::{DeltaNetShape, Renormalise, RopeScaling},
};

pub use moex_kernels::{
    cpu::{RopePairs, RopePlace},
    graph::Activation,
};

/// The most layers a model may have.
pub const MAX_LAYERS: usize = 1024;
/// The most experts in a layer, and the most chosen of them.
pub const MAX_EXPERTS: usize = 4096;
/// The widest row; what the wire's header can say.
pub const MAX_WIDTH: usize = 65_535;
/// The most entries of a vocabulary.
pub const MAX_VOCAB: usize = 1 << 22;
/// The longest context.
pub const MAX_POSITIONS: usize = 1 << 24;
/// The widest MLP of a dense layer inside.
pub const MAX_INNER: usize = 1 << 20;

/// A decoder-only transformer. Letters are the legend of [`crate`].
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// The family it is of, as `model_type` names it.
    pub family: &'static str,
    /// D, the width of a row between layers.
    pub hidden: usize,
    /// V, the entries of the vocabulary.
    pub vocab: usize,
    /// What RMSNorm adds to the mean of squares.
    pub rms_eps: f32,
    /// How a norm's stored weights count.
    pub norm_weights: NormWeights,
    /// What embeddings are multiplied by; 1 but in Gemma.
    pub embedding_scale: f32,
    /// Logits are `cap * tanh(logits / cap)`.
    pub logit_softcap: Option<f32>,
    /// The head is the embedding.
    pub tied_head: bool,
    /// Positions a sequence may have.
    pub max_positions: usize,
    /// F of dense layers, as the config says whether there are any or not; 0 where it does not.
    pub dense_inner: usize,
    /// The layers, from the embedding to the head.
    pub layers: Vec<LayerSpec>,
    /// What its layers with experts share; [`MoeSpec::NONE`] in a model without experts.
    pub moe: MoeSpec,
    /// The tokens that end a text, as far as the config says.
    pub eos: Vec<u32>,
}

/// How the stored weights of an RMSNorm count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormWeights {
    /// As they are stored.
    Plain,
    /// One is added to each: Gemma's.
    OnePlus,
}

/// One layer: what mixes its rows, then a feed-forward part, each added to the residual stream.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// The first half.
    pub mixer: Mixer,
    /// The second half.
    pub ffn: FfnSpec,
    /// Where its norms stand.
    pub norms: NormPlaces,
}

/// How a layer's rows see those before them.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Attention over cached positions.
    Attention(AttentionSpec),
    /// A gated delta net: a state for each sequence, however long it is.
    DeltaNet(DeltaNetShape),
}

/// Where a layer has its norms.
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
    /// How queries, keys and values are made of a row.
    pub projection: Projection,
    /// Whether q, k and v have biases.
    pub qkv_bias: bool,
    /// Whether the output projection has one.
    pub output_bias: bool,
    /// RMSNorm of queries and keys.
    pub qk_norm: QkNorm,
    /// Queries, keys and values are cut to plus and minus this (`clip_qkv`).
    pub clip: Option<f32>,
    /// Rotations of positions.
    pub rope: RopeSpec,
    /// The positions that a row sees, its own and those before it; all where there is none.
    pub window: Option<usize>,
    /// What scores are multiplied by.
    pub scale: f32,
    /// Scores are `cap * tanh(score / cap)`.
    pub score_softcap: Option<f32>,
    /// A learned score for each query head joins the softmax and is dropped from it (attention sinks).
    pub has_sinks: bool,
    /// What a head gives is multiplied by the sigmoid of as many columns that `q_proj` gives beside its query.
    pub has_output_gate: bool,
}

/// How queries, keys and values are made of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projection {
    /// A matrix each.
    Separate,
    /// Through narrow rows (multi-head latent attention, DeepSeek-V2, section 2.1): each head has columns of its own and
    /// `rope_width` rotated ones, those of the keys shared by all heads.
    Latent {
        /// The width that queries pass through; straight from the row where there is none.
        q_rank: Option<usize>,
        /// The width that keys and values pass through.
        kv_rank: usize,
    },
}

/// RMSNorm of queries and keys before they are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    None,
    /// Of each head.
    Head,
    /// Of all heads of a row together.
    Row,
}

/// Rotations of positions.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// `rope_theta`.
    pub theta: f32,
    /// How frequencies are changed for longer contexts.
    pub scaling: Option<RopeScaling>,
    /// The rotated columns of a head.
    pub width: usize,
    /// Which columns turn together.
    pub pairs: RopePairs,
    /// Where the rotated columns are, where they are not all.
    pub place: RopePlace,
}

/// The second half of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FfnSpec {
    /// A router and experts, as [`ModelSpec::moe`] says.
    Sparse,
    /// One gated MLP for every row.
    Dense {
        /// F, its inner width.
        inner: usize,
        /// Between its projections.
        activation: Activation,
    },
}

/// The layers that have experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoeSpec {
    /// E, experts of a layer.
    pub n_experts: usize,
    /// K, experts of a row.
    pub n_chosen: usize,
    /// F, an expert's inner width.
    pub inner: usize,
    /// What an expert does between its projections, and whether these have biases.
    pub kind: ExpertKind,
    /// Whether the router has one.
    pub has_router_bias: bool,
    /// What becomes of the router's logits before experts are chosen.
    pub scoring: Scoring,
    /// Whether the gates of a row sum to one.
    pub renormalise: Renormalise,
    /// What gates are multiplied by in the end.
    pub gate_scale: f32,
    /// The expert that every row goes to, on the hub.
    pub shared: Option<SharedExpertSpec>,
}

impl MoeSpec {
    /// Of a model without experts.
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

/// What becomes of a router's logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// Softmax over all E.
    Softmax,
    /// Sigmoid; chosen by the score plus a stored correction, within the best groups (DeepSeek-V3, section 2.1.2).
    SigmoidInGroups {
        /// Groups of neighbouring experts.
        n_groups: usize,
        /// Groups that experts are chosen from.
        n_chosen_groups: usize,
    },
}

/// The expert that every row goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExpertSpec {
    /// Its inner width.
    pub inner: usize,
    /// Whether it is multiplied by the sigmoid of a product with the row.
    pub is_gated: bool,
}

impl ModelSpec {
    /// The indices of the layers that have experts.
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

    /// As [`Self::attentions`], to be changed.
    pub(crate) fn attentions_mut(&mut self) -> impl Iterator<Item = &mut AttentionSpec> {
        self.layers.iter_mut().filter_map(LayerSpec::attention_mut)
    }

    /// The attention whose keys and values every layer's pages have room for: of all layers the same but for windows and
    /// rotations.
    ///
    /// # Panics
    /// If no layer has attention, which no family is without.
    pub fn cached(&self) -> &AttentionSpec {
        self.attentions().next().expect("a family has a layer with attention")
    }

    /// Whether every layer's attention is what the vector kernels compute: all positions, scores by the root of the head's
    /// width, values as wide as keys.
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
