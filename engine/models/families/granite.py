"""Granite: Llama's decoder with factors on embeddings, attention scores, residual additions and logits.

Granite 4 hybrid has state space models (Mamba-2) between layers of attention without positions. Its dense models are
published as the same type, with attention only; llama.cpp converts them to plain Granite.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from specchat.engine.errors import check
from specchat.engine.models.families.llama import adjacent_pairs, llama_settings
from specchat.engine.models.family import Family, Parts, Settings, has_tensor, head_size, stretches
from specchat.engine.models.gguf.header import GgufHeader


def _factors(header: GgufHeader) -> Settings:
    return {  # 0 for none
        "embedding_multiplier": header.setting("embedding_scale", 0) or 1.0,
        "attention_multiplier": header.setting("attention.scale", 0) or head_size(header) ** -0.5,
        "residual_multiplier": header.setting("residual_scale", 0) or 1.0,
        "logits_scaling": header.setting("logit_scale", 0) or 1.0,
    }


def _dense(header: GgufHeader) -> Settings:
    rotates = header.setting("rope.scaling.finetuned", True)  # llama.cpp's switch
    check(rotates, f"{header.path} is a Granite model without rotary embedding: use the safetensors model")
    return llama_settings(header) | _factors(header)


def _hybrid(header: GgufHeader) -> Settings:
    inner, heads = header.setting("ssm.inner_size"), header.setting("ssm.time_step_rank")
    return _factors(header) | {
        "head_dim": head_size(header),
        "layer_types": ["linear_attention" if each else "full_attention" for each in has_tensor(header, "ssm_a")],
        "position_embedding_type": "rope" if header.setting("rope.scaling.finetuned", True) else "nope",
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_n_groups": header.setting("ssm.group_count"),
        "mamba_d_state": header.setting("ssm.state_size"),
        "mamba_d_conv": header.setting("ssm.conv_kernel"),
        "mamba_expand": inner // header.setting("embedding_length"),
        "mamba_conv_bias": any(has_tensor(header, "ssm_conv1d.bias")),
        "mamba_proj_bias": any(has_tensor(header, "ssm_in.bias")),
        "num_local_experts": header.setting("expert_count", 0),
        "num_experts_per_tok": header.setting("expert_used_count", 0),
        "shared_intermediate_size": header.setting("expert_shared_feed_forward_length", 0)
        or header.setting("feed_forward_length"),
    }


def _parts(config: Any) -> Parts:
    """The order of the convolution's channels is x, B, C, and in the kernels C, B, x, like queries, keys and values."""
    inner = config.mamba_n_heads * config.mamba_d_head
    sizes = {"x": inner} | dict.fromkeys("BC", config.mamba_n_groups * config.mamba_d_state)
    gate, channels, steps = stretches(
        {"gate": inner, "channels": sum(sizes.values()), "steps": config.mamba_n_heads}
    ).values()
    order = np.concatenate([stretches(sizes)[part] for part in "CBx"])
    mlp = "mlp.shared_expert." if config.num_local_experts else "mlp."
    gates = dict.fromkeys((f"{mlp}gate_proj", f"{mlp}up_proj"), config.shared_intermediate_size)
    return {
        "mamba.in_proj": {"mamba.in_proj_z": gate, "mamba.in_proj_qkv": channels[order], "mamba.in_proj_a": steps},
        "mamba.conv1d": {"mamba.conv": order},
        "shared_mlp.input_linear": stretches(gates),
        "shared_mlp.output_linear": stretches({f"{mlp}down_proj": config.hidden_size}),
    }


def _shape(config: Any, _: Any) -> Settings:
    return {
        "embedding_scale": config.embedding_multiplier,
        "attention_scale": config.attention_multiplier,
        "residual_scale": config.residual_multiplier,
        "logit_scale": 1.0 / config.logits_scaling,
    }


def _lacks_factors(config: Any) -> bool:
    return not (config.residual_multiplier and config.logits_scaling)


def _hybrid_shape(config: Any, network: Any) -> Settings:
    states = {
        "delta_key_heads": config.mamba_n_groups,
        "delta_value_heads": config.mamba_n_heads,
        "delta_key_size": config.mamba_d_state,
        "delta_value_size": config.mamba_d_head,
        "taps": config.mamba_d_conv,
    }
    experts = {
        "experts": config.num_local_experts,
        "experts_per_token": config.num_experts_per_tok,
        "expert_size": config.intermediate_size,
        "normalise_experts": True,
    }
    own = _shape(config, network) | {"intermediate": config.shared_intermediate_size}
    own |= states if "linear_attention" in config.layer_types else {}
    return own | experts if config.num_local_experts else own


def _hybrid_unsupported(config: Any) -> bool:
    limited = tuple(config.time_step_limit or (0.0, math.inf)) != (0.0, math.inf)
    return _lacks_factors(config) or bool(config.mamba_proj_bias or limited)


FAMILIES = (
    Family(
        types=("granite",),
        architecture="granite",
        settings=_dense,
        orders=adjacent_pairs,
        unsupported=_lacks_factors,
        shape=_shape,
    ),
    Family(
        types=("granitemoehybrid",),
        architecture="granitehybrid",
        settings=_hybrid,
        mixture=True,
        orders=adjacent_pairs,
        unsupported=_hybrid_unsupported,
        shape=_hybrid_shape,
        parts=_parts,
        names={
            "linear_attn.": "mamba.",
            "conv.conv": "mamba.conv",
            "conv.in_proj": "mamba.in_proj_qkv",
            "conv.out_proj": "mamba.out_proj",
            "mlp.experts.": "block_sparse_moe.experts.",
            "mlp.gate_proj": "mlp.gate_proj",  # of models without experts
            "mlp.gate": "block_sparse_moe.router",
        },
        published={
            "block_sparse_moe.input_linear.weight": "block_sparse_moe.experts.gate_up_proj",
            "block_sparse_moe.output_linear.weight": "block_sparse_moe.experts.down_proj",
            "block_sparse_moe.router.layer.": "block_sparse_moe.router.",
        },
        state_space=True,
    ),
)
