"""Tiny random networks of families with recurrent layers, and of those with latent attention."""

from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

from specchat.engine.models.load import LoadedModel
from specchat.engine.progress import silence_transformers
from tests.engine.tiny import SIZES, in_memory

_MOST = SIZES | {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "head_dim": 16, "bos_token_id": 1,
    "pad_token_id": 0,
}  # fmt: skip
_LINEAR = ["linear_attention", "full_attention"] * 2
_CONV = ["conv", "full_attention"] * 2
_DELTA = {
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "layer_types": _LINEAR,
}  # fmt: skip
_EXPERTS = {
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
}  # fmt: skip
_MAMBA = {
    "mamba_d_state": 8, "mamba_d_head": 16, "mamba_n_heads": 4, "mamba_n_groups": 1, "mamba_d_ssm": 64,
    "mamba_expand": 2, "mamba_chunk_size": 8,
}  # fmt: skip
_LATENT = {
    "num_key_value_heads": 4, "kv_lora_rank": 24, "q_lora_rank": None, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
    "v_head_dim": 12, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 3,
}  # fmt: skip
HYBRIDS: dict[str, dict[str, Any]] = {
    "qwen3_5_text": _DELTA,
    "qwen3_5_moe_text": _DELTA | _EXPERTS,
    "qwen3_next": _DELTA | _EXPERTS,
    "olmo_hybrid": _DELTA,
    "kimi_linear": _LATENT | _EXPERTS | {"layer_types": _LINEAR, "linear_head_dim": 8, "linear_num_heads": 2},
    "bailing_hybrid": _LATENT | _EXPERTS | {"layer_group_size": 2},
    "lfm2": {"layer_types": _CONV, "conv_L_cache": 3, "block_auto_adjust_ff_dim": False},
    "lfm3": {"layer_types": _CONV, "conv_L_cache": 3} | _EXPERTS,
    "granitemoehybrid": {"layer_types": _LINEAR, "shared_intermediate_size": 32} | _MAMBA | _EXPERTS,
    "falcon_h1": _MAMBA,
    "jamba": _EXPERTS | {
        "mamba_d_state": 8, "mamba_dt_rank": 4, "attn_layer_period": 2, "attn_layer_offset": 1,
        "expert_layer_period": 2, "expert_layer_offset": 1,
    },
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"] * 2, "mamba_d_state": 8, "mamba_headdim": 16,
        "n_mamba_heads": 4, "mamba_ngroups": 1, "chunk_size": 8, "num_mem_blocks": 1, "adapter_rank": 4,
        "use_mem_rope": True, "use_shared_attention_adapter": True, "num_key_value_heads": 4, "initializer_range": 0.5,
    },
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "full_attention", "mlp", "moe"], "mamba_num_heads": 4,
        "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 1, "chunk_size": 8, "n_group": 1, "topk_group": 1,
        "moe_shared_expert_intermediate_size": 32,
    } | _EXPERTS,
}  # fmt: skip
"""Model type to what is special about its configuration."""
HYBRIDS = {kind: own for kind, own in HYBRIDS.items() if kind in CONFIG_MAPPING}  # transformers 5.17 lacks some

LATENT = {kind: _LATENT | _EXPERTS | {"q_lora_rank": 16, "head_dim": 8} for kind in ("deepseek_v3", "glm4_moe_lite")}
"""Families whose cache has one compressed vector for the keys and values of all heads, likewise."""


def hybrid(kind: str, seed: int = 0, sharpness: float = 12.0, **more: Any) -> LoadedModel:
    """A network of this kind; `sharpness` spreads its logits so that its choices are clear.

    `more` is for its configuration.
    """
    silence_transformers()
    config: Any = AutoConfig.for_model(kind, **_MOST | (HYBRIDS | LATENT)[kind] | more)
    torch.manual_seed(seed)
    network = AutoModelForCausalLM.from_config(config).float().eval().requires_grad_(False)
    for name, weight in network.named_parameters():  # gates that open, states that matter
        if "embed" not in name and "norm" not in name:
            weight.normal_(0.0, 0.1 if weight.ndim > 1 else 0.5)
    network.get_output_embeddings().weight = torch.nn.Parameter(
        sharpness * network.get_output_embeddings().weight, requires_grad=False
    )
    return in_memory(network, kind)
