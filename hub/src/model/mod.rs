//! Qwen3-MoE, from the checkpoint to the logits.
