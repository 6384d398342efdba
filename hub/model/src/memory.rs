//! Divides the free memory of the hub: its own weights first, then all experts if they fit, then the KV cache. `serve`
//! and `info` both use this before loading, so their figures agree.

use moex_kernels::{
    WeightFormat,
    graph::KvPool,
    simd::{PackedExpertShape, PackedShape},
};

use super::{
    checkpoint::{Checkpoint, Stored, Tensor},
    compute::{Compute, FloatWeights},
    free_memory::free_bytes,
    packing::Packing,
    spec::ModelSpec,
    transformer::Model,
};

/// Memory reserved for everything else.
pub(super) const RESERVE_BYTES: usize = 1 << 30;
/// Assumed free memory if the system does not report it.
pub(super) const UNKNOWN_FREE_BYTES: usize = 6 << 30;
/// Minimum bytes of the KV cache: a conversation of some thousand tokens.
const LEAST_KV_BYTES: usize = 1 << 30;
/// Granularity of the KV cache's size, so that small changes in free memory do not change the context.
const KV_STEP_BYTES: usize = 256 << 20;

/// Whether repacked experts are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// All of them stay in memory.
    All,
    /// Those of this layer and of layers after it: a GPU has the others.
    From(usize),
    /// None: an expert is repacked on each use, for models larger than memory.
    None,
}

/// How the free memory is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Whether the hub keeps all experts in memory.
    pub keep: Keep,
    /// Maximum bytes of keys and values. Pages are allocated when a conversation needs them.
    pub kv_bytes: usize,
    /// Context of one sequence, prompt and answer together.
    pub context: usize,
}

/// Consumers of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryNeeds {
    /// All weights except the experts.
    pub shared_bytes: usize,
    /// All experts; 0 on a hub that computes none.
    pub expert_bytes: usize,
    /// Memory of workers on this machine.
    pub worker_bytes: usize,
    /// Memory of what workers' answers are checked with.
    pub check_bytes: usize,
    /// Number of sequences that may use the full context.
    pub n_sequences: usize,
}

impl Keep {
    /// Keeps all experts, of `n_bytes`, if that much memory is free beyond `RESERVE_BYTES`.
    pub fn if_it_fits(n_bytes: usize) -> Self {
        let free = free_bytes().unwrap_or(UNKNOWN_FREE_BYTES);
        if n_bytes <= free.saturating_sub(RESERVE_BYTES) { Self::All } else { Self::None }
    }
}

impl MemoryNeeds {
    /// The consumers of a hub that computes `model` with `compute` and packs experts as `packing`.
    ///
    /// # Errors
    /// If a layer's experts have different shapes.
    pub fn of(
        checkpoint: &Checkpoint,
        model: &Model,
        compute: &Compute,
        packing: Packing,
        n_sequences: usize,
    ) -> Result<Self, String> {
        let mut expert_bytes = 0_usize;
        for layer in model.spec().sparse_layers() {
            let each = PackedExpertShape::from(packing.shape(model, layer)?).bytes();
            expert_bytes = expert_bytes.saturating_add(each.saturating_mul(model.experts(layer).len()));
        }
        let shared_bytes = checkpoint.shared_bytes(compute);
        Ok(Self { shared_bytes, expert_bytes, worker_bytes: 0, check_bytes: 0, n_sequences })
    }
}

impl MemoryPlan {
    /// Divides the free memory, or `UNKNOWN_FREE_BYTES` if the system does not report it. An `asked` context is granted
    /// regardless of it.
    pub fn new(
        needs: &MemoryNeeds,
        spec: &ModelSpec,
        compute: &Compute,
        free_bytes: Option<usize>,
        asked: Option<usize>,
    ) -> Self {
        let layout = compute.kv_layout(spec);
        let longest = layout.sequence_bytes(asked.unwrap_or(spec.max_positions));
        let rest = free_bytes
            .unwrap_or(UNKNOWN_FREE_BYTES)
            .saturating_sub(RESERVE_BYTES)
            .saturating_sub(needs.shared_bytes)
            .saturating_sub(layout.state_bytes().saturating_mul(needs.n_sequences))
            .saturating_sub(needs.worker_bytes)
            .saturating_sub(needs.check_bytes);
        let least_kv = LEAST_KV_BYTES.min(longest);
        let (keep, rest) = match rest.checked_sub(needs.expert_bytes) {
            Some(rest) if rest >= least_kv => (Keep::All, rest),
            _ => (Keep::None, rest),
        };
        // One sequence may take all remaining memory; several share half of it.
        let most = longest.max(rest / 2).min(longest.saturating_mul(needs.n_sequences.max(1)));
        let stepped = rest / KV_STEP_BYTES * KV_STEP_BYTES;
        let kv_bytes = stepped.max(LEAST_KV_BYTES).min(most);
        let kv_bytes = if asked.is_some() { kv_bytes.max(longest) } else { kv_bytes };
        let kv_bytes = kv_bytes + layout.state_bytes().saturating_mul(needs.n_sequences);
        let pool = KvPool::new(layout, kv_bytes, needs.n_sequences);
        let context = asked.unwrap_or(spec.max_positions).min(pool.max_positions());
        Self { keep, kv_bytes, context }
    }
}

