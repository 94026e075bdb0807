"""Phi-3."""

from __future__ import annotations

from typing import Any

from specchat.engine.models.family import Family, Parts, Settings, head_size, stretches
from specchat.engine.models.gguf.header import GgufHeader
from specchat.engine.models.gguf.rope import rope_parameters


def _settings(header: GgufHeader) -> Settings:
    size, rope = head_size(header), rope_parameters(header)
    share = header.setting("rope.dimension_count", size) / size
    original = {name: value for name, value in rope.items() if name == "original_max_position_embeddings"}
    return original | {
        "rope_parameters": rope | ({} if share == 1 else {"partial_rotary_factor": share}),
        "sliding_window": header.setting("attention.sliding_window", 0) or None,
    }


def _parts(config: Any) -> Parts:
    size, inner = config.hidden_size // config.num_attention_heads, config.intermediate_size
    counts = (config.num_attention_heads, *[config.num_key_value_heads] * 2)
    return {
        "self_attn.qkv_proj": stretches(
            {f"self_attn.{part}_proj": count * size for part, count in zip("qkv", counts, strict=True)}
        ),
        "mlp.gate_up_proj": stretches({"mlp.gate_proj": inner, "mlp.up_proj": inner}),
    }


FAMILIES = (
    Family(types=("phi3",), architecture="phi3", settings=_settings, fused=True, drops_spaces=True, parts=_parts),
)
