//! Sizes of a mixture-of-experts model, and of a worker's share.
//!
//! There are two geometries of Qwen3-30B-A3B: the paper's and the checkpoint's. Counts are `f64`, exact below 2^53.

use crate::error::ModelError;

/// The sizes that determine memory and traffic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Geometry {
    /// D, the width of an activation row.
    pub hidden: u32,
    /// F, the width inside an expert.
    pub inner: u32,
    /// Layers with experts.
    pub n_moe_layers: u32,
    /// E, experts of one layer.
    pub n_experts: u32,
    /// K, experts a token visits in one layer.
    pub k: u32,
    /// The sizes that determine the hub's own share, where they are known.
    pub shared: Option<Shared>,
}

/// The part outside the experts: attention, router, norms, embedding, head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shared {
    /// H, query heads.
    pub n_query_heads: u32,
    /// G, key and value heads.
    pub n_kv_heads: u32,
    /// C, the width of a head.
    pub head_width: u32,
    /// Rows of the embedding and of the head, which are not tied.
    pub vocab: u32,
}

/// Qwen3-30B-A3B as the paper calculates it. Its attention is not given, so its shared part has no formula here.
pub const PAPER: Geometry =
    Geometry { hidden: 4096, inner: 2048, n_moe_layers: 46, n_experts: 128, k: 8, shared: None };

/// Qwen3-30B-A3B according to the checkpoint's `config.json`.
pub const CHECKPOINT: Geometry = Geometry {
    hidden: 2048,
    inner: 768,
    n_moe_layers: 48,
    n_experts: 128,
    k: 8,
    shared: Some(Shared { n_query_heads: 32, n_kv_heads: 4, head_width: 128, vocab: 151_936 }),
};

/// How a weight is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightBits {
    /// 2 bytes a weight.
    F16,
    /// Half a byte a weight and nothing else: the paper calculates with this.
    Int4Bare,
    /// Half a byte a weight and an f16 scale for every 128 of them.
    Int4G128,
}

impl WeightBits {
    /// Bytes per weight, scales included.
    pub fn bytes_per_weight(self) -> f64 {
        match self {
            Self::F16 => 2.0,
            Self::Int4Bare => 0.5,
            Self::Int4G128 => 0.5 + 2.0 / 128.0,
        }
    }
}

impl Geometry {
    /// Gate (F, D), up (F, D) and down (D, F) of one expert.
    pub fn expert_params(&self) -> f64 {
        3.0 * f64::from(self.hidden) * f64::from(self.inner)
    }

    /// The number of all layers' experts.
    pub fn n_blocks(&self) -> f64 {
        f64::from(self.n_moe_layers) * f64::from(self.n_experts)
    }

    /// Parameters of all experts.
    pub fn all_expert_params(&self) -> f64 {
        self.n_blocks() * self.expert_params()
    }

    /// Parameters outside the experts, if all layers have experts; `None` where the attention is not known.
    pub fn shared_params(&self) -> Option<f64> {
        let shared = self.shared?;
        let hidden = f64::from(self.hidden);
        let head = f64::from(shared.head_width);
        let (query, kv) = (f64::from(shared.n_query_heads) * head, f64::from(shared.n_kv_heads) * head);
        let attention = hidden * query * 2.0 + hidden * kv * 2.0;
        let norms = 2.0 * hidden + 2.0 * head;
        let router = hidden * f64::from(self.n_experts);
        let embedding_and_head = 2.0 * hidden * f64::from(shared.vocab);
        Some(f64::from(self.n_moe_layers) * (attention + norms + router) + embedding_and_head + hidden)
    }

    /// Bytes of one expert.
    pub fn expert_bytes(&self, bits: WeightBits) -> f64 {
        self.expert_params() * bits.bytes_per_weight()
    }

    /// Bytes that one of `n_workers` holds when every expert is on `n_replicas` of them, evenly: equation 3.
    ///
    /// Fails without workers, without replicas, or with fewer workers than replicas.
    pub fn worker_bytes(&self, bits: WeightBits, n_workers: u32, n_replicas: u32) -> Result<f64, ModelError> {
        if n_replicas == 0 || n_workers < n_replicas {
            return Err(ModelError::Replicas { replicas: n_replicas, workers: n_workers });
        }
        Ok(self.n_blocks() * self.expert_bytes(bits) * f64::from(n_replicas) / f64::from(n_workers))
    }

    /// Bytes of one activation row on the wire in f16, without header and gate.
    pub fn row_bytes(&self) -> f64 {
        2.0 * f64::from(self.hidden)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checkpoint_has_its_known_sizes() {
        assert_eq!(CHECKPOINT.expert_params(), 4_718_592.0);
        assert_eq!(CHECKPOINT.all_expert_params(), 28_991_029_248.0);
        assert_eq!(CHECKPOINT.row_bytes(), 4096.0);
        // The published checkpoint has 30,532,122,624 parameters in all.
        let shared = CHECKPOINT.shared_params().unwrap();
        assert_eq!(shared + CHECKPOINT.all_expert_params(), 30_532_122_624.0);
    }

    #[test]
    fn the_papers_own_numbers_do_not_add_up_to_its_total() {
        assert_eq!((PAPER.expert_params() / 1e6).round(), 25.0);
        assert_eq!((PAPER.all_expert_params() / 1e9).round(), 148.0);
        assert_eq!(PAPER.shared_params(), None);
    }

    #[test]
    fn a_share_is_even_and_possible() {
        let share = |n, r| CHECKPOINT.worker_bytes(WeightBits::Int4G128, n, r);
        assert_eq!(format!("{:.1}", share(16, 2).unwrap() / 1e9), "1.9");
        assert_eq!(share(16, 2).unwrap(), share(8, 1).unwrap());
        assert_eq!(
            share(2, 2).unwrap(),
            CHECKPOINT.n_blocks() * CHECKPOINT.expert_bytes(WeightBits::Int4G128)
        );
        for (n, r) in [(0, 0), (0, 1), (4, 0), (1, 2)] {
            assert_eq!(share(n, r), Err(ModelError::Replicas { replicas: r, workers: n }));
        }
    }
}