impl Checkpoint {
    /// Bytes of everything on the hub except the experts, packed or mapped, when it computes with `compute`.
    pub fn shared_bytes(&self, compute: &Compute) -> usize {
        let rounded = match compute.of(self) {
            Compute::Fast(fast) => fast.weights,
            Compute::Exact => FloatWeights::Native,
        };
        let of_tensor = |(name, tensor): (&String, &Tensor)| match (&tensor.stored, rounded, &*tensor.shape) {
            _ if name.contains(".experts.") || name.contains("_exps.") => 0,
            (
                Stored::Weights(WeightFormat::F32 | WeightFormat::F16 | WeightFormat::Bf16),
                FloatWeights::To(format),
                &[rows, cols],
            ) => PackedShape { format, rows, cols }.bytes(),
            _ => tensor.bytes.len(),
        };
        self.tensors.iter().map(of_tensor).fold(0, usize::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use moex_kernels::simd::{KvFormat, Processor, Simd};

    use super::*;
    use crate::Fast;

    const GIB: usize = 1 << 30;

    /// Qwen3-30B-A3B's, which keeps 96 KiB of a token in f16.
    fn spec() -> ModelSpec {
        let json = r#"{"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
            "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
            "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}"#;
        ModelSpec::from_json(json.as_bytes()).unwrap()
    }

    fn fast(kv: KvFormat) -> Compute {
        let processor = Arc::new(Processor::new(Simd::detect(), 1));
        Compute::Fast(Fast { processor, weights: FloatWeights::ByCheckpoint, kv })
    }

    fn plan(free_bytes: usize, asked: Option<usize>) -> MemoryPlan {
        plan_in(KvFormat::F16, free_bytes, asked)
    }

    fn plan_in(kv: KvFormat, free_bytes: usize, asked: Option<usize>) -> MemoryPlan {
        let needs = MemoryNeeds {
            shared_bytes: GIB,
            expert_bytes: 16 * GIB,
            worker_bytes: 0,
            check_bytes: 0,
            n_sequences: 16,
        };
        MemoryPlan::new(&needs, &spec(), &fast(kv), Some(free_bytes), asked)
    }

    #[test]
    fn the_context_is_the_models_where_memory_allows_and_what_fits_where_not() {
        assert_eq!(plan(24 * GIB, None).context, 40_960);
        assert_eq!(plan(24 * GIB, None).keep, Keep::All);
        let tight = plan(21 * GIB, None);
        assert_eq!((tight.keep, tight.kv_bytes), (Keep::All, 3 * GIB));
        assert!((30_000..40_960).contains(&tight.context), "{tight:?}");
        let without_experts = plan(8 * GIB, None);
        assert_eq!((without_experts.keep, without_experts.context), (Keep::None, 40_960));
        let hopeless = plan(0, None);
        assert_eq!((hopeless.keep, hopeless.kv_bytes), (Keep::None, LEAST_KV_BYTES));
    }

    #[test]
    fn a_context_that_is_asked_for_is_given() {
        assert_eq!(plan(0, Some(40_960)).context, 40_960);
        assert_eq!(plan(64 * GIB, Some(1000)).context, 1000);
    }

    #[test]
    fn the_same_memory_holds_nearly_twice_the_context_in_q8_0() {
        let spec = ModelSpec { max_positions: 1 << 20, ..spec() };
        let [f16, q8_0] =
            [KvFormat::F16, KvFormat::Q8_0].map(|kv| fast(kv).kv_layout(&spec).position_bytes());
        assert_eq!((f16, q8_0), (96 << 10, 51 << 10), "17 bytes for 32");
        let hopeless = [KvFormat::F16, KvFormat::Q8_0].map(|kv| plan_in(kv, 0, None));
        assert_eq!(hopeless.map(|plan| plan.kv_bytes), [LEAST_KV_BYTES; 2]);
        assert_eq!(hopeless.map(|plan| plan.context), [10_912, 20_544], "whole pages of a gigabyte");
    }

    #[test]
    fn the_same_memory_holds_several_times_the_context_where_layers_have_windows() {
        // Gemma 3 27b: five layers of six see 1,024 positions, and ten of 62 all of them.
        let json = r#"{"model_type": "gemma3_text", "hidden_size": 5376, "num_hidden_layers": 62, "num_attention_heads": 32,
            "num_key_value_heads": 16, "head_dim": 128, "vocab_size": 262208, "max_position_embeddings": 131072,
            "intermediate_size": 21504, "sliding_window": 1024, "query_pre_attn_scalar": 168}"#;
        let windowed = ModelSpec::from_json(json.as_bytes()).unwrap();
        let mut without = windowed.clone();
        without.attentions_mut().for_each(|attention| attention.window = None);
        let compute = fast(KvFormat::F16);
        let needs = MemoryNeeds {
            shared_bytes: 27 * GIB,
            expert_bytes: 0,
            worker_bytes: 0,
            check_bytes: 0,
            n_sequences: 16,
        };
        let context =
            |spec: &ModelSpec, free: usize| MemoryPlan::new(&needs, spec, &compute, Some(free), None).context;
        assert_eq!(context(&without, 44 * GIB), 16_896, "a token takes 992 KiB in rows of f32");
        assert_eq!(context(&windowed, 44 * GIB), 99_200, "160 KiB beyond the window");
        assert_eq!(context(&windowed, 56 * GIB), 131_072);
        // What was asked for is given: the least that holds it is what a pool needs for it.
        let plan = MemoryPlan::new(&needs, &windowed, &compute, Some(0), Some(50_000));
        assert_eq!(plan.kv_bytes, compute.kv_layout(&windowed).sequence_bytes(50_000));
        assert_eq!(plan.context, 50_000);
    }

    #[test]
    fn many_conversations_get_half_of_what_is_left() {
        let plan = plan(58 * GIB, None);
        assert_eq!(plan.kv_bytes, 20 * GIB);
        assert_eq!(plan.context, 40_960);
    }

    #[test]
    fn a_little_more_or_less_free_memory_moves_no_context() {
        let free = 20 * GIB + GIB / 2 + KV_STEP_BYTES / 2;
        assert_eq!(plan(free, None), plan(free + (100 << 20), None));
    }
}
