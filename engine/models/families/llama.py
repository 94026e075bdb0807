"""Llama, MiniCPM5 and Mistral, whose GGUF files state the architecture llama; Ministral 3 and Mistral Small 3.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from specchat.engine.models.family import Family, Order, Settings, attention_bias, has_tensor, head_size
from specchat.engine.models.gguf.header import GgufHeader
from specchat.engine.models.gguf.rope import rope_parameters


def llama_settings(header: GgufHeader) -> Settings:
    """Settings of Llama's decoder, and of others that llama.cpp converts in the same way."""
    stated = header.setting("attention.key_length", None) or header.setting("rope.dimension_count", None)
    mlp_bias = any(any(has_tensor(header, f"ffn_{part}.bias")) for part in ("gate", "up", "down"))
    own = {"head_dim": stated or head_size(header), "mlp_bias": mlp_bias, "sliding_window": None}
    return own | attention_bias(header)


def _ministral3(header: GgufHeader) -> Settings:
    """Rotary scaling whose factor on scores llama.cpp states as that of all dimensions, and growing queries."""
    rope, scaled = rope_parameters(header), header.setting("rope.scaling.yarn_log_multiplier", None)
    context = header.setting("context_length")
    grows = {
        "llama_4_scaling_beta": header.setting("attention.temperature_scale", 0.0),
        "original_max_position_embeddings": rope.get("original_max_position_embeddings", context),
    }
    factors = {} if scaled is None else {"mscale": 1.0, "mscale_all_dim": scaled}
    return {"head_dim": head_size(header), "sliding_window": None, "rope_parameters": rope | grows | factors}


def adjacent_pairs(config: Any) -> tuple[Mapping[str, Order], Mapping[str, Order]]:
    """Orders of the rows of queries and keys.

    llama.cpp stores rows that are rotated together next to each other; transformers rotates row d with row d + size / 2
    of a head.
    """
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    return {f".{part}.": _split_pairs(count, config.head_dim) for part, count in heads.items()}, {}


def _split_pairs(heads: int, size: int) -> Order:
    return np.arange(heads * size).reshape(heads, size // 2, 2).swapaxes(1, 2).ravel()


FAMILIES = (
    # A model that was made from a Mistral or Qwen may state a window.
    Family(
        types=("llama",),
        ignored=("sliding_window",),
        architecture="llama",
        settings=llama_settings,
        orders=adjacent_pairs,
    ),
    Family(types=("mistral",)),
    Family(types=("ministral3",), architecture="mistral3", settings=_ministral3, orders=adjacent_pairs),
)
