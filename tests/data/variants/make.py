"""Small random Qwen3-MoE checkpoints, one per config variant, and transformers' float32 logits on them.

Run: pip install torch transformers safetensors; python make.py OUT. What lies beside this file was made with
torch 2.15 and transformers 5.23.
"""

import os
import sys

import torch
from safetensors.torch import save_file
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

VOCAB = 64
BASE = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
    intermediate_size=48, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True,
    decoder_sparse_step=1, mlp_only_layers=[], vocab_size=VOCAB, max_position_embeddings=128, rms_norm_eps=1e-6,
    tie_word_embeddings=False, attention_bias=False, bos_token_id=0, eos_token_id=1, pad_token_id=None,
)
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
YARN_ALL = {
    **YARN, "factor": 8.0, "original_max_position_embeddings": 16, "attention_factor": 1.3, "beta_fast": 16.0,
    "beta_slow": 2.0,
}
VARIANTS = {
    "yarn": (dict(rope_parameters=YARN), torch.bfloat16),
    "yarn-attention-factor": (dict(num_hidden_layers=1, rope_parameters=YARN_ALL), torch.bfloat16),
    "mlp-only-layers": (dict(num_hidden_layers=3, mlp_only_layers=[1]), torch.bfloat16),
    "sparse-step": (dict(decoder_sparse_step=2), torch.float16),
    "tied-head": (dict(tie_word_embeddings=True), torch.bfloat16),
    "gates-as-they-are": (dict(norm_topk_prob=False), torch.bfloat16),
    "attention-bias": (dict(attention_bias=True), torch.float16),
    "float32": (dict(num_hidden_layers=1, num_experts=5, num_experts_per_tok=3), torch.float32),
}


def randomise(model, dtype):
    """Weights that a missing or misplaced tensor would show in, exact in `dtype`."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn_like(p)
            if name.endswith("norm.weight"):
                p.copy_(1 + 0.25 * noise)
            elif name.endswith("bias"):
                p.copy_(0.5 * noise)
            else:
                p.copy_(1.5 * noise / p.shape[-1] ** 0.5)
            p.copy_(p.to(dtype).float())


def make(folder, seed, extra, dtype):
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(**{**BASE, "rope_parameters": PLAIN, **extra})
    config._attn_implementation = "eager"
    model = Qwen3MoeForCausalLM(config).float().eval()
    model.set_experts_implementation("eager")
    randomise(model, dtype)
    ids = torch.randint(0, VOCAB, (1, 60 if "yarn" in folder else 24))
    reference = {"input_ids": ids[0].to(torch.int32)}

    def chosen(layer):
        def hook(_module, _inputs, outputs):
            (experts,) = (x for x in outputs if x.dtype == torch.int64)
            reference[f"layer{layer}.topk_indices"] = experts.to(torch.int32).contiguous()
        return hook

    for index, layer in enumerate(model.model.layers):
        if hasattr(layer.mlp, "gate"):
            layer.mlp.gate.register_forward_hook(chosen(index))
    with torch.no_grad():
        reference["logits"] = model(ids).logits[0].contiguous()
    config.dtype = dtype
    model.to(dtype).save_pretrained(folder)
    save_file(reference, os.path.join(folder, "reference.safetensors"))
    os.remove(os.path.join(folder, "generation_config.json"))


torch.set_num_threads(1)
for seed, (name, (extra, dtype)) in enumerate(VARIANTS.items(), 1000):
    make(os.path.join(sys.argv[1], name), seed, extra, dtype)
