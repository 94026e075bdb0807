"""Qwen 3.5 to 3.8 and Qwen3-Next: gated delta nets between layers of gated attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from specchat.engine.models.family import Family, Order, Parts, Settings, experts, has_tensor, head_size, layer_count
from specchat.engine.models.gguf.header import GgufHeader
from specchat.engine.models.gguf.rope import rope_parameters


def _settings(header: GgufHeader) -> Settings:
    size, value_heads = head_size(header), header.setting("ssm.time_step_rank")
    rope = {
        "partial_rotary_factor": header.setting("rope.dimension_count") / size,
        "mrope_section": [section for section in header.setting("rope.dimension_sections") if section],
        "mrope_interleaved": True,
    }
    return {
        "head_dim": size,
        "layer_types": ["linear_attention" if delta else "full_attention" for delta in has_tensor(header, "ssm_a")],
        "linear_conv_kernel_dim": header.setting("ssm.conv_kernel"),
        "linear_key_head_dim": header.setting("ssm.state_size"),
        "linear_num_key_heads": header.setting("ssm.group_count"),
        "linear_num_value_heads": value_heads,
        "linear_value_head_dim": header.setting("ssm.inner_size") // value_heads,
        "rope_parameters": rope_parameters(header) | rope,
        "mtp_num_hidden_layers": header.setting("block_count") - layer_count(header),
    }


def _mixture(header: GgufHeader) -> Settings:
    shared = {"shared_expert_intermediate_size": header.setting("expert_shared_feed_forward_length")}
    return _settings(header) | experts(header) | shared


def _orders(config: Any) -> tuple[Mapping[str, Order], Mapping[str, Order]]:
    """Orders of rows and columns in gated delta nets with several value heads per key head.

    llama.cpp stores the first value heads of all key heads, then the second ones; transformers stores them by key head.
    """
    keys, values, size = config.linear_num_key_heads, config.linear_num_value_heads, config.linear_value_head_dim
    if keys == values:
        return {}, {}
    heads: Order = np.arange(values).reshape(-1, keys).T.ravel()
    of_values: Order = (heads[:, None] * size + np.arange(size)).ravel()
    before = 2 * keys * config.linear_key_head_dim
    joined: Order = np.concatenate([np.arange(before), before + of_values])
    rows = dict.fromkeys(("in_proj_a.", "in_proj_b.", ".A_log", ".dt_bias"), heads)
    rows |= {"in_proj_z.": of_values, "in_proj_qkv.": joined, ".conv1d.": joined}
    return rows, {"linear_attn.out_proj.": of_values}


def _parts(config: Any) -> Parts:
    """Queries and the gate of attention, head by head."""
    rows = np.arange(2 * config.num_attention_heads * config.head_dim).reshape(config.num_attention_heads, 2, -1)
    return {
        "self_attn.q_proj": {f"self_attn.{name}": rows[:, i].ravel() for i, name in enumerate(("q_proj", "gate_proj"))}
    }


def _shape(config: Any, _: Any) -> Settings:
    return {
        "delta_key_heads": config.linear_num_key_heads,
        "delta_value_heads": config.linear_num_value_heads,
        "delta_key_size": config.linear_key_head_dim,
        "delta_value_size": config.linear_value_head_dim,
        "taps": config.linear_conv_kernel_dim,
    }


def _mixture_shape(config: Any, network: Any) -> Settings:
    return _shape(config, network) | {"intermediate": config.shared_expert_intermediate_size}


_DECODER: dict[str, Any] = {
    "mtp": True,
    "orders": _orders,
    "unsupported": lambda config: bool(config.attention_bias),
    "parts": _parts,
    "names": {
        "conv.conv": "linear_attn.conv1d",
        "conv.in_proj": "linear_attn.in_proj_qkv",
        "conv.out_proj": "linear_attn.out_proj",
    },
    "norm_offset": 1.0,
    "head_norms": True,
    "gated_attention": True,
}
FAMILIES = (
    Family(types=("qwen3_5_text", "qwen3_5"), architecture="qwen35", settings=_settings, shape=_shape, **_DECODER),
    Family(
        types=("qwen3_5_moe_text", "qwen3_5_moe"),
        architecture="qwen35moe",
        settings=_mixture,
        mixture=True,
        shape=_mixture_shape,
        **_DECODER,
    ),
    Family(types=("qwen3_next",), mtp=True, packed=False),
)
